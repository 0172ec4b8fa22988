"""Lower bounds of cores, whatever their ZeRO stage, shards and schedule: ideal, then relaxed.

    ideal     compute and tensor-parallel communication under the fastest recompute policy: a tensor group is at best
              where the first one lies, wherever the rest of the layout does
    relaxed   all passes as they are where no other ranks hold the same parameters, and as little memory as under the
              ZeRO stage best for each coefficient

Both are parts of the terms that price a layout, and leave most layouts unpriced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, first_of_each
from cost_models.axes.offload import offloads
from cost_models.memory.device import memory_limit
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, add_up
from cost_models.pipeline.terms import each_kind, memory_terms, times_of_kinds
from cost_models.pipeline.time_pieces import Term, Terms, jitter, total
from cost_models.pipeline.updates import block_update_seconds
from cost_models.risk import weigh
from planner.bounds.boxes import corner_columns, some_allowed
from planner.bounds.passes import MEMORY_TERMS, StepPieces, may_hold_blocks, shortest_steps, step_pieces
from planner.space.axes import columns_that_affect
from planner.space.layouts import Space


def ideal_seconds(space: Space, allowed: Bools) -> Array:
    """Ideal bound of every core, seconds (N,); cached in the space."""
    key = ("ideal", allowed.tobytes())
    if key not in space.bound_cache:
        space.bound_cache[key] = _weighed_bounds(space, lambda scenario: _ideal_seconds(scenario, allowed))
    return space.bound_cache[key]


def _relaxed_seconds(space: Space, allowed: Bools) -> Array:
    """Cached relaxed bounds of the cores, seconds (N,); NaN where none is computed yet."""
    key = ("alone", allowed.tobytes())
    return space.bound_cache.setdefault(key, np.full(len(space.cores), np.nan))


def best_known_bounds(space: Space, allowed: Bools) -> Array:
    """Best cached bound of every core, seconds (N,), whatever memory devices have."""
    return np.fmax(ideal_seconds(space, allowed), _relaxed_seconds(space, allowed))


def known_infeasible(space: Space, allowed: Bools, max_memory: float | None) -> Bools:
    """Cores known not to fit under this memory limit, (N,)."""
    infeasible = np.zeros(len(space.cores), dtype=np.bool_)
    limit_bytes = math.inf if max_memory is None else max_memory
    for (policies, limit), too_large in space.infeasible_cores.items():
        if policies == allowed.tobytes() and limit >= limit_bytes:
            infeasible |= too_large
    return infeasible


def _weighed_bounds(space: Space, bound: Callable[[Space], Array]) -> Array:
    """Bounds of the cores of a space, (N,); with scenarios, the bounds of each are weighed as steps are."""
    if not space.in_scenarios:
        return bound(space)
    return weigh(np.stack([bound(scenario) for scenario in space.in_scenarios]), space.question.risk)


def _ideal_seconds(space: Space, allowed: Bools) -> Array:
    if "ideal" not in space.priced_cache:
        space.priced_cache["ideal"] = _ideal_costs(space)
    pp, costs, kind = space.priced_cache["ideal"]
    pieces = step_pieces(space, pp, costs, allowed).rows(kind)
    return shortest_steps(space, np.arange(len(space.cores)), pieces)


def _ideal_costs(space: Space) -> tuple[Ints, StageCosts, Ints]:
    """Pipeline ranks and ideal costs of each kind of core, and the kind of each core, (N,)."""
    question, cores = space.question, space.cores
    _, kind = first_of_each([getattr(cores, name) for name in columns_that_affect("blocks")])
    representative = np.empty(int(kind.max(initial=-1)) + 1, dtype=np.int64)
    most_first = np.argsort(-space.microbatches, kind="stable")
    # gradients are added up least often where microbatches are few
    representative[kind[most_first]] = most_first
    rows = cores.rows(representative)
    rows = replace(rows, zero=np.full(len(rows), max(question.stack.zero_stages)))
    slowed = 1 + jitter(question, rows)  # all cores have as many ranks

    def seconds_of(terms: Terms) -> Seconds:
        return {name: (_inside_node(terms[name]).T * slowed).T for name in _IDEAL if name in terms}

    return rows.pp, _unshared_costs(space, rows, seconds_of), kind


def _unshared_costs(space: Space, rows: LayoutColumns, seconds_of: Callable[[Terms], Seconds]) -> StageCosts:
    """Costs if no other ranks held the same parameters; coefficients that `seconds_of` does not name are zero."""
    zeros = dict.fromkeys(COLUMNS, np.zeros(len(rows)))
    by_kind = [seconds_of(own) for own in times_of_kinds(space.question, rows, data_parallel=False)]
    return StageCosts(**zeros | by_kind[-1], kinds=()).of_kinds(by_kind, space.question.kinds)


Seconds = dict[str, Array]
_IDEAL = (
    *("layer_forward", "layer_backward", "layer_weight", "embedding_forward", "embedding_backward"),
    *("head_forward", "head_backward", "head_weight"),
)


def _inside_node(term: Term) -> Array:
    """Seconds of compute, recompute and tensor-parallel communication."""
    parts = [term[part] for part in ("compute", "recompute", "tp_comm") if part in term]
    return np.asarray(sum(parts, start=np.zeros(1)))


def relaxed_bounds(space: Space, cores: Ints, allowed: Bools, max_memory: float | None) -> Array:
    """Relaxed bounds of cores, seconds (N,): every coefficient is the least over the variants."""
    bound = np.full(len(cores), np.inf)
    key = (allowed.tobytes(), math.inf if max_memory is None else max_memory)
    too_large = known_infeasible(space, allowed, max_memory)
    unknown, room = cores[~too_large[cores]], f"room {space.question.confidence} {max_memory}"
    fits = partial(_may_fit, space, max_memory)
    too_large[unknown] = _per_policy_choice(space, room, unknown, allowed, fits) == 0
    space.infeasible_cores[key] = too_large
    fitting_cores = cores[fitting := np.flatnonzero(~too_large[cores])]
    relaxed = _relaxed_seconds(space, allowed)
    new = fitting_cores[np.isnan(relaxed[fitting_cores])]
    relaxed[new] = _per_policy_choice(space, "alone", new, allowed, partial(_bounds_per_policy, space))
    bound[fitting] = relaxed[fitting_cores]
    return bound


def _per_policy_choice(
    space: Space,
    name: str,
    cores: Ints,
    allowed: Bools,
    compute: Callable[[Ints, Sequence[Bools]], Iterable[Array | Bools]],
) -> Array:
    """Value of each core under a choice of policies, (N,), cached. Missing values are computed for `allowed` and for
    each single policy at once: searches of one answer ask for all of these, and most of the work is shared."""
    choices = [allowed, *(one for one in np.eye(len(allowed), dtype=np.bool_) if (one != allowed).any())]
    empty = np.full(len(space.cores), np.nan)
    caches: list[Array] = [
        space.priced_cache.setdefault((name, one.tobytes()), empty.copy()) for one in choices
    ]
    if len(new := cores[np.isnan(caches[0][cores])]):
        for cache, values in zip(caches, compute(new, choices), strict=True):
            cache[new] = values
    return caches[0][cores]


def _bounds_per_policy(space: Space, cores: Ints, choices: Sequence[Bools]) -> Array:
    """Relaxed bounds of cores under each choice of policies, seconds (choices, N)."""

    def bound(scenario: Space) -> Array:
        return np.concatenate(
            [shortest_steps(scenario, cores, pieces) for pieces in _unshared_pieces(scenario, cores, choices)]
        )

    return _weighed_bounds(space, bound).reshape(len(choices), -1)


def _may_fit(space: Space, max_memory: float | None, cores: Ints, choices: Sequence[Bools]) -> list[Bools]:
    """Cores that may fit, (N,) for each choice of policies: every memory coefficient is taken at the ZeRO stage, over
    all ranks, where it is least."""
    x = space.cores.rows(cores)  # the order of whose axes moves no bytes
    first, kind = first_of_each([getattr(x, field.name) for field in fields(x) if field.name != "order"])
    distinct_cores, rows = cores[first], x.rows(first)
    limit = memory_limit(space.question, rows)
    limit = limit if max_memory is None else np.minimum(limit, max_memory)
    least_sizes: list[dict[str, Array]] = [{} for _ in space.question.by_kind]
    is_legal = np.zeros(len(rows), dtype=np.bool_)
    for zero, has in space.zero_stages_of(distinct_cores):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0), shard=rows.replicas)
        corners = corner_columns(staged, space.counts.rows(distinct_cores))
        is_legal |= has & some_allowed(space.question, corners)
        for corner in corners:
            for sizes, terms in zip(
                least_sizes, each_kind(space.question, corner, memory_terms), strict=True
            ):
                for name in MEMORY_TERMS:
                    value = total(terms[name])
                    size = np.where(has if value.ndim == 1 else has[:, None], value, np.inf)
                    sizes[name] = np.minimum(sizes[name], size) if name in sizes else size
    limit = np.where(is_legal, limit, 0.0)
    return [may_hold_blocks(space, distinct_cores, least_sizes, limit, allowed)[kind] for allowed in choices]


def _unshared_pieces(space: Space, cores: Ints, choices: Sequence[Bools]) -> list[StepPieces]:
    """Step pieces of cores if no ranks shared parameters, for each choice of policies: no ZeRO stage is faster.

    Data-parallel communication in sight adds to a pass what it takes itself, less what a host that lags behind has to
    launch meanwhile, at most. Gradients are added up in fewest passes at the highest stage; most is left for later at
    the lowest.
    """
    rows, stages = space.cores.rows(cores), space.question.stack.zero_stages

    def at(zero: int) -> StageCosts:
        return _costs_without_block_update(space, replace(rows, zero=np.full(len(rows), zero)))

    costs = at(max(stages))
    choice_pieces = [step_pieces(space, rows.pp, costs, allowed) for allowed in choices]
    update = np.full(len(rows), np.inf)
    for zero, has in space.zero_stages_of(cores):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0))
        kinds = [block_update_seconds(own, staged) for own in space.question.by_kind]
        update = np.minimum(update, np.where(has, space.question.kinds.of_fullest(rows.pp, kinds), np.inf))
    deferrable = choice_pieces[0].deferrable_weight_seconds
    if space.splits_backward:
        deferrable = step_pieces(space, rows.pp, at(min(stages)), choices[0]).deferrable_weight_seconds
    update = np.where(offloads(rows), 0.0, update)
    return [
        replace(pieces, deferrable_weight_seconds=deferrable, tail_seconds=pieces.tail_seconds + update)
        for pieces in choice_pieces
    ]


def _costs_without_block_update(space: Space, rows: LayoutColumns) -> StageCosts:
    """Costs of rows without data parallelism, without the update of blocks and without updates off the device."""

    def seconds_of(terms: Terms) -> Seconds:
        seconds = add_up(terms)
        seconds["rank_optimizer"] = np.where(offloads(rows), 0.0, seconds["rank_optimizer"])
        return seconds | {"layer_optimizer": np.zeros(len(rows))}

    return _unshared_costs(space, rows, seconds_of)
