"""The exact search: price every legal layout from below, place the promising ones, stop when nothing else can win.

Layouts are visited best bound first. First each gets a good placement, which lowers the k-th best time and so discards
most of the others; then those whose bound still beats it are placed exactly. When no bound is left below the k-th best,
the k best are proven: over all layouts, and over all placements of each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from cost_models.errors import RunError
from cost_models.estimate import Estimate
from cost_models.estimating import estimate
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import CriticalPath
from cost_models.specs.columns import Ints
from cost_models.specs.layout import Layout
from cost_models.specs.recompute import RECOMPUTE_POLICIES, policies_in
from planner.chunks import best_pattern, chunk_sizes
from planner.heuristics import THOROUGH, good_placement
from planner.ilp.stages import solve_stages
from planner.joint import search_alike
from planner.legality import Bools, require_legal
from planner.placement import PLAIN, TOLERANCE, Floats, Leaf, Placement
from planner.plan import Certificate
from planner.pools.space import MixedSpace, layout_costs, orders_of, price_pools
from planner.priced_space import PricedSpace, price_space
from planner.search_space import Restrictions

REFINED_TOGETHER = 512
"""Layouts whose capacity bound is computed in one go: enough for numpy, few enough not to be wasted."""

Progress = Callable[[int, int, float, float], None]
"""(layouts decided, layouts in all, best seconds, proven bound in seconds)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The k best layouts, best first, each with its best placement, and why nothing else is better."""

    estimates: tuple[Estimate, ...]
    certificate: Certificate

    @property
    def best(self) -> Estimate:
        """The fastest."""
        return self.estimates[0]


def search(
    question: Question,
    *,
    top: int = 5,
    restrictions: Restrictions | None = None,
    time_limit: float | None = None,
    on_progress: Progress | None = None,
    keep_on_interrupt: bool = False,
) -> SearchResult:
    """The `top` fastest layouts of a question.

    `time_limit` is in seconds. When it runs out, or on Ctrl-C with `keep_on_interrupt`, the best so far comes back with
    its proven gap.

    Raises:
        InfeasibleError: nothing fits, with the layout that comes closest.
        InputError: the restrictions leave no recompute policy.
        RunError: time ran out before anything was placed.
    """
    limits = restrictions or Restrictions()
    if parts := limits.alike(question.training):

        def part(asked: Question, within: Restrictions, seconds: float | None) -> SearchResult:
            return search(
                asked,
                top=top,
                restrictions=within,
                time_limit=seconds,
                on_progress=on_progress,
                keep_on_interrupt=keep_on_interrupt,
            )

        return search_alike(part, question, parts, top, time_limit)
    start = time.monotonic()
    space = _space(question, limits)
    state = _State(space, top, start, time_limit, on_progress)
    try:
        state.run()
    except KeyboardInterrupt:
        if not (keep_on_interrupt and state.best):
            raise
    if not state.best:
        if state.open_rows.any():
            raise RunError("time ran out before any layout was placed", hint="allow more with --time-limit")
        raise space.nothing_fits()
    worst = state.kth_seconds * (1 + TOLERANCE)
    leaders = [(row, placement) for row, (placement, seconds) in state.best.items() if seconds <= worst]
    estimates = [_estimate(question, space, row, placement) for row, placement in leaders]
    ranked = sorted(estimates, key=lambda e: (e.step_seconds, e.peak_bytes, str(e.layout)))[:top]
    return SearchResult(estimates=tuple(ranked), certificate=state.certificate())


def place(question: Question, layout: Layout) -> Layout:
    """A layout with its blocks placed as well as possible under the recompute policies it names.

    A layout that is already placed comes back as it is; one that fits nowhere is placed as if memory had no limit, so
    that its price can still be told.

    Raises:
        InputError: the layout breaks a rule of `planner.legality`.
    """
    require_legal(question, layout)
    if layout.layers:
        return layout
    if layout.schedule not in PLAIN:
        return _best_sizes(question, layout)
    candidates = list(orders_of(question, layout)) if isinstance(question, MixedQuestion) else [layout]
    found = [(_placed(question, candidate), candidate) for candidate in candidates]
    (_, _, placement), chosen = min(found, key=lambda one: one[0][:2])
    return chosen.model_copy(update={"layers": placement.layers})


def _placed(question: Question, layout: Layout) -> tuple[bool, float, Placement]:
    """Whether a layout overflows memory wherever its blocks lie, and its best step time with its placement."""
    costs = layout_costs(question, layout)
    named = {policy for mix in layout.stage_recompute for policy in policies_in(mix)}
    for overflows, rows in ((False, costs), (True, replace(costs, memory_limit=np.full(len(costs), np.inf)))):
        leaf = Leaf(
            costs=rows,
            pp=layout.pp,
            vpp=layout.vpp,
            schedule=layout.schedule,
            microbatches=layout.microbatches(question.training.global_batch),
            num_layers=question.model.num_layers,
            allowed=np.array([policy in named for policy in RECOMPUTE_POLICIES]),
            recompute=layout.stage_recompute,
        )
        solution = solve_stages(leaf, incumbent=good_placement(leaf))
        if solution.placement is not None:
            return overflows, solution.objective, solution.placement
    raise AssertionError("without a memory limit every legal layout has a placement")


def _space(question: Question, limits: Restrictions) -> PricedSpace | MixedSpace:
    if isinstance(question, MixedQuestion):
        return price_pools(question, limits)
    return price_space(question, limits)


def _best_sizes(question: Question, layout: Layout) -> Layout:
    """The fastest of the sizes that the search covers for several chunks a rank; the first where they are equal."""
    sizes = chunk_sizes(question.model.num_layers, layout.num_stages).tolist()
    placed = [layout.model_copy(update={"layers": tuple(layers)}) for layers in sizes]
    return min((estimate(question, one) for one in placed), key=lambda priced: priced.step_seconds).layout


@dataclass
class _State:
    """What is known so far."""

    space: PricedSpace | MixedSpace
    top: int
    start: float
    time_limit: float | None
    on_progress: Progress | None
    best: dict[int, tuple[Placement, float]] = field(default_factory=dict)
    """Row → the best placement known and its step time."""
    paths: dict[tuple[int, int, int], list[CriticalPath]] = field(default_factory=dict)
    """(schedule, pp, microbatches) → critical paths met so far: they hold for any costs of the same pipeline."""

    def __post_init__(self) -> None:
        rows = len(self.space.columns)
        self.bound: Floats = np.empty(rows)
        """Proven lower bound of each row; infinite where it fits nowhere; the best time where it is decided."""
        self.refined = np.zeros(rows, dtype=np.bool_)
        self.placed = np.zeros(rows, dtype=np.bool_)
        """Rows that were given a good placement, or were found to have none quickly."""
        self.decided = np.zeros(rows, dtype=np.bool_)
        for group in self.space.groups:
            self.bound[group] = self.space.quick_bounds(group)
            self.refined[group] = self.space.columns.vpp[group] > 1  # their bound has no finer one

    @property
    def kth_seconds(self) -> float:
        """The time to beat."""
        times = sorted(seconds for _, seconds in self.best.values())
        return times[self.top - 1] if len(times) >= self.top else math.inf

    @property
    def open_rows(self) -> Bools:
        """(N,): rows that may still belong to the k best and are not decided."""
        threshold = self.kth_seconds * (1 - TOLERANCE)
        rows: Bools = ~self.decided & np.isfinite(self.bound) & (self.bound < threshold)
        return rows

    def run(self) -> None:
        """Good placements for all rows whose bound asks for one, then exact ones."""
        while (row := self._next(~self.placed)) is not None:
            self.placed[row] = True
            self._place(row)
            self._report()
        while (row := self._next(np.ones_like(self.decided))) is not None:
            self._solve(row)
            self._report()

    def _next(self, wanted: Bools) -> int | None:
        """The wanted open row with the least bound, once that bound is refined; None when there is none or no time."""
        while self._seconds_left() > 0:
            rows = np.flatnonzero(wanted & self.open_rows)
            if not len(rows):
                return None
            rows = rows[np.argsort(self.bound[rows], kind="stable")]
            if self.refined[rows[0]]:
                return int(rows[0])
            self._refine(rows[~self.refined[rows]][:REFINED_TOGETHER])
        return None

    def _refine(self, rows: Ints) -> None:
        for group in self.space.groups:
            some = np.intersect1d(group, rows, assume_unique=True)
            if len(some):
                self.bound[some] = np.maximum(self.bound[some], self.space.capacity_bounds(some))
        self.refined[rows] = True

    def _place(self, row: int) -> None:
        """Give a row a good placement; an interleaved row gets its best one, if that can matter, and is decided."""
        leaf, cut_off = self.space.leaf(row), self.kth_seconds
        found = good_placement(leaf) if leaf.is_plain else best_pattern(leaf, cut_off)
        if found:
            self.best[row] = found
        seconds = found[1] if found else cut_off
        if not leaf.is_plain or seconds <= self.bound[row] * (1 + TOLERANCE):
            self._decide(row, seconds)

    def _solve(self, row: int) -> None:
        """Place one layout exactly, as far as it can still be among the k best."""
        leaf, left = self.space.leaf(row), self._seconds_left()
        known = [found for found in (self.best.get(row), good_placement(leaf, THOROUGH)) if found]
        columns = self.space.columns
        pipeline = (int(columns.schedule[row]), leaf.pp, leaf.microbatches)
        met = self.paths.setdefault(pipeline, [])
        solution = solve_stages(
            leaf,
            incumbent=min(known, key=lambda found: found[1], default=None),
            met_paths=met,
            cut_off=self.kth_seconds,
            time_limit=None if math.isinf(left) else left,
        )
        met += solution.paths
        if solution.placement is not None:
            self.best[row] = (solution.placement, solution.objective)
        if solution.status == "stopped":
            self.bound[row] = max(self.bound[row], solution.bound)
        elif solution.status == "infeasible":
            self._decide(row, math.inf)
        else:
            self._decide(row, solution.bound)

    def _decide(self, row: int, seconds: float) -> None:
        self.bound[row], self.decided[row] = max(self.bound[row], seconds), True

    def _seconds_left(self) -> float:
        return math.inf if self.time_limit is None else self.time_limit - (time.monotonic() - self.start)

    def _report(self) -> None:
        if self.on_progress is not None:
            total = len(self.bound)
            done = total - int(self.open_rows.sum())
            self.on_progress(done, total, self._best_seconds(), self._proven_bound())

    def _best_seconds(self) -> float:
        return min((seconds for _, seconds in self.best.values()), default=math.inf)

    def _proven_bound(self) -> float:
        """No covered layout takes less."""
        return min(float(self.bound[self.open_rows].min(initial=math.inf)), self._best_seconds())

    def certificate(self) -> Certificate:
        """What was covered, and what became of it."""
        infeasible, open_rows = np.isinf(self.bound), self.open_rows
        best, bound = self._best_seconds(), self._proven_bound()
        solved = self.decided & ~infeasible
        return Certificate(
            top=self.top,
            space=self.space.in_words(),
            layouts=len(self.bound),
            infeasible=int(infeasible.sum()),
            pruned=int((~infeasible & ~solved & ~open_rows).sum()),
            solved=int(solved.sum()),
            undecided=int(open_rows.sum()),
            bound=bound,
            gap=(best - bound) / best,
            seconds=time.monotonic() - self.start,
        )


def _estimate(
    question: Question, space: PricedSpace | MixedSpace, row: int, placement: Placement
) -> Estimate:
    """The full price of a row's placement."""
    layout = space.layout(row).model_copy(
        update={
            "layers": placement.layers,
            "recompute": placement.recompute,
        }
    )
    priced = estimate(question, Layout(**layout.model_dump()))
    return priced if space.max_memory is None else priced.within(space.max_memory)
