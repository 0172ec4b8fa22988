"""Trade-offs of two objectives: exact Pareto frontiers, and a cloud of all layouts of memory and throughput.

A point is on the frontier where no covered plan beats it in one objective without losing in the other.

On a fixed number of GPUs step time, GPU-hours and money rise together, so the time-optimal plan is the best in all of
them; over several numbers each size offers one such plan (for MFU one for each padding of the vocabulary), and the
frontier is what is left of them once the beaten ones are gone. Peak memory is another matter: against it every size has
a frontier of its own, walked by the epsilon-constraint method (Haimes et al. 1971): the time-optimal plan, then the
time-optimal plan of less peak memory than that, until nothing fits.

Every point is a proven optimum. Where more points were found than asked for the walk takes larger steps, so points may
lie between those shown, but none above them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.pipeline import even_layers
from cost_models.errors import InfeasibleError, InputError
from cost_models.estimate import Estimate
from cost_models.memory.device import memory_limit
from cost_models.operators.flops import model_flops
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.units import format_bytes
from planner.answers.optimum import just_below, least_memory, paddings
from planner.objectives import Objective
from planner.placement.leaf import TOLERANCE
from planner.search.branching import SearchResult
from planner.search.search import Budget
from planner.space.clouds import BalancedPrices, balanced_prices, cloud
from planner.space.restrictions import Restrictions
from planner.space.sizes import resized

if TYPE_CHECKING:
    import pandas as pd

POINTS = 12
"""Most points of a walk against memory unless the user says otherwise."""
MAX_PRICED = 150
"""Most layouts of a cloud that are priced in full: those whose quick price beats every plan known."""
_MEMORY = Objective(name="memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One plan on the frontier."""

    question: Question
    estimate: Estimate
    gap: float
    """Largest share of its step time that another plan within as much memory may save; 0 is proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The Pareto frontier of two objectives, from the best plan in the first to the best in the second."""

    objectives: tuple[Objective, Objective]
    points: tuple[Point, ...]
    complete: bool
    """Whether no point is missing: no plan was skipped, and no search ran out of time."""


