"""Lower bounds of cores, for any ZeRO stage, shards and schedule: ideal, then relaxed.

    ideal     compute and tensor-parallel communication under the fastest recompute policy, for the tensor group with
              the fastest links, wherever the rest of the layout is
    relaxed   all passes without replicas of the parameters, and for each coefficient the memory of the best ZeRO stage

Both add up pieces of a step in seconds, take the shortest step that these allow under any schedule, and check
whether memory holds the blocks. They are parts of the terms that price a layout, and leave most layouts
unpriced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints, least_allowed
from cost_models.axes.columns import LayoutColumns, first_of_each
from cost_models.axes.offload.residency import offloads
from cost_models.memory.device import memory_limit
from cost_models.pipeline.seconds import Term, Terms, block_update_seconds, jitter_share, sum_of_parts
from cost_models.pipeline.stage_costs import (
    StageCosts,
    add_up,
    costs_by_kind,
    memory_terms,
    terms_by_kind,
    time_terms,
)
from cost_models.risk import weigh
from planner.bounds.boxes import some_allowed
from planner.placement.rank_costs import count_fitting
from planner.space.axes import columns_that_affect
from planner.space.space import Space


class StepPieces(NamedTuple):
    """Parts of the step time, seconds (N,) each, from which a lower bound under any schedule is computed."""

    blocks: Array
    """Passes of all blocks, under the fastest policy, of embedding and of head."""
    of_kinds: Array
    """Forward plus backward pass of a block of each kind, (N, K)."""
    forward: Array
    """Forward pass of a stage with a block of the lightest kind; likewise `backward`."""
    backward: Array
    deferrable_weight_seconds: Array
    """Weight halves of a split backward pass, over all blocks, embedding and head: they may run at other times."""
    stage_forward: Array
    stage_backward: Array
    p2p: Array
    tail_seconds: Array
    """Seconds after the last backward pass."""

    def rows(self, index: Ints) -> StepPieces:
        """Subset of the step parts at the given indices."""
        return StepPieces(*(value[index] for value in self))


def step_pieces(space: Space, pp: Ints, costs: StageCosts, allowed: Bools) -> StepPieces:
    """Parts of the step time, seconds (N,) each, from the costs of stages and blocks under the allowed
    recompute policies."""
    layers, kinds, x, by_kind = space.question.model.num_layers, space.question.kinds, costs, costs.each_kind
    backward = [least_allowed(cost.layer_backward, allowed) for cost in by_kind]
    seconds_of_kinds = [cost.layer_forward + up for cost, up in zip(by_kind, backward, strict=True)]
    update = kinds.lower_bound_of_fullest_rank(pp, [cost.layer_optimizer for cost in by_kind])
    return StepPieces(
        blocks=layers * (x.layer_forward + kinds.mean(backward))
        + (x.embedding_forward + x.embedding_backward)
        + (x.head_forward + x.head_backward),
        of_kinds=np.stack(seconds_of_kinds, axis=-1),
        forward=x.stage_forward + x.lightest.layer_forward,
        backward=x.stage_backward + np.min(backward, axis=0),
        deferrable_weight_seconds=layers * x.layer_weight + x.head_weight + x.embedding_backward,
        stage_forward=x.stage_forward,
        stage_backward=x.stage_backward,
        p2p=x.p2p,
        tail_seconds=x.rank_sync + x.rank_optimizer + update + x.step_overhead,
    )


def shortest_steps(space: Space, cores: Ints, pieces: StepPieces) -> Array:
    """Lower bound of the step of each core (layout before ZeRO stage and schedule are chosen) under any
    schedule, seconds (N,).

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
    x, pp, m = pieces, space.cores.pp[cores], space.microbatches[cores]
    stage = x.stage_forward + x.stage_backward
    empty = space.may_have_empty_stage[cores]
    first, back = np.where(empty, x.stage_forward, x.forward), np.where(empty, x.stage_backward, x.backward)
    way, missing, serial, other_way = x.forward + x.p2p, x.forward - first, x.blocks, first
    if space.splits_backward:
        serial = serial - x.deferrable_weight_seconds
    else:
        way, missing = way + x.backward + x.p2p, missing + x.backward - back
        other_way = np.maximum(first, back)
    shared = m * (x.blocks + pp * stage) / pp + (pp - 1) / 2 * way - (pp - 1) / pp * missing
    fullest = m * (space.question.kinds.lower_bound_of_fullest_rank(pp, list(x.of_kinds.T)) + stage)
    longest = np.maximum(np.maximum(shared, fullest), serial + (m - 1) * other_way)
    return longest + x.tail_seconds


