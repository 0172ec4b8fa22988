"""Where the blocks of a rank live, and sums over them: so much a block, and so much a rank.

A rank of n blocks, c_r of them with residency r and all others with residency o, costs

    n · v_o + Σ_r c_r (v_r − v_o)

where v is what one block costs: affine in n, as every coefficient of `pipeline.stage_costs` must be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import RESIDENCIES, Layout
from cost_models.axes.offload import counted_blocks, named_blocks, offloads
from cost_models.axes.words import EVERY
from cost_models.memory.states import Held
from cost_models.operators.parameters import parameters
from cost_models.question import Question

ValueOf = Callable[[str], Array]
"""What a block with one of the residencies, or `resident`, costs: (N,)."""
BytesOf = Callable[[str, bool], Array]
"""What a parameter with one of the residencies, or `resident`, takes; of routed experts or of everything else: (N,)."""

Residency = Literal["resident", "states", "parked", "streamed"]
RESIDENT: Residency
STATES: Residency
PARKED: Residency
STREAMED: Residency
RESIDENT, STATES, PARKED, STREAMED = get_args(Residency)


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
    return np.where(rest_is(columns, part), blocks - named_blocks(columns), counted_blocks(columns, part))


def rest_is(columns: LayoutColumns, part: str) -> Bools:
    """(N,): whether all blocks that no count names have a residency, or their activations in host memory."""
    every: Bools = getattr(columns, f"offload_{part}") >= EVERY
    return every


def end_parameters(question: Question, columns: LayoutColumns) -> Array:
    """(N,) parameters of embedding and head on the rank that has most of them."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    tied = question.model.tied_embeddings & (columns.pp == 1)
    head = counts.head_vectors + np.where(tied, 0.0, counts.head_matrix)
    return np.where(columns.pp == 1, counts.embedding + head, np.maximum(counts.embedding, head))


def residencies(layout: Layout, blocks: int) -> list[Residency]:
    """Residency of each of a rank's blocks, in model order: those that stay first, which are wanted first.

    A rank with fewer blocks than counts name, in a pipeline of uneven stages, has the last of them.
    """
    counts: dict[Residency, int] = {
        part: getattr(layout.offload, part) for part in (STATES, PARKED, STREAMED)
    }
    named = sum(count for count in counts.values() if count < EVERY)
    left = max(0, blocks - named)
    every = [part for part, count in counts.items() if count >= EVERY]
    lives: list[Residency] = [RESIDENT] * (0 if every else left)
    for part, count in counts.items():
        lives += [part] * (left if count >= EVERY else count)
    return lives[len(lives) - blocks :]


def blocks_of_stages(layout: Layout, stages: Sequence[int]) -> dict[int, list[int]]:
    """Virtual stage → its blocks by their place in the model."""
    return {
        stage: list(range(sum(layout.layers[:stage]), sum(layout.layers[: stage + 1]))) for stage in stages
    }


def residency_of_blocks(layout: Layout, stages: Sequence[int]) -> dict[int, Residency]:
    """Block by its place in the model → where it lives, for the blocks of one rank's virtual stages."""
    blocks = [block for held in blocks_of_stages(layout, stages).values() for block in held]
    return dict(zip(blocks, residencies(layout, len(blocks)), strict=True))


def held_on_device(question: Question, columns: LayoutColumns, residency: str) -> Held:
    """What the device holds of the states of a block with a residency.

    Where the CPU updates them, sharded gradients leave the device as they are reduced (Ren et al. 2021, ZeRO-Offload).
    Streamed blocks keep nothing there: their buffers are the ring's (`price`). Whatever the residency, gradients that
    are not scattered before the last microbatch wait for it on the device.
    """
    streamed = residency == "streamed"
    leave = streamed | ((residency == "states") & gradients_leave(question, columns))
    return Held(
        optimizer=1.0 if residency == RESIDENT else 0.0,
        weights=0.0 if streamed else 1.0,
        gradients=np.where(leave & ~gradients_wait(question, columns), 0.0, 1.0),
        reduced=np.where(leave, 0.0, 1.0),
    )


def gradients_wait(question: Question, columns: LayoutColumns) -> Bools:
    """(N,): whether gradients of several microbatches add up whole on the device before ZeRO-2 or 3 scatters them."""
    several = columns.microbatches(question.training.global_batch) > 1
    return (
        question.stack.unsharded_gradients_until_sync & (columns.zero >= 2) & (columns.replicas > 1) & several
    )


def gradients_leave(question: Question, columns: LayoutColumns) -> Bools:
    """(N,): whether gradients of blocks whose states are on the host go there as they are made."""
    leaves: Bools = (columns.zero >= 2) | (question.stack.offloads_gradients & (columns.replicas == 1))
    return leaves
