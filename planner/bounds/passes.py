"""Seconds that a step is made of, and the shortest step and least room that they allow, whatever the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.pipeline.stage_costs import StageCosts
from planner.placement.shared_shape import how_many
from planner.space.layouts import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds that a step is made of, (N,) each."""

    forward: Array
    """One block and microbatch: the mean block."""
    backward: Array
    """The same, with the fastest policy."""
    of_kinds: Array
    """(N, K): a block of each kind, both ways, as embedding and head are."""
    any_forward: Array
    any_backward: Array
    embedding: Array
    head: Array
    apart: Array
    """What a split backward pass may run at another time, of all blocks and the ends."""
    stage_forward: Array
    stage_backward: Array
    p2p: Array
    follows: Array
    """After the last pass."""

    def rows(self, index: Ints) -> Passes:
        """Those of some rows."""
        return Passes(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def passes_of(space: Space, pp: Ints, costs: StageCosts, allowed: Bools) -> Passes:
    """What costs say of them."""
    layers, x, kinds, each = space.question.model.num_layers, costs, space.question.kinds, costs.each_kind
    backward = [np.where(allowed, one.layer_backward, np.inf).min(axis=1) for one in each]
    both = [one.layer_forward + up for one, up in zip(each, backward, strict=True)]
    update = kinds.of_fullest(pp, [one.layer_optimizer for one in each])
    return Passes(
        forward=x.layer_forward,
        backward=kinds.mean(backward),
        of_kinds=np.stack(both, axis=-1),
        any_forward=x.lightest.layer_forward,
        any_backward=np.min(backward, axis=0),
        embedding=x.embedding_forward + x.embedding_backward,
        head=x.head_forward + x.head_backward,
        apart=layers * x.layer_weight + x.head_weight + x.embedding_backward,
        stage_forward=x.stage_forward,
        stage_backward=x.stage_backward,
        p2p=x.p2p,
        follows=x.rank_sync + x.rank_optimizer + update + x.step_overhead,
    )


def shortest_steps(space: Space, cores: Ints, passes: Passes) -> Array:
    """(N,) seconds of a step of some cores that no schedule undercuts.

    All work is shared by pp ranks, and rank r waits r passes of the shortest chunk before its first action:

        step ≥ (m · work + (pp − 1) pp / 2 · shortest chunk and transfer) / pp + what follows

    Blocks are whole, so some rank has ⌈blocks / pp⌉ of them, of one kind if they are of several, for every microbatch:

        step ≥ m · (⌈blocks / pp⌉ · block + stage) + what follows

    A microbatch goes down all stages and up again, and the others pass the first stage besides:

        step ≥ all blocks + (m − 1) · shortest chunk + what follows

    Where a pipeline may have more stages than blocks, the first chunk of rank 0 may be without one.

    A pass is one forward and one back; where a schedule of the space splits backward passes, only the part towards the
    input counts of it, or nothing.
    """
    layers, x, pp = space.question.model.num_layers, passes, space.cores.pp[cores]
    m = space.microbatches[cores]
    block, stage = x.forward + x.backward, x.stage_forward + x.stage_backward
    blocks = layers * block + x.embedding + x.head
    forward, backward, alone = x.stage_forward + x.any_forward, x.stage_backward + x.any_backward, blocks
    empty = space.may_start_empty[cores]
    first, back = np.where(empty, x.stage_forward, forward), np.where(empty, x.stage_backward, backward)
    way, missing, others = forward + x.p2p, forward - first, first
    if space.splits_backward:
        alone = alone - x.apart
    else:
        way, missing, others = way + backward + x.p2p, missing + backward - back, np.maximum(first, back)
    shared = m * (blocks + pp * stage) / pp + (pp - 1) / 2 * way - (pp - 1) / pp * missing
    whole = m * (space.question.kinds.of_fullest(pp, list(x.of_kinds.T)) + stage)
    longest = np.maximum(np.maximum(shared, whole), alone + (m - 1) * others)
    return longest + x.follows


ROOM = ("static", "layer_static", "layer_activation", "head_static", "working")
"""Coefficients of memory that decide whether all blocks find room."""


def fits_of(
    space: Space, cores: Ints, each: Sequence[Mapping[str, Array]], limit: Array, allowed: Bools
) -> Bools:
    """(N,): whether the ranks hold all blocks, each with a microbatch of its own: every schedule has such a moment.

    No rank holds less than those in the middle of a 1F1B pipeline but the last, which may: it sends nothing on. All
    blocks must fit if they are as light as those of any kind, and those of each kind alone.
    """
    light = {name: np.min([own[name] for own in each], axis=0) for name in ROOM}
    alone = zip(each, space.question.kinds.counts, strict=True) if len(each) > 1 else ()
    fits = np.ones(len(cores), dtype=np.bool_)
    for x, blocks in ((light, space.question.model.num_layers), *alone):
        kept = np.where(allowed, x["layer_activation"], np.inf).min(axis=1)
        working = np.where(allowed, x["working"], np.inf).min(axis=1)
        free, block = limit - x["static"] - working, x["layer_static"] + kept
        others = np.minimum(how_many(free, block), blocks)  # blocks may leave nothing behind
        last = how_many(free - np.minimum(x["head_static"], 0.0), block)
        fits &= (space.cores.pp[cores] - 1) * others + last >= blocks
    return fits
