"""One operator of a transformer block as data: what it reads, multiplies, holds and returns, and what it is kept by.

Everything that is said of a block is a sum over its operators (`block.block_operators`): parameters, FLOPs, GEMMs,
bytes moved, bytes kept for the backward pass, gradients that wait for its half towards the weights.

Sums over the operators of a block on one rank, for many layouts at once.

What an operator costs is first a number for each token of a place (or for each parameter that ranks share in some way),
whatever the layout; these are added up, and only their few sums meet the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.question import Question
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.transformer import Norm

StateKind = Literal["convolution", "scan", "gating"]
Kind = Literal[
    "gemm",
    "norm",
    "rotary",
    "core",
    "activation",
    "gate",
    "routing",
    "residual",
    "dropout",
    "adapter",
    "modulation",
    StateKind,
]
"""Kinds of operators. Pricing modules say for each kind its time and the bytes it keeps."""

Place = Literal["stream", "entrance", "whole", "split", "sent", "copies", "expert"]
"""Of which tokens a rank has an activation, and how much of it (`tokens_on_rank` in numbers):

    stream    the residual stream: every token, or with sequence parallelism a tp-th of them
    entrance  what column-parallel matrices read: every token where a stack keeps them gathered, else as the stream
    whole     every token, on every tensor rank
    split     every token, a tp-th of its numbers (or a tp-th of the tokens, which are as many numbers)
    sent      the copies of tokens that a rank sends to experts
    copies    the copies that its experts work on
    expert    those, an etp-th of their numbers
"""

Held = Literal["whole", "split", "expert", "each expert"]
"""How ranks share parameters: every one has all; a tp-th; an etp-th of its own experts; its own experts whole."""

Half = Literal["attention", "mlp"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An activation: so many numbers for each token of a place."""

    width: float
    place: Place


@dataclass(frozen=True, slots=True)
class Gemm:
    """Matrices that read the same input, side by side in one product; backward it runs as dgrad and as wgrad."""

    inputs: int
    outputs: tuple[int, ...]
    """Output width of each matrix."""
    split: Literal["whole", "columns", "rows"]
    """What tensor ranks (of an expert its own) divide: nothing, the outputs, or the inputs."""
    _: KW_ONLY
    routed: bool = False
    """One for each routed expert, all of a rank in one grouped product."""
    router: bool = False
    """Scores experts: each tensor rank for its part of the tokens, and never in fp8."""
    from_latent: bool = False
    """Whether the product makes the heads of latent attention."""
    behind_norm: bool = False
    """Whether a norm produces the input, already cast where it can."""
    last: bool = False
    """The block ends with it: recomputation that stops early does without."""
    kept_share: float = 0.0
    """Share of it that need not run again where every other product is kept."""
    rows: float = 1.0
    """Rows of the input for each token."""
    adapter: bool = False
    """Of low rank, beside a frozen matrix: never in fp8."""
    stored_bytes: float | None = None
    """Of an element of a frozen matrix kept in fewer bits, which each product first makes 16 bits wide."""

    @property
    def width(self) -> int:
        """Outputs of all matrices together."""
        return sum(self.outputs)

    @property
    def elements(self) -> int:
        """Elements of all matrices together."""
        return self.inputs * self.width


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a block; `share` of the model's blocks have it."""

    name: str
    kind: Kind
    half: Half
    """What of a block has run backward when it is done with: the MLP's half is the first."""
    reads: Tensor
    _: KW_ONLY
    returns: Tensor | None = None
    """Its output; said of those with parameters, whose gradients may wait for it."""
    share: float = 1.0
    gemm: Gemm | None = None
    weights: Mapping[Held, float] = field(default_factory=dict)
    """Parameters of the whole model's block."""
    biased: bool = False
    """Whether a bias is added to the output."""
    flops: float = 0.0
    """Forward FLOPs of each token over all ranks; attention cores depend on the sequence (`flops`)."""
    norm: Norm | None = None
    inputs: int = 1
    """Tensors that are read, of so many numbers each: two of a gated activation, two or three of an addition."""
    shares_input: bool = False
    """Whether another operator already keeps the input."""
    shares_gradient: bool = False
    """Whether another operator holds the gradient of the output."""
    reads_core: bool = False
    """Whether the input is the output of the attention core."""
    launched: bool = True
    """False: it rides with another operator of its kind, whose kernels are counted."""
    redone_by: frozenset[SelectiveDrops] = frozenset()
    """Selective recompute policies that run it again and, but for `OUTPUTS`, drop what it keeps."""
    reads_output_of: SelectiveDrops | None = None
    """The policy, one of `OUTPUTS`, that drops what it read: the output of what the policy runs again."""
    kept: Tensor | None = None
    """Part of the output that a policy keeps which keeps every other product."""
    trained: bool = True
    """Whether the parameters have gradients and optimizer states."""
    drops_input: bool = False
    """Its input is dropped out before: a copy of its own."""


