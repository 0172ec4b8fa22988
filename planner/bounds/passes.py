"""Pieces of a step in seconds, the shortest step that they allow under any schedule, and whether memory holds the
blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.pipeline.stage_costs import StageCosts
from planner.placement.rank_costs import count_fitting
from planner.space.layouts import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPieces:
    """Pieces of a step, seconds (N,) each."""

    forward: Array
    """Forward pass of the mean block for one microbatch."""
    backward: Array
    """Backward pass of the mean block under the fastest policy."""
    of_kinds: Array
    """Forward plus backward pass of a block of each kind, (N, K); likewise `embedding` and `head`."""
    lightest_forward: Array
    lightest_backward: Array
    embedding: Array
    head: Array
    deferrable_weight_seconds: Array
    """Weight halves of a split backward pass, over all blocks, embedding and head: they may run at other times."""
    stage_forward: Array
    stage_backward: Array
    p2p: Array
    tail_seconds: Array
    """Seconds after the last backward pass."""

    def rows(self, index: Ints) -> StepPieces:
        """Pieces of selected rows."""
        return StepPieces(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def step_pieces(space: Space, pp: Ints, costs: StageCosts, allowed: Bools) -> StepPieces:
    """Pieces of a step at these costs."""
    layers, kinds, x, by_kind = space.question.model.num_layers, space.question.kinds, costs, costs.each_kind
    backward = [np.where(allowed, cost.layer_backward, np.inf).min(axis=1) for cost in by_kind]
    seconds_of_kinds = [cost.layer_forward + up for cost, up in zip(by_kind, backward, strict=True)]
    update = kinds.of_fullest(pp, [cost.layer_optimizer for cost in by_kind])
    return StepPieces(
        forward=x.layer_forward,
        backward=kinds.mean(backward),
        of_kinds=np.stack(seconds_of_kinds, axis=-1),
        lightest_forward=x.lightest.layer_forward,
        lightest_backward=np.min(backward, axis=0),
        embedding=x.embedding_forward + x.embedding_backward,
        head=x.head_forward + x.head_backward,
        deferrable_weight_seconds=layers * x.layer_weight + x.head_weight + x.embedding_backward,
        stage_forward=x.stage_forward,
        stage_backward=x.stage_backward,
        p2p=x.p2p,
        tail_seconds=x.rank_sync + x.rank_optimizer + update + x.step_overhead,
    )


def shortest_steps(space: Space, cores: Ints, pieces: StepPieces) -> Array:
    """Lower bound of the step of each core under any schedule, seconds (N,).

    All work is shared by pp ranks, and rank r waits r passes of the shortest chunk before its first action:

        step ≥ (m · work + (pp − 1) pp / 2 · shortest chunk and transfer) / pp + what follows

    Blocks are whole, so some rank has ⌈blocks / pp⌉ of them, of one kind if they are of several, for every microbatch:

        step ≥ m · (⌈blocks / pp⌉ · block + stage) + what follows

    A microbatch goes down all stages and up again, and the other_way pass the first stage besides:

        step ≥ all blocks + (m − 1) · shortest chunk + what follows

    Where a pipeline may have more stages than blocks, the first chunk of rank 0 may be without one.

    A pass is one forward and one back; where a schedule of the space splits backward passes, only the part towards the
    input counts of it, or nothing.
    """
    layers, x, pp = space.question.model.num_layers, pieces, space.cores.pp[cores]
    m = space.microbatches[cores]
    block, stage = x.forward + x.backward, x.stage_forward + x.stage_backward
    blocks = layers * block + x.embedding + x.head
    forward, backward = x.stage_forward + x.lightest_forward, x.stage_backward + x.lightest_backward
    empty = space.may_start_empty[cores]
    first, back = np.where(empty, x.stage_forward, forward), np.where(empty, x.stage_backward, backward)
    way, missing, serial, other_way = forward + x.p2p, forward - first, blocks, first
    if space.splits_backward:
        serial = serial - x.deferrable_weight_seconds
    else:
        way, missing, other_way = way + backward + x.p2p, missing + backward - back, np.maximum(first, back)
    shared = m * (blocks + pp * stage) / pp + (pp - 1) / 2 * way - (pp - 1) / pp * missing
    fullest = m * (space.question.kinds.of_fullest(pp, list(x.of_kinds.T)) + stage)
    longest = np.maximum(np.maximum(shared, fullest), serial + (m - 1) * other_way)
    return longest + x.tail_seconds


MEMORY_TERMS = ("static", "layer_static", "layer_activation", "head_static", "working")
"""Coefficients of memory that decide whether all blocks find room."""


def may_hold_blocks(
    space: Space, cores: Ints, by_kind: Sequence[Mapping[str, Array]], limit: Array, allowed: Bools
) -> Bools:
    """Whether the ranks have memory for all blocks with one microbatch each, (N,): every schedule has such a moment.

    No rank holds less than those in the middle of a 1F1B pipeline but the last, which may: it sends nothing on. All
    blocks must fit if they are as light as those of any kind, and those of each kind alone.
    """
    lightest = {name: np.min([own[name] for own in by_kind], axis=0) for name in MEMORY_TERMS}
    single_kinds = zip(by_kind, space.question.kinds.counts, strict=True) if len(by_kind) > 1 else ()
    fits = np.ones(len(cores), dtype=np.bool_)
    for x, blocks in ((lightest, space.question.model.num_layers), *single_kinds):
        activation = np.where(allowed, x["layer_activation"], np.inf).min(axis=1)
        working = np.where(allowed, x["working"], np.inf).min(axis=1)
        free, block = limit - x["static"] - working, x["layer_static"] + activation
        middle_blocks = np.minimum(count_fitting(free, block), blocks)  # blocks may leave nothing behind
        last_blocks = count_fitting(free - np.minimum(x["head_static"], 0.0), block)
        fits &= (space.cores.pp[cores] - 1) * middle_blocks + last_blocks >= blocks
    return fits