def exact_frontier(
    question: Question,
    objectives: tuple[Objective, Objective],
    *,
    sizes: Sequence[int] = (),
    points: int | None = POINTS,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> Frontier:
    """The frontier over all layouts, placements and numbers of GPUs in `sizes` (default: the question's own).

    Where memory is one of the objectives, at most `points` points of each size are searched; None: all. On Ctrl-C and
    at the budget's limit the points found so far are returned.

    Raises:
        InputError: an objective lacks what it needs, or both are the same.
        InfeasibleError: nothing fits on any of the sizes.
        RunError: time ran out before anything was placed.
    """
    names = {objective.name for objective in objectives}
    if len(names) == 1:
        raise InputError(f"a frontier needs two objectives, not `{objectives[0].name}` twice")
    for objective in objectives:
        objective.require_complete(question, alone=False)
    limits, spending = restrictions or Restrictions(), budget or Budget()
    candidates, complete, failure = list[Point](), True, None
    for gpus in tuple(sizes) or (question.cluster.num_gpus,):
        there = resized(question, gpus) if sizes else question
        for group in paddings(there, limits) if "mfu" in names else [limits]:
            walk = _Walk(there, group, spending)
            try:
                if names == {"memory", "gpus"}:
                    least = least_memory(there, _MEMORY, group, top=1, budget=spending)
                    candidates += [] if least is None else [walk.point(least[0])]
                elif (fastest := spending.search(there, group, effort="bounds")) is None:
                    continue
                elif "memory" in names:
                    complete &= walk.down(fastest, points, candidates)
                else:
                    candidates.append(walk.point(fastest))
            except InfeasibleError as error:
                failure = failure or error
    if not candidates:
        raise failure or spending.nothing_found()

    def losses(point: Point) -> tuple[float, float]:
        first, second = (o.measure.loss(o.value(point.question, point.estimate)) for o in objectives)
        return first, second

    unbeaten, least_loss = list[Point](), math.inf
    for point in sorted(candidates, key=losses):  # that no other is at least as good as in both objectives
        second = losses(point)[1]
        if second < least_loss - TOLERANCE * abs(second):
            unbeaten.append(point)
            least_loss = second
    proven = all(point.gap <= 0 for point in unbeaten) and not spending.ended
    return Frontier(objectives=objectives, points=tuple(unbeaten), complete=complete and proven)


@dataclass(frozen=True, slots=True)
class _Walk:
    """Searches on one number of GPUs, for plans of less and less memory."""

    question: Question
    limits: Restrictions
    budget: Budget

    def point(self, result: SearchResult) -> Point:
        """The best plan of a search."""
        return Point(question=self.question, estimate=result.best, gap=result.certificate.gap)

    def down(self, fastest: SearchResult, points: int | None, candidates: list[Point]) -> bool:
        """Walk from the fastest plan to the one that needs least memory, and add their points to `candidates`; returns
        whether no plan between was skipped.

        Each point is followed by its successor, the fastest plan of less memory; a successor that is as fast takes its
        place. Once a plan was skipped, only such are searched for between two levels: memory limits that fall in even
        ratios, none where all points are wanted.
        """
        point, last, complete = self.point(fastest), None, True
        levels: list[float] = []
        if points is not None:
            budget = self.budget
            least = least_memory(self.question, _MEMORY, self.limits, top=1, budget=budget, known=fastest)
            if least is not None:
                last, steps = self.point(least[0]), max(points - 1, 1)
                high, ratio = fastest.best.peak_bytes, last.estimate.peak_bytes / fastest.best.peak_bytes
                levels = [high * ratio ** (step / steps) * (1 + TOLERANCE) for step in range(1, steps)]
        while True:
            self.budget.tell(f"frontier below {format_bytes(point.estimate.peak_bytes)}")
            walks = complete or last is None
            successor = self._fastest_within(just_below(point.estimate.peak_bytes), None if walks else point)
            if successor is not None and successor.estimate.step_seconds <= _as_slow(
                point.estimate.step_seconds
            ):
                point = successor
                continue
            candidates.append(point)
            if (walks and successor is None) or self.budget.ended:
                break
            if last is None and successor is not None:
                point = successor
                continue
            levels = [level for level in levels if level < point.estimate.peak_bytes]
            if not levels:
                if (
                    last is None
                    or successor is None
                    or last.estimate.peak_bytes < just_below(successor.estimate.peak_bytes)
                ):
                    complete = False
                break
            within = successor is not None and successor.estimate.peak_bytes <= levels[0]
            jump = successor if within else self._fastest_within(levels[0])
            complete &= jump is successor
            if jump is None:
                break
            point = jump
        candidates += [last] if last is not None else []
        return complete and not self.budget.ended

    def _fastest_within(self, limit: float, as_fast_as: Point | None = None) -> Point | None:
        """The fastest plan within a memory limit, or of those as fast as a point; None where there is none, or time ran
        out."""
        within = replace(self.limits, max_memory=limit)
        try:
            if as_fast_as is None:
                result = self.budget.search(self.question, within, effort="bounds")
                return None if result is None else self.point(result)
            slowest = _as_slow(as_fast_as.estimate.compared_seconds)
            estimate = self.budget.faster_than(slowest, self.question, within)
        except InfeasibleError:
            return None
        return None if estimate is None else Point(question=self.question, estimate=estimate, gap=0.0)


def _as_slow(seconds: float) -> float:
    """The longest step that counts as fast as one of some seconds."""
    return seconds * (1 + TOLERANCE)


def pareto_frame(frontier: Frontier) -> pd.DataFrame:
    """A row per point of an exact frontier, from the best in its first objective to the best in its second.

    Columns: `gpus`, `layout`, `step_seconds`, `tokens_per_second`, `mfu`, `peak_bytes`, `gap`, `proven`, and the two
    objectives under their names.
    """
    import pandas as pd

    rows = [
        {
            "gpus": point.question.cluster.num_gpus,
            **_row(point.estimate),
            "gap": point.gap,
            "proven": point.gap <= 0,
            **{one.name: one.value(point.question, point.estimate) for one in frontier.objectives},
        }
        for point in frontier.points
    ]
    return pd.DataFrame(rows)


def frontier_frame(
    question: Question,
    chosen: Estimate | None = None,
    *,
    exact: bool = False,
    points: int | None = POINTS,
    most_named: int | None = None,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """A cloud of legal layouts under every recompute policy, cheaply priced, and the Pareto frontier of memory and
    time.

    A row per layout and policy: `layout`, `peak_bytes` of the fullest device, `step_seconds`, `tokens_per_second`,
    `mfu`, `fits`, `pareto` (nothing known that fits is both smaller and faster), `proven` (no layout at all is),
    `chosen`. Blocks are spread evenly, except in the chosen plan. With `exact` the frontier starts from the exact one
    over all placements, with at most `points` points (None: all). Rows whose cheap price beats the frontier are priced
    in full, and join it or fall below; none is left above. Of a cloud of more than `most_named` rows (None: any number)
    only those priced in full have a name, as writing the others takes longer than pricing them.

    Raises:
        InfeasibleError: `exact`, and nothing fits.
    """
    import pandas as pd

    limits, spending = restrictions or Restrictions(), budget or Budget()
    columns = cloud(question, limits, None if chosen is None else chosen.layout)
    limit = float(memory_limit(question, columns).min()) if chosen is None else chosen.memory_limit
    line, proven = list[Estimate](), set[Layout]()
    if exact:
        objectives = (_MEMORY, Objective(name="time"))
        frontier = exact_frontier(question, objectives, points=points, restrictions=limits, budget=spending)
        line = [point.estimate for point in frontier.points]
        proven = {point.estimate.layout for point in frontier.points if point.gap <= 0}
    if chosen:
        line = [one for one in line if one.layout != chosen.layout] + [chosen]
    prices = balanced_prices(question, columns)
    open_rows, priced = _price_near_line(question, columns, prices, limit, line, spending)
    line = priced + line  # what was chosen stays the last
    cheap = pd.DataFrame(_cheap_rows(question, columns, prices, open_rows, most_named))
    frame = pd.concat([cheap, pd.DataFrame([_row(one) for one in line])], ignore_index=True)
    peaks, seconds = (frame[name].to_numpy()[len(cheap) :] for name in ("peak_bytes", "step_seconds"))
    pareto = len(cheap) + pareto_rows(peaks, seconds, limit)
    return frame.assign(
        fits=frame["peak_bytes"] <= limit,
        pareto=np.isin(frame.index, pareto),
        proven=[False] * len(cheap) + [one.layout in proven for one in line],
        chosen=np.isin(frame.index, [len(frame) - 1] if chosen else []),
    )


def _price_near_line(
    question: Question,
    columns: LayoutColumns,
    prices: BalancedPrices,
    limit: float,
    line: Sequence[Estimate],
    budget: Budget,
) -> tuple[Bools, list[Estimate]]:
    """Entries of the flattened prices that beat no known plan, and the plans found by pricing in full what looked
    better.

    A cheap price is sometimes too good; the best-looking layouts are priced in full until none looks better any more.
    Beyond `MAX_PRICED` of them the others are left out, since nobody knows how good they are.
    """
    seconds, peaks = prices.step_seconds.ravel(), prices.peak_bytes.ravel()
    open_rows, priced = np.isfinite(seconds), list[Estimate]()
    while True:
        # smaller or faster than every known plan that fits
        known = sorted((one.peak_bytes, one.step_seconds) for one in (*line, *priced) if one.fits)
        fastest = np.minimum.accumulate(np.array([np.inf, *(step for _, step in known)]))
        better = np.flatnonzero(open_rows & (peaks <= limit))
        smaller = np.searchsorted(np.array([size for size, _ in known]), peaks[better], side="right")
        better = better[seconds[better] < fastest[smaller]]
        best = better[pareto_rows(peaks[better], seconds[better], limit)]
        if not len(best) or len(priced) + len(best) > MAX_PRICED:
            open_rows[better] = False
            return open_rows, priced
        budget.tell(f"pricing {len(best)} layouts near the frontier in full")
        priced += [price(question, evenly_spread(question, columns, flat)) for flat in best.tolist()]
        open_rows[best] = False


def evenly_spread(question: Question, columns: LayoutColumns, flat: int) -> Layout:
    """The layout and recompute policy of one entry of flattened (layout, policy) prices, its blocks spread evenly."""
    row, policy = divmod(flat, len(RECOMPUTE_POLICIES))
    layout = columns.layout(row)
    layers = even_layers(question.model.num_layers, layout.num_stages)
    return layout.model_copy(update={"layers": layers, "recompute": (RECOMPUTE_POLICIES[policy],)})


def pareto_rows(size: Array, seconds: Array, limit: float) -> Ints:
    """Indices, by rising size, of the rows within `limit` that are faster than every smaller or equal one."""
    order = np.lexsort((seconds, size))
    order = order[(size[order] <= limit) & np.isfinite(seconds[order])]
    best_before = np.minimum.accumulate(np.concatenate([[np.inf], seconds[order][:-1]]))
    return order[seconds[order] < best_before]


def _cheap_rows(
    question: Question,
    columns: LayoutColumns,
    prices: BalancedPrices,
    shown: Bools,
    most_named: int | None,
) -> dict[str, object]:
    """Columns of the data frame for those of the flattened prices that are shown."""
    row, policy = np.nonzero(shown.reshape(prices.step_seconds.shape))
    seconds = prices.step_seconds[row, policy]
    named = np.unique(row) if most_named is None or len(row) <= most_named else row[:0]
    names = {number: str(columns.layout(number)) for number in named.tolist()}
    words = ["" if name == "none" else f" recompute={name}" for name in RECOMPUTE_POLICIES]
    pairs = zip(row.tolist(), policy.tolist(), strict=True)
    degrees = np.unique(columns.tp).tolist()
    flops_of_tp = {tp: model_flops(question.model, question.training, tp) for tp in degrees}
    flops = np.array([flops_of_tp[tp] for tp in columns.tp[row].tolist()])
    peak = question.cluster.gpu.peak[question.training.precision]
    return {
        "layout": [names[r] + words[p] if r in names else "" for r, p in pairs],
        "peak_bytes": prices.peak_bytes[row, policy],
        "step_seconds": seconds,
        "tokens_per_second": question.training.tokens_per_step / seconds,
        "mfu": flops / (seconds * question.cluster.num_gpus * peak),
    }


def _row(estimate: Estimate) -> dict[str, object]:
    names = ("peak_bytes", "step_seconds", "tokens_per_second", "mfu")
    return {"layout": estimate.layout.brief, **{name: getattr(estimate, name) for name in names}}
