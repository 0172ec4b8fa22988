"""Families of models: one shape at every size, deeper, wider or for longer sequences by one step after another.

By depth a size is a number of blocks of the family's base. By width it is a multiple of the width of a head, with as
many blocks as the ladder that was published has at that width (in between and beyond in proportion), and an MLP as wide
beside the model as the base's. By sequence the model stays, and a size is so many tokens of every sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Literal, get_args

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.base import MAX_LAYERS
from cost_models.files import catalog
from cost_models.operators.parameters import total_parameters
from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec
from planner.placement.chunks import MOST_SMALLER
from planner.space.axes import divisors

By = Literal["depth", "width", "sequence"]
"""Dimension that grows from size to size."""
WAYS: tuple[By, ...] = get_args(By)
MLP_MULTIPLE = 256
"""Multiple to which the width of a gated MLP is rounded up (Touvron et al. 2023, the released code)."""
MAX_HEADS = 1024
"""Largest size by width, in heads."""
_PIECES = 2
"""Maximum number of pieces of a context rank's tokens, which give causal attention equal work."""
_FP8_SIDE = 16
"""Divisor of a rank's tokens, and of its columns of an MLP, with products in fp8."""
SEQUENCE_STEP = 256
"""Tokens by which sequences grow."""
MAX_SEQUENCE = 2**24
"""The longest sequence, in tokens, of positions that are not learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """Catalogue models that define a family."""

    base: str
    """Model whose shape the family has."""
    published: tuple[str, ...]
    """Models whose widths and depths its sizes by width follow, narrowest first."""


LADDERS: dict[str, Ladder] = {
    "llama": Ladder(
        base="llama2-7b",
        published=(
            "llama3.2-1b",
            "llama3.2-3b",
            "llama-7b",
            "llama-13b",
            "llama-30b",
            "llama-65b",
            "llama3.1-405b",
        ),
    ),
    "gpt": Ladder(
        base="megatron-7.5b",
        published=(
            "megatron-1.7b",
            "megatron-3.6b",
            "megatron-7.5b",
            "megatron-18b",
            "megatron-39b",
            "megatron-76b",
            "megatron-145b",
            "megatron-310b",
            "megatron-1t",
        ),
    ),
}


@dataclass(frozen=True)
class Family:
    """A model at every size; sizes are counted from 1."""

    name: str
    base: TransformerSpec
    by: By
    published: tuple[str, ...] = ()

    @property
    def largest_size(self) -> int:
        """Largest size of the family."""
        if self.by == "sequence":
            learned = self.base.positions == "learned"
            return (self.base.max_positions if learned else MAX_SEQUENCE) // SEQUENCE_STEP
        return MAX_LAYERS if self.by == "depth" else MAX_HEADS

    @property
    def base_size(self) -> int:
        """Size of the base model."""
        if self.by == "sequence":
            return max(1, min(self.largest_size, self.base.max_positions // SEQUENCE_STEP))
        return self.base.num_layers if self.by == "depth" else self.base.hidden_size // self.base.head_dim

    def sequence(self, size: int) -> int | None:
        """Tokens of a sequence at a size; None where the model grows instead."""
        return size * SEQUENCE_STEP if self.by == "sequence" else None

    def question_of_size(self, question: Question, size: int) -> Question:
        """The question at one size of the family."""
        if (length := self.sequence(size)) is None:
            return replace(question, model=self.model(size))
        return replace(question, training=question.training.model_copy(update={"sequence_length": length}))

    @cached_property
    def _measures(self) -> tuple[Ints, Ints, Ints]:
        """Quantities of every size that degrees must divide, (N,) each: tokens of a sequence or heads, MLP width, and
        blocks; zeros where a quantity does not grow."""
        size = np.arange(1, self.largest_size + 1)
        if self.by == "sequence":
            return size * SEQUENCE_STEP, 0 * size, 0 * size
        if self.by == "depth":
            return 0 * size, 0 * size, size
        widths = size * self.base.head_dim
        inner = np.array([self._inner(width) for width in widths.tolist()])
        return size, inner, np.array([self._layers(width) for width in widths.tolist()])

    def divisible_sizes(self, question: Question) -> Iterator[Bools]:
        """Sizes that a set of degrees divides, (N,), for every set that the GPUs allow: a layout that is legal at one
        of these sizes is legal at every smaller one, with no more memory."""
        tokens_N, inner_N, layers_N = self._measures
        gpus, side = question.cluster.num_gpus, _FP8_SIDE if question.training.precision == "fp8" else 1
        tokens = _PIECES * side * gpus if self.by == "sequence" else gpus
        splits = divisors(tokens) if tokens_N.any() else [1]
        inner_splits = divisors(side * gpus) if inner_N.any() else [1]
        stages = [1, *(2 * pp for pp in divisors(gpus) if pp > 1 and layers_N.any())]
        for split, inner, chunks in product(splits, inner_splits, stages):
            yield (tokens_N % split == 0) & (inner_N % inner == 0) & (-layers_N % chunks <= MOST_SMALLER)

    @cached_property
    def _shapes(self) -> tuple[list[int], list[int]]:
        """Published widths and depths."""
        models = [catalog.load_model(name) for name in self.published]
        return [model.hidden_size for model in models], [model.num_layers for model in models]

    def model(self, size: int) -> TransformerSpec:
        """The model of a size."""
        if self.by == "sequence":
            return self.base
        layers, hidden = size, self.base.hidden_size
        if self.by == "width":
            hidden = size * self.base.head_dim
            layers = self._layers(hidden)
        base = self.base
        fields = base.model_dump(mode="json") | {
            "name": f"{self.name}-{layers}x{hidden}",
            "num_layers": layers,
        }
        if self.by == "width":
            heads = {"hidden_size": hidden, "num_heads": size, "ffn_hidden_size": self._inner(hidden)}
            fields |= heads | {"num_kv_heads": max(1, size * base.num_kv_heads // base.num_heads)}
        if base.has_experts:
            fields["num_moe_layers"] = max(0, layers - (base.num_layers - base.num_moe_layers))
        return TransformerSpec.model_validate(fields)

    def parameters(self, size: int) -> int:
        """Parameters of the model of a size."""
        return total_parameters(self.model(size))

    def _inner(self, hidden: int) -> int:
        unit = MLP_MULTIPLE if self.base.gated_mlp else 1
        inner = round(self.base.ffn_hidden_size / self.base.hidden_size * hidden)
        return -(-inner // unit) * unit

    def _layers(self, hidden: int) -> int:
        widths, depths = self._shapes
        if hidden <= widths[0]:
            return max(1, round(depths[0] * hidden / widths[0]))
        if hidden >= widths[-1]:
            return round(depths[-1] * hidden / widths[-1])
        return round(float(np.interp(hidden, widths, depths)))


def family_named(name: str, by: By) -> Family | None:
    """Family of the registry; None if unknown."""
    ladder = LADDERS.get(name)
    if ladder is None:
        return None
    return Family(name=name, base=catalog.load_model(ladder.base), by=by, published=ladder.published)
