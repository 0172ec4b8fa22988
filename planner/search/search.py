"""Exact search, which bounds every legal layout from below, places promising layouts and stops when no other
can win, and the best placement of a layout that the user wrote.

Layouts are visited best bound first (`planner.search.branching`). When no bound is left below the k-th best,
the k best are proven: over all layouts, and over all placements of each. A trainer with one recompute setting
for all stages needs a search per policy, whose results are merged.

`Budget` is the time that several searches of one answer share; its limit or Ctrl-C ends them. Scaling curves
search each of their points once within such a budget.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeVar

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import named_blocks as offloaded_by_number
from cost_models.axes.stages import blocks_by_policy, named_blocks, policy_mask
from cost_models.errors import InfeasibleError, InputError, NothingPlacedError, RunError
from cost_models.estimate import Estimate
from cost_models.pipeline.pools import costs_of_ranks
from cost_models.pipeline.pricing import estimate, estimate_each, scenarios_of
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import Question
from cost_models.recommender.question import RecommenderQuestion
from cost_models.schedules.registry import PLAIN
from cost_models.units import counted, format_seconds
from planner.exact.program import best_placement
from planner.exact.solvers import SolverName
from planner.objectives import PROOFS, Effort
from planner.placement.leaf import Leaf, Task, gap_of
from planner.placement.mixes import good_placement
from planner.placement.patterns import chunk_sizes
from planner.placement.rank_costs import RankCosts
from planner.rules.legality import require_legal
from planner.search.branching import (
    TIE_TOLERANCE,
    BranchAndBound,
    Candidates,
    Progress,
    SearchResult,
    SearchSettings,
    by_speed,
    out_of_time,
)
from planner.search.candidates import UniformCandidates
from planner.search.pools import asks_for_replicas, count_layouts, orders_of, pool_candidates
from planner.search.program import ProgramSearch
from planner.space.obstacles import nothing_legal
from planner.space.restrictions import Restrictions
from planner.space.sizes import AnyQuestion, is_possible_size
from planner.space.space import Space, SpaceCache, shared_spaces


def search(
    question: Question, *, top: int = 5, restrictions: Restrictions | None = None, **settings: Any
) -> SearchResult:
    """Find the `top` fastest layouts of a question, with a certificate. Further `settings` are fields of
    `SearchSettings`.

    `time_limit` is in seconds. When it runs out, or on Ctrl-C with `keep_on_interrupt`, the best so far comes back with
    its proven gap. `solver` closes the proof (`planner.exact.program`); HiGHS if installed. With
    `proof="ilp"` one integer program over all layouts answers instead (`planner.search.program`).

    Raises:
        InfeasibleError: nothing fits, with the layout that comes closest.
        InputError: the restrictions leave no recompute policy, or the integer program does not take the question.
        NothingPlacedError: it ended before anything was placed: time ran out, or what is left cannot be decided.
    """
    return search_on(SearchSettings(top=top, **settings), question, restrictions or Restrictions())


def search_on(settings: SearchSettings, question: Question, limits: Restrictions) -> SearchResult:
    """Find the fastest layouts of a question within restrictions. The result is empty if no layout beats the
    settings' `must_beat_seconds`.

    Raises as `search` does; with `must_beat_seconds` nothing needs to fit.
    """
    question = limits.apply_confidence(question)
    if settings.proof == "ilp" and asks_for_replicas(question, limits):
        hint = "leave out --allow replicas or --solver"
        raise InputError("--solver ilp knows no replicas in pools", hint=hint)
    if parts := limits.by_recompute(question):
        with shared_spaces().shared():
            if any(count_layouts(question, part) for part in parts):
                return search_policies(settings, question, parts)
            raise nothing_legal(question, limits)  # the user's restrictions, not the last part's
    candidates: Candidates
    if question.has_pools:
        candidates = pool_candidates(question, limits)
    else:
        candidates = UniformCandidates(question, limits, settings.space)
    prover: BranchAndBound | ProgramSearch = BranchAndBound(candidates, settings)
    if settings.proof == "ilp":
        prover = ProgramSearch(candidates, settings, limits)
    interrupted = False
    try:
        prover.run()
    except KeyboardInterrupt:
        if not (settings.keep_on_interrupt and prover.best):
            raise
        interrupted = True
    leaders = prover.leaders()
    if not leaders:
        if isinstance(prover, BranchAndBound) and (layouts := prover.abandoned):
            weighed = bool(scenarios_of(question))
            raise NothingPlacedError(
                f"{counted(layouts, 'layout')} could neither be placed nor be shown not to fit, though there was time",
                hint="--risk none places them on paper" if weighed else "please report the question",
                space=candidates.in_words(),
            )
        if prover.is_unfinished:
            raise out_of_time(candidates.in_words())
        if math.isinf(settings.must_beat_seconds):
            nothing = candidates.nothing_fits()
            nothing.space = candidates.in_words()
            raise nothing
    placements = [placement.on(candidates.layout(row)) for row, placement in leaders]
    estimates = [estimate(question, layout).within(candidates.max_memory) for layout in placements]
    ranked, proof = tuple(sorted(estimates, key=by_speed)[: settings.top]), prover.certificate()
    searches = (prover,) if isinstance(prover, BranchAndBound) else ()
    return SearchResult(estimates=ranked, certificate=proof, interrupted=interrupted, searches=searches)


def search_policies(terms: SearchSettings, question: Question, parts: Sequence[Restrictions]) -> SearchResult:
    """Find the best layouts over all `parts`, which are restrictions to one recompute policy each. A layout
    that several parts find counts once, under its fastest policy.

    Each part is searched only for layouts that may be among the best of the parts before it.

    Raises:
        InfeasibleError: nothing fits under any of them.
        NothingPlacedError: nothing was placed under any of them, and not all were ruled out.
    """
    start, top, cut_off = time.monotonic(), terms.top, terms.must_beat_seconds
    layouts = [count_layouts(question, limits) for limits in parts]
    answers, spaces, best, left_open = list[SearchResult](), list[str](), list[Estimate](), 0
    errors: list[InfeasibleError | NothingPlacedError] = []
    for at, limits in enumerate(parts):
        if answers and answers[-1].interrupted:
            left_open += layouts[at]
            continue
        limit = max(0.001, terms.time_limit - (time.monotonic() - start)) / (len(parts) - at)
        try:
            part = replace(terms, time_limit=limit, must_beat_seconds=cut_off)
            answers.append(search_on(part, question, limits))
        except (InfeasibleError, NothingPlacedError) as error:
            errors.append(error)
            spaces += [error.space] * bool(error.space)
            left_open += layouts[at] * isinstance(error, NothingPlacedError)
            continue
        spaces.append(answers[-1].certificate.space)
        fastest: dict[str, Estimate] = {}
        for plan in sorted([*best, *answers[-1].estimates], key=by_speed):
            unplaced = plan.layout.model_copy(update={"layers": (), "recompute": ("none",)})
            fastest.setdefault(str(unplaced), plan)
        best = [*fastest.values()][:top]
        if len(best) == top:
            cut_off = min(cut_off, best[-1].compared_seconds * (1 + TIE_TOLERANCE))
    if not answers:  # the last error that leaves layouts open, else the last
        raise max(errors[::-1], key=lambda error: isinstance(error, NothingPlacedError))
    interrupted = answers[-1].interrupted
    answers.sort(key=lambda result: result.certificate.bound)  # the best one's program settles
    # a layout counts once: undecided if any policy leaves it so, solved if some policy solves it, infeasible under all
    total = max(layouts)  # of the policy with most, which includes those of all others
    proofs = [result.certificate for result in answers]
    bound = 0.0 if left_open else proofs[0].bound
    undecided = min(total, sum(proof.undecided for proof in proofs) + left_open)
    infeasible = max(0, total - left_open - sum(proof.layouts - proof.infeasible for proof in proofs))
    searches = tuple(search for result in answers for search in result.searches)
    names = [search.names(search.rows.decided & np.isfinite(search.rows.bound)) for search in searches]
    solved = len(set().union(*names)) or max(proof.solved for proof in proofs)
    decided = total - undecided - infeasible
    counts = {
        "space": " | ".join(dict.fromkeys(spaces)),
        "layouts": total,
        "infeasible": infeasible,
        "pruned": max(0, decided - solved),
        "solved": min(solved, decided),
        "undecided": undecided,
        "bound": bound,
        "gap": gap_of(best[0].compared_seconds, bound) if best else 1.0,
        "seconds": time.monotonic() - start,
    }
    proof = proofs[0].model_copy(update=counts)
    return SearchResult(estimates=tuple(best), certificate=proof, interrupted=interrupted, searches=searches)


def close_proof(result: SearchResult) -> SearchResult:
    """Run the closing integer program of a search result, which may prove the best layout; unchanged without
    the state of its search."""
    if not result.searches:
        return result
    first = result.searches[0]
    first.close_proof()
    return replace(result, certificate=result.certificate.model_copy(update={"settled": first.settled}))


OnStatus = Callable[[str], None]
"""Function called with a few words on the search that is running."""


Answer = TypeVar("Answer", bound=Any)
"""Answer of a search of any model family, which says whether the user `interrupted` it."""

MAX_PROVEN = 2
"""Maximum number of cached answers, as every answer holds as much memory as its search."""


Query = tuple[Question, Restrictions, int, float, Effort]
"""Question, restrictions, number of layouts, seconds to beat and effort of a search."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Budget:
    """Time limit and settings that all searches of one answer share; once `ended`, no more searches start."""

    time_limit: float | None = None
    """Time limit of all searches together, seconds; None for no limit."""
    on_progress: Progress | None = None
    on_status: OnStatus | None = None
    keep_on_interrupt: bool = False
    solver: SolverName | None = None
    """Solver of the integer program that closes proofs; None for the default."""
    proof: Effort = "search"
    """Effort of the searches, which includes the method of proof."""
    spaces: SpaceCache = field(default_factory=SpaceCache)
    """Cache of search spaces that the searches share."""
    proven: deque[tuple[Query, SearchResult]] = field(default_factory=lambda: deque(maxlen=MAX_PROVEN))
    """Cache of the last proved answers, the latest first."""
    start: float = field(default_factory=lambda: time.monotonic())  # looked up when called, as tests slow it
    ended: bool = False
    """Whether time ran out or the user interrupted."""
    interrupted: bool = False
    failure: RunError | None = None
    """Error of the last search that found nothing; None without such a search, or if only nothing fits."""
    searches: int = 0

    @property
    def seconds_left(self) -> float:
        """Seconds left of the time limit; infinite without a limit."""
        return math.inf if self.time_limit is None else self.time_limit - (time.monotonic() - self.start)

    def tell(self, doing: str) -> None:
        """Report the current activity, a few words, to the callback `on_status`."""
        if self.on_status is not None:
            self.on_status(doing)

    def share(self, parts: int) -> Budget:
        """Create a budget for one of `parts` equal parts of the answer, with an even share of the time left."""
        limit = None if self.time_limit is None else self.seconds_left / parts
        return replace(self, time_limit=limit, start=time.monotonic(), ended=False, failure=None, searches=0)

    @property
    def seconds_spent(self) -> float:
        """Seconds since the budget was started."""
        return time.monotonic() - self.start

    def is_over(self) -> bool:
        """Whether no more searches may start; sets `ended` when the time is up."""
        self.ended = self.ended or self.seconds_left <= 0
        return self.ended

    def attempt(self, search: Callable[[], Answer]) -> Answer | None:
        """Run a search unless the budget is over, and count it; None if it found nothing.

        Raises:
            InfeasibleError: nothing fits, which is proven.
            KeyboardInterrupt: before anything was found, unless interrupts are kept.
        """
        if self.is_over():
            return None
        self.searches += 1
        answer: Answer | None = None
        try:
            answer = search()
            self.interrupted = self.interrupted or answer.interrupted
        except RunError as error:
            self.failure = error
        except KeyboardInterrupt:
            if not self.keep_on_interrupt:
                raise
            self.interrupted = True
        self.ended = self.ended or self.interrupted
        return answer

    def search(
        self,
        question: Question,
        restrictions: Restrictions,
        *,
        top: int = 1,
        seconds: float = math.inf,
        cutoff: float = math.inf,
        closes_with_ilp: bool = True,
        effort: Effort | None = None,
        space: Space | None = None,
        remembers: bool = True,
    ) -> SearchResult | None:
        """Search for the best layouts of a question within the time left; None if time ran out before a
        layout was placed.

        `seconds` limits this search alone and does not end the budget. The answer holds only layouts faster than
        `cutoff` seconds, and may be empty. With `closes_with_ilp` an integer program closes the proof.
        `effort` overrides the budget's `proof`. `space` holds the question's layouts if known, or only those that may
        be fast enough. With `remembers` the same query is not searched again.

        Raises:
            InfeasibleError: nothing fits, which is proven.
            KeyboardInterrupt: before anything was found, unless interrupts are kept.
        """
        if self.is_over():
            return None
        proof = effort or self.proof
        query = (question, restrictions, top, cutoff, proof)
        if cached := next((result for known, result in self.proven if known == query), None):
            needs_ilp = closes_with_ilp and proof in PROOFS and not cached.certificate.settled
            return close_proof(cached) if needs_ilp else cached
        limit, start = min(self.seconds_left, seconds), time.monotonic()
        settings = SearchSettings(
            top=top,
            must_beat_seconds=cutoff,
            time_limit=limit,
            on_progress=self.on_progress,
            keep_on_interrupt=self.keep_on_interrupt,
            closes_with_ilp=closes_with_ilp,
            solver=self.solver,
            proof=proof,
            space=space,
        )
        with self.spaces.shared():
            result = self.attempt(lambda: search_on(settings, question, restrictions))
        proven = result is not None and not result.certificate.undecided
        if remembers and proven and result is not None and not result.interrupted:
            self.proven.appendleft((query, result))
        by_choice = limit < self.seconds_left and time.monotonic() - start >= limit
        self.ended = self.ended or (not proven and self.seconds_left <= 0)
        if by_choice and isinstance(self.failure, NothingPlacedError) and result is None:
            words = f"no layout was placed in {format_seconds(seconds)}, which is what each search of this answer gets"
            self.failure = NothingPlacedError(words, hint="--fix and --forbid leave it fewer layouts")
        return result

    def try_search(self, question: Question, limits: Restrictions, **settings: Any) -> SearchResult | None:
        """Search for the best layouts as `search` does, but return None also if it is proven that no layout
        fits."""
        with suppress(InfeasibleError):
            return self.search(question, limits, **settings)
        return None

    def faster_than(
        self,
        cutoff: float,
        question: Question,
        limits: Restrictions,
        *,
        seconds: float = math.inf,
        space: Space | None = None,
    ) -> Estimate | None:
        """Search for the fastest layout that takes less than `cutoff` seconds; None if there is none, or none
        was found within `seconds`. The limit prunes most layouts at once. `space` is as in `search`.

        Raises:
            KeyboardInterrupt: unless interrupts are kept.
        """
        if space is not None and not len(space.cores):
            return None
        result = self.try_search(
            question, limits, seconds=seconds, cutoff=cutoff, effort="bounds", space=space, remembers=False
        )
        estimates = () if result is None else result.estimates
        return next((one for one in estimates if one.compared_seconds < cutoff), None)

    @property
    def why_ended(self) -> str:
        """Reason why the searches ended early, "interrupted" or "time ran out"."""
        return "interrupted" if self.interrupted else "time ran out"

    def nothing_found(self) -> RunError:
        """Return the error that searches ended before any plan was found.

        Raises:
            KeyboardInterrupt: the user ended it.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        return self.failure or out_of_time()


KINDS = ("strong", "weak")
"""Kinds of scaling: `strong` keeps the global batch, `weak` grows it with the GPUs."""
Row = dict[str, object]


RowAt = Callable[[int, int], Row | None]
"""Function from a number of GPUs and a global batch to a row of a scaling curve; None without an answer."""


def scaling_rows(
    question: AnyQuestion, sizes: Sequence[int], kinds: Sequence[str], budget: Budget, row_at: RowAt
) -> list[Row]:
    """Compute the rows of strong and weak scaling curves over the numbers of GPUs `sizes`. `row_at` is called
    once for points that share GPUs and batch.

    Points on which nothing fits, and those for which `row_at` returns None, are left out.
    """
    gpus_now, batch = question.cluster.num_gpus, question.training.global_batch
    weak = {gpus: batch * gpus // gpus_now for gpus in sizes}
    points = [(kind, (gpus, weak[gpus] if kind == "weak" else batch)) for kind, gpus in product(kinds, sizes)]
    points = [(kind, (gpus, samples)) for kind, (gpus, samples) in points if samples]
    if isinstance(question, RecommenderQuestion):  # GPUs have equal parts of the batch
        points = [(kind, (gpus, samples)) for kind, (gpus, samples) in points if samples % gpus == 0]
    rows: dict[tuple[int, int], Row | None] = {}
    for number, (kind, point) in enumerate(points, start=1):
        budget.tell(f"{kind} scaling, {counted(point[0], 'GPU')} ({number} of {len(points)})")
        if point not in rows:
            rows[point] = None
            with suppress(InfeasibleError):
                rows[point] = row_at(*point)
    return [{"kind": kind, **row} for kind, point in points if (row := rows.get(point))]


def scaling_sizes(question: AnyQuestion) -> list[int]:
    """Numbers of GPUs for a scaling curve, from an eighth to four times the cluster by factors of two; only
    numbers that the cluster can have."""
    gpus = question.cluster.num_gpus
    counts = [gpus // 8, gpus // 4, gpus // 2, gpus, 2 * gpus, 4 * gpus]
    return sorted({count for count in counts if count > 0 and is_possible_size(count, question.cluster)})


def place_layout(question: Question, layout: Layout) -> Layout:
    """Place a layout's blocks on stages so that the step is fastest, under the recompute policies that the
    layout names.

    A layout that is already placed is returned unchanged. A layout that does not fit devices or hosts is
    placed as if memory had no limit, so that it still has a price.

    Raises:
        InputError: the layout breaks a rule of `planner.rules.legality`, or recompute names more blocks than stages
            have.
    """
    require_legal(question, layout, hosts=False)
    if layout.layers:
        return layout
    if layout.replicas or layout.schedule not in PLAIN or layout.num_stages > question.model.num_layers:
        return _in_equal_stages(question, layout)
    placements = [_place_plain(question, one) for one in orders_of(question, layout)]
    return min(placements, key=lambda result: result[:2])[2]


def _place_plain(question: Question, layout: Layout) -> tuple[bool, float, Layout]:
    """Find the best placement of a plain layout (one stage per rank); return whether memory overflows, step
    seconds and placed layout. It overflows memory only where every placement does."""
    costs = costs_of_ranks(question, layout)
    for overflows, rows in ((False, costs), (True, replace(costs, memory_limit=np.full(len(costs), np.inf)))):
        leaf = _leaf_of(question, layout, rows)
        solution = best_placement(Task(leaf, good_placement(leaf)))
        if (placement := solution.placement) is not None:
            return overflows, solution.objective, layout.model_copy(update={"layers": placement.layers})
    raise _names_too_many(layout)


def _in_equal_stages(question: Question, layout: Layout) -> Layout:
    """Place a layout's blocks in stages as equal as possible, with smaller stages at the ends. Of such splits
    it is the fastest that fits in memory, and of equally fast ones the first.

    Used for replicas, which have the same blocks in all pools, and for several chunks a rank.

    Raises:
        InputError: the recompute of some stage names more blocks than such a stage has.
    """
    sizes_ZS = chunk_sizes(question.model.num_layers, layout.num_stages, layout.num_stages)
    named_S = np.array([named_blocks(mix) for mix in layout.stage_recompute])
    sizes_ZS = sizes_ZS[(sizes_ZS >= named_S).all(axis=1)]
    leaf = None if layout.replicas else _leaf_of(question, layout, costs_of_ranks(question, layout))
    if leaf is not None:
        blocks_ZR = sizes_ZS[:, leaf.stage_of].sum(axis=1)
        sizes_ZS = sizes_ZS[(blocks_ZR >= leaf.least_blocks).all(axis=1)]
    if not len(sizes_ZS):
        raise _names_too_many(layout)
    layouts = [layout.model_copy(update={"layers": tuple(sizes)}) for sizes in sizes_ZS.tolist()]
    if leaf is None:
        estimates = estimate_each(question, layouts)
        seconds, fits = [one.step_seconds for one in estimates], [one.fits for one in estimates]
    else:
        blocks = [blocks_by_policy(sizes, layout.stage_recompute) for sizes in sizes_ZS.tolist()]
        blocks_ZSP = leaf.kinds.in_sorts(np.stack(blocks))
        seconds, fits = leaf.step_seconds(blocks_ZSP).tolist(), leaf.fits(blocks_ZSP).tolist()
    return layouts[min(range(len(layouts)), key=lambda index: (not fits[index], seconds[index]))]


def _names_too_many(layout: Layout) -> InputError:
    """Create the error that a layout's recompute names more blocks than a stage has."""
    hint = "name fewer, or say the blocks of each stage: `layers=`"
    return InputError(f"recompute of `{layout}` names more blocks than its stages have", hint=hint)


def _leaf_of(question: Question, layout: Layout, costs: StageCosts) -> Leaf:
    """Placement problem (`Leaf`) of a given layout, with only the recompute policies that the layout names."""
    columns = LayoutColumns.of([layout])
    leaf = RankCosts.of_rows(question, columns, costs, policy_mask(layout.policies)).leaf
    least_blocks = int(offloaded_by_number(columns)[0])
    return replace(leaf, recompute=layout.stage_recompute, least_blocks=least_blocks)
