"""Records of a block's operators (inputs, products, parameters, outputs), and sums over them on one rank.

All facts about a block are sums over its operators (`block.block_operators`): parameters, FLOPs, GEMMs, bytes moved,
bytes kept for the backward pass, gradients that wait for its half towards the weights. The cost of an operator is first
a number for each token of a place (or for each parameter that ranks share in some way), whatever the layout; these are
added up, and only their few sums meet the columns of many layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.question import Question
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.transformer import Norm

StreamKind = Literal["norm", "residual", "dropout", "modulation"]
MixerKind = Literal["rotary", "core", "convolution", "scan", "gating"]
Kind = Literal["gemm", "activation", "gate", "routing", "adapter", StreamKind, MixerKind]
"""Kinds of operators; modules on time and memory define the seconds and the kept bytes of each kind."""

Place = Literal["stream", "entrance", "whole", "split", "sent", "copies", "expert"]
"""Sharding of an activation: the tokens that a rank holds, and its part of their elements (counted by
`tokens_on_rank`):

    stream    the residual stream: every token, or with sequence parallelism a tp-th of them
    entrance  inputs of column-parallel matrices: every token if a stack keeps them gathered, else as the stream
    whole     every token, on every tensor rank
    split     every token, a tp-th of its elements (or a tp-th of the tokens, which have as many elements)
    sent      the copies of tokens that a rank sends to experts
    copies    the copies that its experts process
    expert    the copies that its experts process, an etp-th of their elements
"""

Sharing = Literal["whole", "split", "expert", "each expert"]
"""Sharding of parameters: all on each rank (whole); a tp-th (split); an etp-th of the rank's experts
(expert); the rank's experts entire (each expert)."""

Half = Literal["attention", "mlp"]


class Tensor(NamedTuple):
    """Activation tensor with `width` elements per token; `place` says which tokens, or parts of tokens, a
    rank has."""

    width: float
    place: Place


@dataclass(frozen=True, slots=True)
class Gemm:
    """Matrix product with one matrix, or with several side by side that read the same input. Backward it runs
    as dgrad and as wgrad."""

    inputs: int
    outputs: tuple[int, ...]
    """Output width of each matrix."""
    split: Literal["whole", "columns", "rows"]
    """Dimension divided among tensor-parallel ranks (or the ranks of an expert): none, the outputs (columns),
    or the inputs (rows)."""
    names: tuple[str, ...] = ()
    """Usual name of each matrix, by which fine-tuning targets it; empty if the product takes no adapters."""
    _: KW_ONLY
    routed: bool = False
    """Whether each routed expert has such matrices. One grouped product then covers all experts of a rank."""
    experts: int = 1
    """Number of routed experts with such matrices. 1 if the product is not routed."""
    passed: int = 1
    """Number of routed experts that a token passes through. 1 if the product is not routed."""
    router: bool = False
    """Whether the product scores experts. Each tensor rank does so for its part of the tokens, and never in
    fp8."""
    from_latent: bool = False
    """Whether the product makes heads from a latent, as in latent attention."""
    behind_norm: bool = False
    """Whether a norm produces the input, and may write the input already cast to fp8."""
    last: bool = False
    """Whether this is the last product of a block, which recomputation that stops early omits."""
    kept_share: float = 0.0
    """Share of the product's output that the policy `all-but-every-other-product` keeps instead of
    recomputing."""
    rows: float = 1.0
    """Number of rows of the input per token."""
    adapter: bool = False
    """Whether the product is a low-rank adapter of a frozen matrix: never in fp8."""
    stored_bytes: float | None = None
    """Bytes per element of a frozen matrix stored in fewer bits, which each product first widens to 16 bits.
    None: stored as in training."""

    @property
    def width(self) -> int:
        """Output width of all matrices together."""
        return sum(self.outputs)

    @property
    def elements(self) -> int:
        """Number of elements of all matrices together."""
        return self.inputs * self.width


@dataclass(frozen=True, slots=True)
class Operator:
    """Operator of a transformer block (such as a product, norm or activation), which the share `share` of the
    model's blocks have."""

    name: str
    kind: Kind
    half: Half
    """Half of a block to which the operator belongs. The MLP's half runs backward first."""
    reads: Tensor
    _: KW_ONLY
    returns: Tensor | None = None
    """Output tensor of an operator with parameters. Its gradient may wait for their weight gradients."""
    share: float = 1.0
    gemm: Gemm | None = None
    weights: Mapping[Sharing, float] = field(default_factory=dict)
    """Parameters of one block of the unsplit model, by their sharing among ranks."""
    biased: bool = False
    """Whether a bias is added to the output."""
    flops: float = 0.0
    """Forward FLOPs per token over all ranks. 0 for attention cores, whose FLOPs depend on the sequence
    (`operators.flops`)."""
    norm: Norm | None = None
    inputs: int = 1
    """Number of input tensors of the size of `reads`: two of a gated activation, two or three of an
    addition."""
    shares_input: bool = False
    """Whether another operator already keeps the input for the backward pass."""
    shares_gradient: bool = False
    """Whether another operator holds the same tensor as gradient of its output."""
    reads_core: bool = False
    """Whether the input is the output of the attention core."""
    launched: bool = True
    """Whether the operator has separate kernels. False: the kernels of another operator of the same kind
    include it."""
    redone_by: frozenset[SelectiveDrops] = frozenset()
    """Selective recompute policies that repeat the operator and, except those in `OUTPUTS`, drop the tensors
    that it keeps."""
    reads_output_of: SelectiveDrops | None = None
    """Policy of `OUTPUTS` that drops this operator's input, as the policy repeats the operator that makes the
    input. None: no such policy."""
    kept: Tensor | None = None
    """Part of the output that the policy `all-but-every-other-product` keeps. None: no part."""
    trained: bool = True
    """Whether the parameters have gradients and optimizer states."""
    drops_input: bool = False
    """Whether dropout is applied to the operator's input, which is then a separate copy."""


