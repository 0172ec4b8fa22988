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
from planner.search.result import SearchResult, by_speed, given_up, out_of_time
from planner.space.layouts import Restrictions, Space
from planner.space.nothing_fits import nothing_legal
from planner.space.shared import shared_spaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a search is made."""

    top: int = 1
    """How many of the fastest are wanted."""
    below: float = math.inf
    """Only layouts that take less than so many seconds are; there may be none."""
    time_limit: float | None = None
    """Seconds; None: no limit."""
    on_progress: Progress | None = None
    keep_on_interrupt: bool = False
    """Whether Ctrl-C leaves the best so far."""
    settles: bool = True
    """Whether an integer program closes the proof."""
    solver: SolverName | None = None
    """Which solver does; None: HiGHS where it is there."""
    proof: Effort = "search"
    """With "bounds" none does, and with "any" the first plan that fits is the answer."""
    space: Space | None = None
    """The question's layouts where they are known, or those of them that may take less."""


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
    its proven gap. `solver` settles the answer (`planner.exact.ilp.record`); HiGHS where it is there. With
    `proof="ilp"` one integer program over all layouts answers instead (`planner.search.by_program`).

    Raises:
        InfeasibleError: nothing fits, with the layout that comes closest.
        InputError: the restrictions leave no recompute policy, or the integer program does not take the question.
        NothingPlacedError: it ended before anything was placed: time ran out, or what is left cannot be decided.
    """
    terms = Terms(
        top=top,
        time_limit=time_limit,
        on_progress=on_progress,
        keep_on_interrupt=keep_on_interrupt,
        solver=solver,
        proof=proof,
    )
    return search_on(terms, question, restrictions or Restrictions())


def search_on(terms: Terms, question: Question, limits: Restrictions) -> SearchResult:
    """The fastest layouts of a question within some restrictions; none where it is proved that none is fast enough.

    Raises as `search` does; where only layouts below some seconds are wanted, nothing needs to fit.
    """
    question = limits.held(question)

    def part(within: Restrictions, seconds: float | None, below: float = math.inf) -> SearchResult:
        return search_on(replace(terms, time_limit=seconds, below=below), question, within)

    if isinstance(question, MixedQuestion) and asks_for_replicas(question, limits):
        require_searched(terms.proof)
        return search_beside_stages(
            part,
            question,
            limits,
            top=terms.top,
            time_limit=terms.time_limit,
            on_progress=terms.on_progress,
            keep_on_interrupt=terms.keep_on_interrupt,
        )
    if parts := limits.by_recompute(question):
        try:
            with shared_spaces().shared():
                return search_each_policy(part, question, parts, terms.top, terms.time_limit, terms.below)
        except InfeasibleError:
            if count_layouts(question, limits):
                raise
            raise nothing_legal(question, limits) from None  # of what the user said, not of the last part
    candidates, start = _candidates(question, limits, terms.space), time.monotonic()
    common = candidates, terms.top, start, terms.time_limit, terms.on_progress
    found = ProgramSearch(*common) if terms.proof == "ilp" else BranchAndBound(*common, terms.below)
    return _proven(found, terms)


def faster_than(
    seconds: float,
    question: Question,
    restrictions: Restrictions,
    *,
    time_limit: float | None = None,
    space: Space | None = None,
) -> Estimate | None:
    """The fastest layout of a question, of those that take less than so many seconds; None where there is none, or none
    was found in time.

    What is known to take that long spares most of the search. `space` are the question's layouts where they are known,
    or those of them that may take less. Raises InfeasibleError where any time will do, and nothing fits.
    """
    if space is not None and not len(space.cores):
        return None
    terms = Terms(below=seconds, time_limit=time_limit, proof="bounds", space=space)
    with suppress(NothingPlacedError):
        found = search_on(terms, question, restrictions).estimates
        return next((one for one in found if one.compared_seconds < seconds), None)
    return None


def settled(found: SearchResult, solver: SolverName | None) -> SearchResult:
    """The same, where no integer program has closed the proof yet."""
    if not found.searches:
        return found
    first = found.searches[0]
    first.settle(solver)
    return replace(found, certificate=found.certificate.model_copy(update={"settled": first.settled}))


def _proven(found: BranchAndBound | ProgramSearch, terms: Terms) -> SearchResult:
    """The best layouts that a prover finds, with its certificate."""
    candidates, interrupted = found.candidates, False
    try:
        found.run(terms.proof)
        if terms.settles and terms.proof in PROOFS:
            found.settle(terms.solver)
    except KeyboardInterrupt:
        if not (terms.keep_on_interrupt and found.best):
            raise
        interrupted = True
    leaders = found.leaders()
    if not leaders:
        if layouts := found.given_up:
            weighed = bool(scenarios_of(candidates.question))
            raise given_up(layouts, weighed=weighed, space=candidates.in_words())
        if found.is_unfinished:
            raise out_of_time(candidates.in_words())
        if math.isinf(terms.below):
            nothing = candidates.nothing_fits()
            nothing.space = candidates.in_words()
            raise nothing
    estimates = [_estimate(candidates, row, placement) for row, placement in leaders]
    ranked = sorted(estimates, key=by_speed)[: found.top]
    return SearchResult(
        estimates=tuple(ranked),
        certificate=found.certificate(),
        interrupted=interrupted,
        searches=(found,) if isinstance(found, BranchAndBound) else (),
    )


def _candidates(question: Question, limits: Restrictions, space: Space | None) -> Candidates:
    if isinstance(question, MixedQuestion):
        return pool_candidates(question, limits)
    return UniformCandidates(question, limits, space)


def _estimate(candidates: Candidates, row: int, placement: Placement) -> Estimate:
    priced = estimate(candidates.question, placement.on(candidates.layout(row)))
    return priced.within(candidates.max_memory)
