"""Verification of recommender plans by exact sums and another solver: a sharding's loads, restrictions and
lower bound, and a serving cache's bytes, hits, capacity and bound on hits."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import chain, pairwise
from typing import Any

import numpy as np

from cost_models.arrays import Array
from cost_models.errors import InfeasibleError
from cost_models.recommender.options import PricedOptions
from cost_models.specs.recommender.sharding import Sharding
from cost_models.units import format_bytes
from planner.exact.solvers import SolverName, available_solver, solve
from planner.recommender.problem import Problem, build_problem, with_memory_limit
from planner.recommender.program import OptionsProgram, PlacesProgram
from planner.recommender.restrictions import UNRESTRICTED, ShardingRestrictions
from planner.recommender.search import FLAT_CLASSES, Search, ShardingCertificate, certificate_of, rows_of
from planner.serving import ServingPlan, filling_order, require_host
from planner.verify import TOLERANCE, Check, check_equal

_SOLVER: SolverName = "cbc"
"""Name of the solver that verifies, other than the solver that planned."""
_SECOND_SOLVER: SolverName = "highs"
"""Name of the solver that is asked, about the bound alone, if the first one does not decide in time."""
RECOMPUTED = {"space", "tables", "distinct", "options", "greedy"}
"""Fields of a certificate that are known without a search."""
CLOSE = 1e-6
"""Relative tolerance of loads and values, and distance below the claimed bound at which another solver may
still find a solution."""


def verify_sharding(
    priced: PricedOptions,
    sharding: Sharding,
    certificate: ShardingCertificate,
    *,
    restrictions: ShardingRestrictions = UNRESTRICTED,
    time_limit: float = 60.0,
) -> tuple[Check, ...]:
    """Check a sharding (placement of embedding tables on GPUs) and its certificate against recomputed prices.

    Raises:
        InputError: the sharding has other tables than the prices, or options without a price.
    """
    loads = _check_loads(with_memory_limit(priced, restrictions), sharding, certificate)
    problem = build_problem(priced, certificate.objective, restrictions)
    begun = Search(problem=problem, solver=_SOLVER)
    begun.begin()
    proofs = certificate, certificate_of(begun, certificate.objective)
    claimed, right = (proof.model_dump(include=RECOMPUTED) for proof in proofs)
    equality, bound = (
        check_equal("certificate", claimed, right),
        _check_bound(problem, certificate, time_limit),
    )
    return loads, _check_restrictions(restrictions, sharding), equality, bound


def _check_loads(priced: PricedOptions, sharding: Sharding, certificate: ShardingCertificate) -> Check:
    """Check, in exact fractions, that every memory holds its part of the sharding and that the objective has
    the claimed value.

    Shape legend: T tables, G GPUs, N nodes, K stages, M memories of a GPU.
    """
    per_node, rows = priced.gpus_per_node, [*rows_of(priced, sharding)]
    gpus, nodes = range(priced.gpus), range(-(-priced.gpus // per_node))
    shards_TG, shards_TN = list[list[int]](), list[list[int]]()
    for table in sharding.tables:
        on_node = table.option.form == "node-row"
        on_nodes = [place if on_node else place // per_node for place in table.at]
        shards_TG.append([table.at.count(gpu // per_node if on_node else gpu) for gpu in gpus])
        shards_TN.append([on_nodes.count(node) for node in nodes])
    exact = np.vectorize(lambda value: Fraction(float(value)), otypes=[object])

    def loads(everywhere: Array, shard: Array, shards: list[list[int]]) -> Any:
        """Exact sum of the loads of shards and copied rows."""
        return exact(everywhere[rows]).sum(axis=0) + np.array(shards, dtype=object).T @ exact(shard[rows])

    loads_GK = loads(priced.everywhere_seconds, priced.shard_seconds, shards_TG)
    device_GM = exact(priced.fixed_bytes) + loads(priced.everywhere_bytes, priced.shard_bytes, shards_TG)
    host_N = loads(priced.everywhere_host_bytes, priced.shard_host_bytes, shards_TN)
    peak, host = float(device_GM.max()), float(host_N.max())
    for name, used, limit in (("GPU", peak, priced.device_memory), ("host", host, priced.host_memory)):
        if used > limit * (1 + CLOSE):
            return Check("loads", False, f"a {name} would hold {used:.6g} bytes of {limit:.6g}")
    if certificate.objective == "torchrec":
        value = float(loads_GK.sum(axis=1).max())
    else:
        longest_K = np.maximum(loads_GK.max(axis=0), exact(priced.stage_floors))
        value = float(longest_K.sum()) + float(priced.fixed.sum())
    if not math.isclose(value, certificate.value, rel_tol=CLOSE):
        return Check("loads", False, f"add up to {value:.8g} s, `value` says {certificate.value:.8g}")
    return Check("loads", True, f"add up to {value:.6g} s, and every memory holds them")


def _check_restrictions(restrictions: ShardingRestrictions, sharding: Sharding) -> Check:
    """Check that a sharding obeys its restrictions: fixed options, tables to be placed together, and
    forbidden options."""
    tables = sharding.tables
    forbidden = [number for number, table in enumerate(tables) if not restrictions.allows(table.option)]
    mistakes = [f"table {number} is forbidden as `{tables[number].option}`" for number in forbidden]
    for fixed in restrictions.fixed:
        numbers = range(fixed.first, fixed.last + 1)
        places = [place for number in numbers for place in tables[number].at]
        misplaced = [number for number in numbers if tables[number].option != fixed.option]
        mistakes += [f"table {number} is fixed as `{fixed.option}`" for number in misplaced]
        if fixed.at and sorted(fixed.at) != sorted(places):
            mistakes.append(f"tables from {fixed.first} on are fixed elsewhere")
    for a, b in chain.from_iterable(map(pairwise, restrictions.together)):
        if tables[a].option.form != "whole" or tables[a].at != tables[b].at:
            mistakes.append(f"tables {a} and {b} are apart")
    return Check("restrictions", not mistakes, "; ".join(mistakes[:3]) or "are kept to")


def _check_bound(problem: Problem, certificate: ShardingCertificate, time_limit: float) -> Check:
    """Check that another solver finds no sharding whose objective is below the claimed lower bound."""
    target = certificate.bound * (1 - CLOSE)
    claimed = max(0.0, 1 - certificate.bound / certificate.value) if certificate.value > 0 else 0.0
    if not math.isclose(claimed, certificate.gap, abs_tol=CLOSE):
        return Check("bound", False, f"`gap` says {certificate.gap:.3g}, value and bound {claimed:.3g}")
    if not problem.members or float(problem.least_stages.sum()) + problem.fixed >= target:
        return Check("bound", True, "the mean of GPUs takes as long")
    unit = problem.in_units_of(target)
    programs: dict[str, Callable[[], OptionsProgram]]
    programs = {"choice of options": partial(OptionsProgram, unit, limit=1.0)}
    if len(problem.members) <= FLAT_CLASSES:
        programs["sharding"] = partial(PlacesProgram, unit, ordered=True, limit=1.0)
    *_, solution = programs
    attempts: list[tuple[SolverName, str, float]] = [(_SOLVER, name, 1 / 8) for name in programs]
    if available_solver() == _SECOND_SOLVER:
        attempts.append((_SECOND_SOLVER, solution, 3 / 4))
    for solver, name, share in attempts:
        answer = solve(programs[name]().problem, solver, seconds=share * time_limit)
        if answer.verdict == "infeasible":
            late = "" if solver == _SOLVER else f"{_SOLVER} did not decide in time; "
            return Check("bound", True, f"{late}{solver} finds no {name} below it")
        if answer.verdict != "stopped" and name == solution:
            return Check("bound", False, f"{solver} finds a {name} below `bound`")
    names = " and ".join(dict.fromkeys(solver for solver, *_ in attempts))
    return Check("bound", None, f"{names} did not decide in time whether anything is below it")


def verify_cache(plan: ServingPlan) -> tuple[Check, ...]:
    """Check the plan of a recommender's embedding cache against the tables of its question."""
    try:
        require_host(plan.question)
    except InfeasibleError as error:
        return (Check("host", False, error.headline),)
    tables = plan.question.tables
    order = filling_order(tables)
    filled, hits = float(tables.counts @ (plan.rows * tables.row_bytes)), tables.hits(plan.rows)
    row_bytes = float(tables.counts @ tables.row_bytes)  # as the requested size may end within a row
    fewest_hits, most_hits = (
        float(order.curve.hits(max(0.0, filled + more))) for more in (-row_bytes, row_bytes)
    )
    lowest, highest = (max(limit, hits) for limit in (fewest_hits, most_hits))
    bound_holds = lowest * (1 - TOLERANCE) <= plan.bound <= highest * (1 + TOLERANCE)
    room = max(0.0, plan.question.most_bytes)
    fills = f"fills {format_bytes(filled)} of {format_bytes(room)} that a GPU has for it"
    best = f"`bound` says {plan.bound:.6g}; the best cache of this size hits {most_hits:.6g}"
    claimed = plan.model_dump(include={"cache_bytes", "hits"})
    cache = check_equal("cache", claimed, {"cache_bytes": filled, "hits": hits})
    fits = Check("fits", filled <= room * (1 + TOLERANCE), fills)
    return cache, fits, Check("bound", bound_holds, best)