MEMORY_TERMS = ("static", "layer_static", "layer_activation", "head_static", "working")
"""Coefficients of memory that decide whether all blocks find room."""


def may_hold_blocks(
    space: Space, cores: Ints, by_kind: Sequence[Mapping[str, Array]], limit: Array, allowed: Bools
) -> Bools:
    """For each core (layout before ZeRO stage and schedule are chosen), whether the ranks may have memory for
    all blocks with one microbatch each, (N,); every schedule has such a moment.

    No rank holds less than those in the middle of a 1F1B pipeline but the last, which may: it sends nothing on. All
    blocks must fit if they are as light as those of any kind, and those of each kind alone.
    """
    lightest = {name: np.min([own[name] for own in by_kind], axis=0) for name in MEMORY_TERMS}
    single_kinds = zip(by_kind, space.question.kinds.counts, strict=True) if len(by_kind) > 1 else ()
    fits = np.ones(len(cores), dtype=np.bool_)
    for x, blocks in ((lightest, space.question.model.num_layers), *single_kinds):
        activation = least_allowed(x["layer_activation"], allowed)
        working = least_allowed(x["working"], allowed)
        free, block = limit - x["static"] - working, x["layer_static"] + activation
        middle_blocks = np.minimum(count_fitting(free, block), blocks)  # blocks may need no memory
        last_blocks = count_fitting(free - np.minimum(x["head_static"], 0.0), block)
        fits &= (space.cores.pp[cores] - 1) * middle_blocks + last_blocks >= blocks
    return fits


def ideal_seconds(space: Space, allowed: Bools) -> Array:
    """Lower bound of the step of every core (layout before ZeRO stage and schedule are chosen) from compute and
    tensor-parallel communication alone, seconds (N,). The bound is remembered in the space."""
    bounds = _remembered(space, ("ideal",), allowed)
    if np.isnan(bounds).any():
        bounds[:] = _weighed_bounds(space, lambda scenario: _ideal_seconds(scenario, allowed))
    return bounds


def best_known_bounds(space: Space, allowed: Bools) -> Array:
    """Highest lower bound of the step computed so far for every core (layout before ZeRO stage and schedule are
    chosen), seconds (N,), whatever memory devices have."""
    return np.fmax(ideal_seconds(space, allowed), _remembered(space, _RELAXED, allowed))


def known_infeasible(space: Space, allowed: Bools, max_memory: float | None) -> Bools:
    """For each core (layout before ZeRO stage and schedule are chosen), whether an earlier check proved that
    nothing fits within `max_memory`, (N,)."""
    infeasible: Bools = _remembered(space, _fits_within(space, max_memory), allowed) == 0
    return infeasible


_RELAXED = ("relaxed",)


def _fits_within(space: Space, max_memory: float | None) -> tuple[object, ...]:
    return "fits", space.question.confidence, max_memory


def _remembered(space: Space, name: tuple[object, ...], allowed: Bools) -> Array:
    """Array stored under a name with a value for every core (layout before ZeRO stage and schedule are chosen)
    under the given policies, (N,), NaN where not computed yet."""
    values: Array = space.memo.setdefault((*name, allowed.tobytes()), np.full(len(space.cores), np.nan))
    return values


def _weighed_bounds(space: Space, bound: Callable[[Space], Array]) -> Array:
    """Lower bounds of the step of all cores of a search space, seconds (N,); with hardware scenarios, the
    bounds in each are weighed by the risk preference, as step times are."""
    if not space.in_scenarios:
        return bound(space)
    return weigh(np.stack([bound(scenario) for scenario in space.in_scenarios]), space.question.risk)