def multiply(
    name: str, gemm: Gemm, *, half: Half, reads: Place, bias: bool = False, kept: int = 0, **opts: Any
) -> Operator:
    """Create the operator of a matrix product and its bias; in routed experts, with the parameters of all
    experts that have such a matrix.

    A bias is split with the outputs. If tensor ranks add up partial outputs, each rank has the complete bias
    and adds it once.
    """
    split: Sharing = "expert" if gemm.routed else "split"
    unsplit: Sharing = "each expert" if gemm.routed else "whole"
    weights: dict[Sharing, float] = {split: 0.0, unsplit: 0.0}
    weights[unsplit if gemm.split == "whole" else split] += gemm.experts * gemm.elements
    weights[split if gemm.split == "columns" else unsplit] += gemm.experts * gemm.width * bias
    # the output is split, or before ranks add up their parts whole on each of them
    place: Place = "copies" if gemm.routed else "whole"
    if gemm.router or gemm.split == "columns":
        place = "expert" if gemm.routed else "split"
    inputs, returned = Tensor(gemm.rows * gemm.inputs, reads), Tensor(gemm.rows * gemm.width, place)
    weights = {sharing: count for sharing, count in weights.items() if count}
    flops = 2.0 * gemm.passed * gemm.rows * gemm.elements
    outputs = Tensor(kept, place) if kept else None
    opts |= {"gemm": gemm, "returns": returned, "weights": weights, "flops": flops}
    return Operator(name, "gemm", half, inputs, biased=bias, kept=outputs, **opts)


def products_of(operators: Iterable[Operator]) -> list[tuple[Operator, Gemm]]:
    """Pairs of an operator and its matrix product, for those operators that have one."""
    return [(one, one.gemm) for one in operators if one.gemm is not None]


Key = TypeVar("Key", Place, Sharing)
Amount = Mapping[Place, float]
"""Amount (bytes, elements) per token of a place, by place (how ranks divide the tokens)."""
Weights = Mapping[Sharing, float]
"""Number of parameters (or bytes) of a block over all ranks, by their sharing among ranks."""


def sum_amounts(amounts: Iterable[tuple[float, Mapping[Key, float]]]) -> dict[Key, float]:
    """Weighted sum of mappings from keys to amounts, which are given as pairs (weight, mapping). Keys are
    places of activations, or ways of sharing parameters among ranks."""
    total: dict[Key, float] = {}
    for times, amount in amounts:
        for key, value in amount.items():
            total[key] = total.get(key, 0.0) + times * value
    return total


def on_rank(question: Question, columns: LayoutColumns, amount: Amount) -> Array:
    """Amount (bytes or elements) on a rank for one microbatch, (N,), from amounts per token for each way of
    sharding activations (place)."""
    elements = (value * tokens_on_rank(question, columns, place) for place, value in amount.items() if value)
    return sum(elements, start=np.zeros(len(columns)))


def tokens_on_rank(question: Question, columns: LayoutColumns, place: Place) -> Array:
    """Number of tokens (or of parts or copies of tokens) of one microbatch on a rank, for an activation
    sharded as `place`, (N,)."""
    tokens = columns.tokens(question.training.sequence_length)
    if place == "whole" or (place == "entrance" and question.stack.saves_gathered_activations):
        return tokens
    if place in ("stream", "entrance"):
        return tokens / np.where(columns.sp == 1, columns.tp, 1)
    if place == "split":
        return tokens / columns.tp
    sent_copies = tokens * question.model.experts_per_token / columns.tp
    copies = sent_copies if place == "sent" else sent_copies * columns.etp
    return copies / columns.etp if place == "expert" else copies


def boundary_elements(question: Question, columns: LayoutColumns) -> Array:
    """Number of elements that a pipeline stage sends to the next for one microbatch, before tensor ranks
    split them, (N,).

    In an encoder-decoder those of both stacks; with a vision tower the larger of the tower's and the
    decoder's; in diffusion including the vectors that modulate an image.
    """
    model, training = question.model, question.training
    numbers = columns.tokens(training.sequence_length) * (1.0 + model.source_share) * model.hidden_size
    if model.diffusion is not None:
        numbers = numbers * (1.0 + 1.0 / model.diffusion.tokens)
    tower = None if question.full_model is None else question.full_model.tower
    if tower is None:
        return numbers
    return np.maximum(numbers, columns.mbs * (training.images or 1) * tower.tokens * tower.hidden_size)


def parameters_on_rank(counts: Weights, tp: Ints, ep: Ints | int, etp: Ints) -> tuple[Array, Array]:
    """Number of parameters on a rank outside routed experts, and in its routed experts, (N,) each."""
    split, expert = counts.get("split", 0.0), counts.get("expert", 0.0)
    return (split / tp + counts.get("whole", 0.0), (expert / etp + counts.get("each expert", 0.0)) / ep)
