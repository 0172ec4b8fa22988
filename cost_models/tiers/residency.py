"""Sums over the blocks of a rank whose states live in different places: so much a block, and so much a rank.

A rank of n blocks, c_r of them with residency r and all others with residency o, costs

    n · v_o + Σ_r c_r (v_r − v_o)

where v is what one block costs: affine in n, as every coefficient of `pipeline.stage_costs` must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload import RESIDENCIES, counted_blocks, named_blocks, offloads
from cost_models.axes.rule import Bools
from cost_models.axes.words import EVERY
from cost_models.operators.parameters import parameters
from cost_models.question import Question

Array = npt.NDArray[np.float64]
ValueOf = Callable[[str], Array]
"""What a block with one of the residencies, or `resident`, costs: (N,)."""
BytesOf = Callable[[str, bool], Array]
"""What a parameter with one of the residencies, or `resident`, takes; of routed experts or of everything else: (N,)."""

RESIDENT = "resident"


class Affine(NamedTuple):
    """Of a rank: `layer` times its blocks, and `rank` besides; (N,) each."""

    layer: Array
    rank: Array


def over_residencies(columns: LayoutColumns, value_of: ValueOf) -> Affine:
    """The sum over a rank's blocks, each with the residency that its layout gives it."""
    layer = value_of(RESIDENT)
    rank = np.zeros(len(columns))
    if not offloads(columns).any():
        return Affine(layer, rank)
    values = {part: value_of(part) for part in RESIDENCIES}
    for part, value in values.items():
        layer = np.where(rest_is(columns, part), value, layer)
    for part, value in values.items():
        rank = rank + counted_blocks(columns, part) * (value - layer)
    return Affine(layer, rank)


def of_fullest_rank(question: Question, columns: LayoutColumns, bytes_of: BytesOf) -> Array:
    """(N,) of the rank that holds most: blocks spread evenly, with the larger of embedding and head beside them where
    these live as blocks do."""
    blocks = -(-question.model.num_layers // columns.pp)
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    modules = [(counts.block, False)]
    if question.model.has_experts:
        modules.append((counts.experts, True))
    rank = np.zeros(len(columns))
    for size, experts in modules:
        of = {part: bytes_of(part, experts) for part in (RESIDENT, *RESIDENCIES)}
        layer, besides = over_residencies(columns, of.__getitem__)
        rank = rank + (blocks * layer + besides) * size
    if question.stack.offloads_ends:
        ends, _ = over_residencies(columns, lambda part: bytes_of(part, False))
        rank = rank + end_parameters(question, columns) * ends
    return rank


def parameters_by_residency(
    question: Question, columns: LayoutColumns
) -> Iterator[tuple[bool, dict[str, Array]]]:
    """(whether of routed experts, residency → (N,) parameters of a rank that has an even share of the blocks); those of
    the ends that live as blocks do are among the others'."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    blocks = question.model.num_layers / columns.pp
    of = {part: held(columns, part, blocks) * counts.block for part in RESIDENCIES}
    if question.stack.offloads_ends:
        ends = end_parameters(question, columns)
        of = {part: own + rest_is(columns, part) * ends for part, own in of.items()}
    yield False, of
    if question.model.has_experts:
        yield True, {part: held(columns, part, blocks) * counts.experts for part in RESIDENCIES}


def held(columns: LayoutColumns, part: str, blocks: Array) -> Array:
    """(N,) blocks with a residency, of a rank that has so many."""
    left: Array = np.where(
        rest_is(columns, part), blocks - named_blocks(columns), counted_blocks(columns, part)
    )
    return left


def rest_is(columns: LayoutColumns, part: str) -> Bools:
    """(N,): whether all blocks that no count names have a residency, or their activations in host memory."""
    every: Bools = getattr(columns, f"offload_{part}") >= EVERY
    return every


def end_parameters(question: Question, columns: LayoutColumns) -> Array:
    """(N,) parameters of embedding and head on the rank that has most of them."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    tied = question.model.tied_embeddings & (columns.pp == 1)
    head = counts.head_vectors + np.where(tied, 0.0, counts.head_matrix)
    ends: Array = np.where(columns.pp == 1, counts.embedding + head, np.maximum(counts.embedding, head))
    return ends