def multiply(
    name: str,
    gemm: Gemm,
    *,
    half: Half,
    reads: Place,
    bias: bool = False,
    experts: int = 1,
    passed: int = 1,
    kept: int = 0,
    **more: Any,
) -> Operator:
    """A matrix product with its bias, once for each of `experts`; a token passes through `passed` of them.

    A bias is split with the outputs. Of what tensor ranks add up each of them has all, and adds it once.
    """
    split: Held = "expert" if gemm.routed else "split"
    whole: Held = "each expert" if gemm.routed else "whole"
    weights: dict[Held, float] = {split: 0.0, whole: 0.0}
    weights[whole if gemm.split == "whole" else split] += experts * gemm.elements
    weights[split if gemm.split == "columns" else whole] += experts * gemm.width * bias
    # the output is split, or before ranks add up their parts whole on each of them
    place: Place = "copies" if gemm.routed else "whole"
    if gemm.router or gemm.split == "columns":
        place = "expert" if gemm.routed else "split"
    return Operator(
        name,
        "gemm",
        half,
        Tensor(gemm.rows * gemm.inputs, reads),
        gemm=gemm,
        returns=Tensor(gemm.rows * gemm.width, place),
        weights={held: count for held, count in weights.items() if count},
        flops=2.0 * passed * gemm.rows * gemm.elements,
        biased=bias,
        kept=Tensor(kept, place) if kept else None,
        **more,
    )


Key = TypeVar("Key", Place, Held)
Amount = Mapping[Place, float]
"""Place → amount for each of its tokens."""


def added(amounts: Iterable[tuple[float, Mapping[Key, float]]]) -> dict[Key, float]:
    """Weighted sum of amounts by place, or of parameters by sharing."""
    total: dict[Key, float] = {}
    for times, amount in amounts:
        for key, value in amount.items():
            total[key] = total.get(key, 0.0) + times * value
    return total


def on_rank(question: Question, columns: LayoutColumns, amount: Amount) -> Array:
    """(N,) what a rank has of an amount, for one microbatch."""
    total = np.zeros(len(columns))
    for place, value in amount.items():
        if value:
            total = total + value * tokens_on_rank(question, columns, place)
    return total


def tokens_on_rank(question: Question, columns: LayoutColumns, place: Place) -> Array:
    """(N,) tokens of a microbatch (or parts of tokens, or copies) that a rank has of a place."""
    tokens = columns.tokens(question.training.sequence_length)
    if place == "whole" or (place == "entrance" and question.stack.saves_gathered_activations):
        return tokens
    if place in ("stream", "entrance"):
        return tokens / np.where(columns.sp == 1, columns.tp, 1)
    if place == "split":
        return tokens / columns.tp
    sent = tokens * question.model.experts_per_token / columns.tp
    if place == "sent":
        return sent
    return sent * columns.etp if place == "copies" else sent * columns.etp / columns.etp


def handed_on(question: Question, columns: LayoutColumns) -> Array:
    """(N,) numbers that go from stage to stage, before tensor ranks split them: of tokens; of two stacks those of both;
    of a vision tower and its decoder those of which there are more; with what modulates an image, of diffusion."""
    model, training = question.model, question.training
    numbers = columns.tokens(training.sequence_length) * (1.0 + model.source_share) * model.hidden_size
    if model.diffusion is not None:
        numbers = numbers * (1.0 + 1.0 / model.diffusion.tokens)
    tower = None if question.full_model is None else question.full_model.tower
    if tower is None:
        return numbers
    of_images = columns.mbs * (training.images or 1) * tower.tokens * tower.hidden_size
    return np.maximum(numbers, of_images)


def held_on_rank(counts: Mapping[Held, float], tp: Ints, ep: Ints | int, etp: Ints) -> tuple[Array, Array]:
    """(N,) each: parameters of a rank, and those of its routed experts."""
    split, expert = counts.get("split", 0.0), counts.get("expert", 0.0)
    return (split / tp + counts.get("whole", 0.0), (expert / etp + counts.get("each expert", 0.0)) / ep)