def _ideal_seconds(space: Space, allowed: Bools) -> Array:
    if "ideal costs" not in space.memo:
        space.memo["ideal costs"] = _ideal_costs(space)
    pp, costs, kind = space.memo["ideal costs"]
    pieces = step_pieces(space, pp, costs, allowed).rows(kind)
    return shortest_steps(space, np.arange(len(space.cores)), pieces)


def _ideal_costs(space: Space) -> tuple[Ints, StageCosts, Ints]:
    """Number of pipeline ranks and ideal costs for each kind of core, and the index of the kind of each core,
    (N,)."""
    question, cores = space.question, space.cores
    _, kind = first_of_each([getattr(cores, name) for name in columns_that_affect("blocks")])
    representative = np.empty(int(kind.max(initial=-1)) + 1, dtype=np.int64)
    most_first = np.argsort(-space.microbatches, kind="stable")
    # gradients are added up least often where microbatches are few
    representative[kind[most_first]] = most_first
    rows = cores.rows(representative)
    rows = replace(rows, zero=np.full(len(rows), max(question.stack.zero_stages)))
    slowed = 1 + jitter_share(question, rows)  # all cores have as many ranks

    def seconds_of(terms: Terms) -> Seconds:
        return {name: (_inside_node(terms[name]).T * slowed).T for name in _IDEAL if name in terms}

    return rows.pp, _unshared_costs(space, rows, seconds_of), kind


def _unshared_costs(space: Space, rows: LayoutColumns, seconds_of: Callable[[Terms], Seconds]) -> StageCosts:
    """Costs per stage and block if no other ranks held the same parameters; coefficients that `seconds_of` does
    not name are zero."""
    by_kind = terms_by_kind(space.question, rows, partial(time_terms, data_parallel=False))
    return costs_by_kind([seconds_of(terms) for terms in by_kind], space.question.kinds, len(rows))


Seconds = dict[str, Array]
_IDEAL = (
    *("layer_forward", "layer_backward", "layer_weight", "embedding_forward", "embedding_backward"),
    *("head_forward", "head_backward", "head_weight"),
)


def _inside_node(term: Term) -> Array:
    """Seconds of compute, recompute and tensor-parallel communication of one cost term."""
    parts = [term[part] for part in ("compute", "recompute", "tp_comm") if part in term]
    return np.asarray(sum(parts, start=np.zeros(1)))


def relaxed_bounds(space: Space, cores: Ints, allowed: Bools, max_memory: float | None) -> Array:
    """Lower bounds of the step of cores (layouts before ZeRO stage and schedule are chosen) from the costs
    without replicas of the parameters, seconds (N,). Every coefficient is the least over the variants; infinite
    where the blocks do not fit."""
    fits = partial(_may_fit, space, max_memory)
    may_fit = _per_policy_choice(space, _fits_within(space, max_memory), cores, allowed, fits) != 0
    bound = np.full(len(cores), np.inf)
    bounds = partial(_bounds_per_policy, space)
    bound[may_fit] = _per_policy_choice(space, _RELAXED, cores[may_fit], allowed, bounds)
    return bound


def _per_policy_choice(
    space: Space,
    name: tuple[object, ...],
    cores: Ints,
    allowed: Bools,
    compute: Callable[[Ints, Sequence[Bools]], Iterable[Array | Bools]],
) -> Array:
    """Result of `compute` for each core under the `allowed` recompute policies, (N,), computed only if not
    stored yet. Missing values are computed for `allowed` and for each single policy at once: searches of one
    answer ask for all of these, and most of the work is shared."""
    choices = [allowed, *(one for one in np.eye(len(allowed), dtype=np.bool_) if (one != allowed).any())]
    tables = [_remembered(space, name, choice) for choice in choices]
    if len(new := cores[np.isnan(tables[0][cores])]):
        for table, values in zip(tables, compute(new, choices), strict=True):
            table[new] = values
    return tables[0][cores]


