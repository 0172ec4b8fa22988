"""The exact search: bound every legal layout from below, place the promising ones, stop when nothing else can win.

Layouts are visited best bound first (`planner.search.branching`). When no bound is left below the k-th best, the k
best are proven: over all layouts, and over all placements of each.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from cost_models.errors import InfeasibleError, NothingPlacedError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.question import MixedQuestion, Question
from planner.certificate import PROOFS, Effort
from planner.exact.ilp.solvers import SolverName
from planner.placement.leaf import Placement
from planner.search.branching import BranchAndBound, Progress
from planner.search.by_program import ProgramSearch, require_searched
from planner.search.by_recompute import search_each_policy
from planner.search.candidates import Candidates
from planner.search.opening import UniformCandidates
from planner.search.pools import count_layouts, pool_candidates
from planner.search.replicas import asks_for_replicas, search_beside_stages
from planner.search.result import SearchResult, by_speed, out_of_time, placement_abandoned
from planner.space.layouts import Restrictions, Space
from planner.space.nothing_fits import nothing_legal
from planner.space.shared import shared_spaces


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """Settings of one search."""

    top: int = 1
    """Number of layouts to return, fastest first."""
    must_beat_seconds: float = math.inf
    """Search only for layouts faster than this many seconds. The result may be empty."""
    time_limit: float | None = None
    """Seconds; None: no limit."""
    on_progress: Progress | None = None
    keep_on_interrupt: bool = False
    """Whether Ctrl-C returns the best so far."""
    closes_with_ilp: bool = True
    """Whether an integer program closes the proof."""
    solver: SolverName | None = None
    """Solver of that program; None: HiGHS if installed."""
    proof: Effort = "search"
    """Effort: "bounds" skips the integer program, "any" stops at the first plan that fits."""
    space: Space | None = None
    """Layouts to search, if known: the question's, or only those that may be fast enough."""


def search(
    question: Question,
    *,
    top: int = 5,
    restrictions: Restrictions | None = None,
    time_limit: float | None = None,
    on_progress: Progress | None = None,
    keep_on_interrupt: bool = False,
    solver: SolverName | None = None,
    proof: Effort = "search",
) -> SearchResult:
    """The `top` fastest layouts of a question.

    `time_limit` is in seconds. When it runs out, or on Ctrl-C with `keep_on_interrupt`, the best so far comes back with
    its proven gap. `solver` closes the proof (`planner.exact.ilp.record`); HiGHS if installed. With
    `proof="ilp"` one integer program over all layouts answers instead (`planner.search.by_program`).

    Raises:
        InfeasibleError: nothing fits, with the layout that comes closest.
        InputError: the restrictions leave no recompute policy, or the integer program does not take the question.
        NothingPlacedError: it ended before anything was placed: time ran out, or what is left cannot be decided.
    """
    settings = SearchSettings(
        top=top,
        time_limit=time_limit,
        on_progress=on_progress,
        keep_on_interrupt=keep_on_interrupt,
        solver=solver,
        proof=proof,
    )
    return search_on(settings, question, restrictions or Restrictions())


def search_on(settings: SearchSettings, question: Question, limits: Restrictions) -> SearchResult:
    """Fastest layouts of a question within restrictions; empty once no layout is proved to be fast enough.

    Raises as `search` does; with `must_beat_seconds` nothing needs to fit.
    """
    question = limits.apply_confidence(question)

    def part(part_limits: Restrictions, seconds: float | None, cut_off: float = math.inf) -> SearchResult:
        return search_on(
            replace(settings, time_limit=seconds, must_beat_seconds=cut_off), question, part_limits
        )

    if isinstance(question, MixedQuestion) and asks_for_replicas(question, limits):
        require_searched(settings.proof)
        return search_beside_stages(
            part,
            question,
            limits,
            top=settings.top,
            time_limit=settings.time_limit,
            on_progress=settings.on_progress,
            keep_on_interrupt=settings.keep_on_interrupt,
        )
    if parts := limits.by_recompute(question):
        try:
            with shared_spaces().shared():
                return search_each_policy(
                    part, question, parts, settings.top, settings.time_limit, settings.must_beat_seconds
                )
        except InfeasibleError:
            if count_layouts(question, limits):
                raise
            raise nothing_legal(question, limits) from None  # of what the user said, not of the last part
    candidates, start = _candidates(question, limits, settings.space), time.monotonic()
    common = candidates, settings.top, start, settings.time_limit, settings.on_progress
    prover = (
        ProgramSearch(*common)
        if settings.proof == "ilp"
        else BranchAndBound(*common, settings.must_beat_seconds)
    )
    return _run_prover(prover, settings)


def faster_than(
    seconds: float,
    question: Question,
    restrictions: Restrictions,
    *,
    time_limit: float | None = None,
    space: Space | None = None,
) -> Estimate | None:
    """Fastest layout of a question below `seconds`; None if there is none, or none was found in time.

    The limit spares most of the search. `space` holds the question's layouts if known, or only those that may be fast
    enough. Raises InfeasibleError if `seconds` is infinite and nothing fits.
    """
    if space is not None and not len(space.cores):
        return None
    settings = SearchSettings(must_beat_seconds=seconds, time_limit=time_limit, proof="bounds", space=space)
    with suppress(NothingPlacedError):
        estimates = search_on(settings, question, restrictions).estimates
        return next((estimate for estimate in estimates if estimate.compared_seconds < seconds), None)
    return None


def close_proof(result: SearchResult, solver: SolverName | None) -> SearchResult:
    """The result after an integer program has closed its proof; for results without one."""
    if not result.searches:
        return result
    first = result.searches[0]
    first.close_proof(solver)
    return replace(result, certificate=result.certificate.model_copy(update={"settled": first.settled}))


def _run_prover(prover: BranchAndBound | ProgramSearch, settings: SearchSettings) -> SearchResult:
    """Best layouts that a prover finds, with its certificate."""
    candidates, interrupted = prover.candidates, False
    try:
        prover.run(settings.proof)
        if settings.closes_with_ilp and settings.proof in PROOFS:
            prover.close_proof(settings.solver)
    except KeyboardInterrupt:
        if not (settings.keep_on_interrupt and prover.best):
            raise
        interrupted = True
    leaders = prover.leaders()
    if not leaders:
        if layouts := prover.abandoned:
            weighed = bool(scenarios_of(candidates.question))
            raise placement_abandoned(layouts, weighed=weighed, space=candidates.in_words())
        if prover.is_unfinished:
            raise out_of_time(candidates.in_words())
        if math.isinf(settings.must_beat_seconds):
            nothing = candidates.nothing_fits()
            nothing.space = candidates.in_words()
            raise nothing
    estimates = [_estimate(candidates, row, placement) for row, placement in leaders]
    ranked = sorted(estimates, key=by_speed)[: prover.top]
    return SearchResult(
        estimates=tuple(ranked),
        certificate=prover.certificate(),
        interrupted=interrupted,
        searches=(prover,) if isinstance(prover, BranchAndBound) else (),
    )


def _candidates(question: Question, limits: Restrictions, space: Space | None) -> Candidates:
    if isinstance(question, MixedQuestion):
        return pool_candidates(question, limits)
    return UniformCandidates(question, limits, space)


def _estimate(candidates: Candidates, row: int, placement: Placement) -> Estimate:
    priced = estimate(candidates.question, placement.on(candidates.layout(row)))
    return priced.within(candidates.max_memory)
