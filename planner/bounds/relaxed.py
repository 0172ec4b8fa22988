"""Cheaper questions whose answers bound a layout's price from below, whatever its ZeRO stage, shards and schedule.

    ideal     compute and tensor-parallel communication under the fastest recompute policy: a tensor group is at best
              where the first one lies, wherever the rest of the layout does
    relaxed   all passes as they are where no other ranks hold the same parameters, and as little memory as under the
              ZeRO stage best for each coefficient

They are parts of the very same terms that price a layout; both leave most layouts unpriced.
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
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts
from cost_models.pipeline.terms import memory_terms as memory
from cost_models.pipeline.terms.kinds import each_kind, times_of_kinds
from cost_models.pipeline.terms.memory_terms import memory_terms
from cost_models.pipeline.terms.update_terms import block_update_seconds
from cost_models.pipeline.time_pieces import Term, jitter, total
from cost_models.pipeline.time_terms import TimeTerms
from cost_models.risk import weigh
from planner.bounds.boxes import corner_columns, some_allowed
from planner.bounds.passes import ROOM, Passes, fits_of, passes_of, shortest_steps
from planner.space.axes import columns_that_affect
from planner.space.layouts import Space


def ideal_seconds(space: Space, allowed: Bools) -> Array:
    """(N,) seconds that no layout of a core can undercut; the space remembers them."""
    key = ("ideal", allowed.tobytes())
    if key not in space.remembered:
        space.remembered[key] = _weighed(space, lambda one: _ideal_seconds(one, allowed))
    return space.remembered[key]


def _seconds_alone(space: Space, allowed: Bools) -> Array:
    """(N,) relaxed seconds of the cores for which the space remembers them; NaN for the others."""
    key = ("alone", allowed.tobytes())
    return space.remembered.setdefault(key, np.full(len(space.cores), np.nan))


def known_seconds(space: Space, allowed: Bools) -> Array:
    """(N,) the best bounds of cores that are known, whatever memory there is."""
    return np.fmax(ideal_seconds(space, allowed), _seconds_alone(space, allowed))


def known_not_to_fit(space: Space, allowed: Bools, max_memory: float | None) -> Bools:
    """(N,) cores that did not fit under this limit or a higher one."""
    found, most = np.zeros(len(space.cores), dtype=np.bool_), math.inf if max_memory is None else max_memory
    for (policies, limit), too_large in space.too_large.items():
        if policies == allowed.tobytes() and limit >= most:
            found |= too_large
    return found


def _weighed(space: Space, bound: Callable[[Space], Array]) -> Array:
    """(N,) bounds of a space; where its question weighs scenarios, bounds in all of them, weighed as steps are."""
    if not space.in_scenarios:
        return bound(space)
    return weigh(np.stack([bound(one) for one in space.in_scenarios]), space.question.risk)


def _ideal_seconds(space: Space, allowed: Bools) -> Array:
    if "ideal" not in space.kept:
        space.kept["ideal"] = _ideal_costs(space)
    pp, costs, kind = space.kept["ideal"]
    return shortest_steps(space, np.arange(len(space.cores)), passes_of(space, pp, costs, allowed).rows(kind))


def _ideal_costs(space: Space) -> tuple[Ints, StageCosts, Ints]:
    """Pipeline ranks and costs of kinds of cores, and (N,) the kind of each core."""
    question, cores = space.question, space.cores
    _, kind = first_of_each([getattr(cores, name) for name in columns_that_affect("blocks")])
    few = np.empty(int(kind.max(initial=-1)) + 1, dtype=np.int64)
    most_first = np.argsort(-space.microbatches, kind="stable")
    few[kind[most_first]] = most_first  # gradients are added up least often where microbatches are few
    rows = cores.rows(few)
    rows = replace(rows, zero=np.full(len(rows), max(question.stack.zero_stages)))
    slowed = 1 + jitter(question, rows)  # all cores have as many ranks

    def seconds_of(terms: TimeTerms) -> Seconds:
        return {name: (_inside_node(getattr(terms, name)).T * slowed).T for name in _IDEAL}

    return rows.pp, _apart(space, rows, seconds_of), kind


def _apart(space: Space, rows: LayoutColumns, seconds_of: Callable[[TimeTerms], Seconds]) -> StageCosts:
    """Some seconds as if no other ranks held the same parameters; all that is not named is zero."""
    none = dict.fromkeys(COLUMNS, np.zeros(len(rows)))
    each = [seconds_of(own) for own in times_of_kinds(space.question, rows, data_parallel=False)]
    return StageCosts(**none | each[-1], kinds=()).of_kinds(each, space.question.kinds)


Seconds = dict[str, Array]
_IDEAL = (
    *("layer_forward", "layer_backward", "layer_weight", "embedding_forward", "embedding_backward"),
    *("head_forward", "head_backward", "head_weight"),
)


def _inside_node(term: Term) -> Array:
    """Seconds that depend on what a tensor group does alone."""
    own = [term[part] for part in ("compute", "recompute", "tp_comm") if part in term]
    return np.asarray(sum(own, start=np.zeros(1)))


def relaxed_bounds(space: Space, cores: Ints, allowed: Bools, max_memory: float | None) -> Array:
    """(N,) bounds of cores at costs that none of their variants undercuts in any coefficient."""
    bound = np.full(len(cores), np.inf)
    key = (allowed.tobytes(), math.inf if max_memory is None else max_memory)
    too_large = known_not_to_fit(space, allowed, max_memory)
    unknown, room = cores[~too_large[cores]], f"room {space.question.confidence} {max_memory}"
    fits = partial(_may_fit, space, max_memory)
    too_large[unknown] = _of_each_choice(space, room, unknown, allowed, fits) == 0
    space.too_large[key] = too_large
    some = cores[fitting := np.flatnonzero(~too_large[cores])]
    known = _seconds_alone(space, allowed)
    new = some[np.isnan(known[some])]
    known[new] = _of_each_choice(space, "alone", new, allowed, partial(_each_alone, space))
    bound[fitting] = known[some]
    return bound


def _of_each_choice(
    space: Space,
    name: str,
    cores: Ints,
    allowed: Bools,
    compute: Callable[[Ints, Sequence[Bools]], Iterable[Array | Bools]],
) -> Array:
    """(N,) what cores have under a choice of policies, computed for each choice that searches of one answer make (some
    policies, and each alone), which differ in nothing that takes long."""
    choices = [allowed, *(one for one in np.eye(len(allowed), dtype=np.bool_) if (one != allowed).any())]
    empty = np.full(len(space.cores), np.nan)
    tables: list[Array] = [space.kept.setdefault((name, one.tobytes()), empty.copy()) for one in choices]
    if len(new := cores[np.isnan(tables[0][cores])]):
        for table, values in zip(tables, compute(new, choices), strict=True):
            table[new] = values
    return tables[0][cores]


def _each_alone(space: Space, cores: Ints, choices: Sequence[Bools]) -> Array:
    """(S, N) seconds of the shortest steps of cores alone, under each choice of policies."""

    def bound(one: Space) -> Array:
        return np.concatenate([shortest_steps(one, cores, own) for own in _alone(one, cores, choices)])

    return _weighed(space, bound).reshape(len(choices), -1)


def _may_fit(space: Space, max_memory: float | None, cores: Ints, choices: Sequence[Bools]) -> list[Bools]:
    """(N,) under each choice of policies: which cores have room with every coefficient at the ZeRO stage, over all
    ranks, that has least of it."""
    own = space.cores.rows(cores)  # the order of whose axes moves no bytes
    first, kind = first_of_each([getattr(own, field.name) for field in fields(own) if field.name != "order"])
    some, rows = cores[first], own.rows(first)
    limit = memory_limit(space.question, rows)
    limit = limit if max_memory is None else np.minimum(limit, max_memory)
    least: list[dict[str, Array]] = [{} for _ in space.question.by_kind]
    held = np.zeros(len(rows), dtype=np.bool_)
    for zero, has in space.zero_stages_of(some):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0), shard=rows.replicas)
        corners = corner_columns(staged, space.counts.rows(some))
        held |= has & some_allowed(space.question, corners)
        for corner in corners:
            for found, terms in zip(least, each_kind(space.question, corner, memory_terms), strict=True):
                for name in ROOM:
                    value = memory.total(getattr(terms, name))
                    size = np.where(has if value.ndim == 1 else has[:, None], value, np.inf)
                    found[name] = np.minimum(found[name], size) if name in found else size
    limit = np.where(held, limit, 0.0)
    return [fits_of(space, some, least, limit, one)[kind] for one in choices]


def _alone(space: Space, cores: Ints, choices: Sequence[Bools]) -> list[Passes]:
    """Of cores as if every rank had its parameters to itself, which takes no longer at any stage, under each choice.

    Data-parallel communication in sight adds to a pass what it takes itself, less what a host that lags behind has to
    launch meanwhile, at most. Gradients are added up in fewest passes at the highest stage; most is left for later at
    the lowest.
    """
    rows, stages = space.cores.rows(cores), space.question.stack.zero_stages

    def at(zero: int) -> StageCosts:
        return _costs_alone(space, replace(rows, zero=np.full(len(rows), zero)))

    costs = at(max(stages))
    each = [passes_of(space, rows.pp, costs, one) for one in choices]
    update = np.full(len(rows), np.inf)
    for zero, has in space.zero_stages_of(cores):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0))
        kinds = [block_update_seconds(own, staged) for own in space.question.by_kind]
        update = np.minimum(update, np.where(has, space.question.kinds.of_fullest(rows.pp, kinds), np.inf))
    apart = each[0].apart
    if space.splits_backward:
        apart = passes_of(space, rows.pp, at(min(stages)), choices[0]).apart
    update = np.where(offloads(rows), 0.0, update)
    return [replace(passes, apart=apart, follows=passes.follows + update) for passes in each]


def _costs_alone(space: Space, rows: LayoutColumns) -> StageCosts:
    """Their seconds, without the update of blocks, nor one by something else than the device."""

    def seconds_of(terms: TimeTerms) -> Seconds:
        seconds = {field.name: total(getattr(terms, field.name)) for field in fields(TimeTerms)}
        seconds["rank_optimizer"] = np.where(offloads(rows), 0.0, seconds["rank_optimizer"])
        return seconds | {"layer_optimizer": np.zeros(len(rows))}

    return _apart(space, rows, seconds_of)