def _bounds_per_policy(space: Space, cores: Ints, choices: Sequence[Bools]) -> Array:
    """Lower bounds of the step of cores, without replicas of the parameters, under each set of allowed
    recompute policies, seconds (choices, N)."""

    def bound(scenario: Space) -> Array:
        each = _unshared_pieces(scenario, cores, choices)
        return np.concatenate([shortest_steps(scenario, cores, pieces) for pieces in each])

    return _weighed_bounds(space, bound).reshape(len(choices), -1)


def _may_fit(space: Space, max_memory: float | None, cores: Ints, choices: Sequence[Bools]) -> list[Bools]:
    """For each set of allowed recompute policies, which cores (layouts before ZeRO stage and schedule are
    chosen) may fit in memory, (N,). Every memory coefficient is taken at the ZeRO stage, over all ranks, where
    it is least."""
    x = space.cores.rows(cores)  # the order of whose axes moves no bytes
    first, kind = first_of_each([getattr(x, field.name) for field in fields(x) if field.name != "order"])
    distinct_cores, rows = cores[first], x.rows(first)
    limit = memory_limit(space.question, rows)
    limit = limit if max_memory is None else np.minimum(limit, max_memory)
    least_sizes: list[dict[str, Array]] = [{} for _ in space.question.by_kind]
    is_legal = np.zeros(len(rows), dtype=np.bool_)
    for zero, has in space.zero_stages_of(distinct_cores):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0), shard=rows.replicas)
        corners = space.counts.rows(distinct_cores).corners(staged)
        is_legal |= has & some_allowed(space.question, corners)
        for corner in corners:
            for sizes, terms in zip(
                least_sizes, terms_by_kind(space.question, corner, memory_terms), strict=True
            ):
                for name in MEMORY_TERMS:
                    size = np.where(has, sum_of_parts(terms[name]).T, np.inf).T
                    sizes[name] = np.minimum(sizes.get(name, np.inf), size)
    limit = np.where(is_legal, limit, 0.0)
    return [may_hold_blocks(space, distinct_cores, least_sizes, limit, allowed)[kind] for allowed in choices]


def _unshared_pieces(space: Space, cores: Ints, choices: Sequence[Bools]) -> list[StepPieces]:
    """Parts of the step time of cores if no ranks shared parameters, one `StepPieces` for each set of allowed
    recompute policies. No ZeRO stage is faster.

    Data-parallel communication in sight adds to a pass what it takes itself, less what a host that lags behind has to
    launch meanwhile, at most. Gradients are added up in fewest passes at the highest stage; most is left for later at
    the lowest.
    """
    rows, stages = space.cores.rows(cores), space.question.stack.zero_stages
    costs = _costs_without_block_update(space, rows, max(stages))
    choice_pieces = [step_pieces(space, rows.pp, costs, allowed) for allowed in choices]
    update = np.full(len(rows), np.inf)
    for zero, has in space.zero_stages_of(cores):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0))
        kinds = [block_update_seconds(own, staged) for own in space.question.by_kind]
        fullest = space.question.kinds.lower_bound_of_fullest_rank(rows.pp, kinds)
        update = np.minimum(update, np.where(has, fullest, np.inf))
    deferrable = choice_pieces[0].deferrable_weight_seconds
    if space.splits_backward:
        unsharded = _costs_without_block_update(space, rows, min(stages))
        deferrable = step_pieces(space, rows.pp, unsharded, choices[0]).deferrable_weight_seconds
    update = np.where(offloads(rows), 0.0, update)
    return [
        pieces._replace(deferrable_weight_seconds=deferrable, tail_seconds=pieces.tail_seconds + update)
        for pieces in choice_pieces
    ]


def _costs_without_block_update(space: Space, rows: LayoutColumns, zero: int) -> StageCosts:
    """Costs of layouts at a ZeRO stage, without data-parallel communication, without the update of blocks and
    without updates off the device."""

    def seconds_of(terms: Terms) -> Seconds:
        seconds = add_up(terms)
        seconds["rank_optimizer"] = np.where(offloads(rows), 0.0, seconds["rank_optimizer"])
        return seconds | {"layer_optimizer": np.zeros(len(rows))}

    return _unshared_costs(space, replace(rows, zero=np.full(len(rows), zero)), seconds_of)
