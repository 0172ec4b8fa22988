"""The exact search: bound every legal layout from below, place the promising ones, stop when nothing else can win.

Layouts are visited best bound first (`planner.search.branching`). When no bound is left below the k-th best, the k
best are proven: over all layouts, and over all placements of each.
"""

from __future__ import annotations

import time

from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.question import MixedQuestion, Question
from planner.certificate import Proof
from planner.exact.ilp.solvers import SolverName
from planner.placement.leaf import Placement
from planner.rules.searched import searched
from planner.search.branching import BranchAndBound, Progress
from planner.search.by_program import ProgramSearch, require_searched
from planner.search.by_recompute import search_each_policy
from planner.search.candidates import Candidates
from planner.search.opening import UniformCandidates
from planner.search.pools import count_layouts, pool_candidates
from planner.search.result import SearchResult, by_speed, given_up, out_of_time
from planner.space.layouts import Restrictions, Space
from planner.space.nothing_fits import nothing_legal


def search(
    question: Question,
    *,
    top: int = 5,
    restrictions: Restrictions | None = None,
    time_limit: float | None = None,
    on_progress: Progress | None = None,
    keep_on_interrupt: bool = False,
    solver: SolverName | None = None,
    proof: Proof = "search",
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
    limits = restrictions or Restrictions()
    question = limits.held(question)

    def part(asked: Question, within: Restrictions, seconds: float | None) -> SearchResult:
        return search(
            asked,
            top=top,
            restrictions=within,
            time_limit=seconds,
            on_progress=on_progress,
            keep_on_interrupt=keep_on_interrupt,
            solver=solver,
            proof=proof,
        )

    others = [axis.beside(question, limits) for axis in searched().values() if axis.beside]
    if beside := next((one for one in others if one), None):
        require_searched(proof)
        together: SearchResult = beside(
            lambda within, seconds: part(question, within, seconds),
            question,
            limits,
            top=top,
            time_limit=time_limit,
            on_progress=on_progress,
            keep_on_interrupt=keep_on_interrupt,
        )
        return together
    if parts := limits.by_recompute(question.training):
        try:
            return search_each_policy(part, question, parts, top, time_limit)
        except InfeasibleError:
            if count_layouts(question, limits):
                raise
            raise nothing_legal(question, limits) from None  # of what the user said, not of the last part
    prover = ProgramSearch if proof == "ilp" else BranchAndBound
    found = prover(_candidates(question, limits), top, time.monotonic(), time_limit, on_progress)
    return _proven(found, keep_on_interrupt=keep_on_interrupt, solver=solver)


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
    or those of them that may take less.
    """
    question = restrictions.held(question)
    split = isinstance(question, MixedQuestion) or restrictions.by_recompute(question.training)
    if split or any(axis.beside and axis.beside(question, restrictions) for axis in searched().values()):
        found = search(question, top=1, restrictions=restrictions, time_limit=time_limit).best
        return found if found.compared_seconds < seconds else None
    if space is not None and not len(space.cores):
        return None
    candidates = UniformCandidates(question, restrictions, space)
    found_below = BranchAndBound(candidates, 1, time.monotonic(), time_limit, None, seconds)
    found_below.run()
    estimates = [_estimate(candidates, row, placement) for row, placement in found_below.leaders()]
    return min(estimates, key=by_speed, default=None)


def _proven(
    found: BranchAndBound | ProgramSearch, *, keep_on_interrupt: bool, solver: SolverName | None
) -> SearchResult:
    """The best layouts that a prover finds, with its certificate."""
    candidates, interrupted = found.candidates, False
    try:
        found.run()
        found.settle(solver)
    except KeyboardInterrupt:
        if not (keep_on_interrupt and found.best):
            raise
        interrupted = True
    if not found.best:
        if layouts := found.given_up:
            weighed = bool(scenarios_of(candidates.question))
            raise given_up(layouts, weighed=weighed, space=candidates.in_words())
        if found.is_unfinished:
            raise out_of_time(candidates.in_words())
        raise candidates.nothing_fits()
    estimates = [_estimate(candidates, row, placement) for row, placement in found.leaders()]
    ranked = sorted(estimates, key=by_speed)[: found.top]
    return SearchResult(
        estimates=tuple(ranked),
        certificate=found.certificate(),
        interrupted=interrupted,
        searches=(found,) if isinstance(found, BranchAndBound) else (),
    )


def _candidates(question: Question, limits: Restrictions) -> Candidates:
    if isinstance(question, MixedQuestion):
        return pool_candidates(question, limits)
    return UniformCandidates(question, limits)


def _estimate(candidates: Candidates, row: int, placement: Placement) -> Estimate:
    """The full price of a row under its placement."""
    layout = candidates.layout(row).model_copy(
        update={
            "layers": placement.layers,
            "recompute": placement.recompute,
        }
    )
    priced = estimate(candidates.question, Layout(**layout.model_dump()))
    return priced if candidates.max_memory is None else priced.within(candidates.max_memory)
