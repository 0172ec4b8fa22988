"""Costs and bounds of the layouts of a space, under the recompute policies and memory limit of a search.

The layouts of one question on one kind of GPU, opened best bound first.

    cores   ideal bound, then relaxed bound (`planner.bounds.cores`)     → each of their layouts, priced
    rows    layouts under the bound of their pipeline at their own costs   → placed by `planner.search.branching`

A core whose bound cannot beat the k-th best layout is never opened, which decides all its layouts at once. Where counts
of blocks are open (`planner.space.counts`), a row stands for a box of them and is halved before it is placed.

`count_below` and `nearest_below` resume a finished search: the number of layouts that may take less than some seconds,
and the layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import named_blocks
from cost_models.axes.recompute import allowed_recompute
from cost_models.errors import InfeasibleError
from cost_models.pipeline.pricing import costs_under_scenarios
from cost_models.pipeline.stage_costs import StageCosts, stage_costs
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN, is_scheduled
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute
from planner.bounds.boxes import least_costs, most_held, nothing_held
from planner.bounds.cores import best_known_bounds, relaxed_bounds
from planner.bounds.steps import capacity_bounds, quick_bounds
from planner.placement.leaf import TOLERANCE, Leaf, WeighedLeaf
from planner.placement.mixes import good_placement
from planner.placement.patterns import best_pattern
from planner.placement.rank_costs import RankCosts
from planner.search.branching import BranchAndBound
from planner.search.candidates import Tally, joined, lowest
from planner.space.counts import Boxes, with_counts
from planner.space.limits import limits_in_words
from planner.space.obstacles import explain_infeasible, nothing_legal
from planner.space.restrictions import Restrictions
from planner.space.space import Space, legal_space


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """Costs and quick bounds of rows of a space."""

    space: Space
    policies: tuple[Recompute, ...]
    """Recompute policies the search may use."""
    max_memory: float | None
    """Bytes of a device a plan may fill, where that is less than the device allows."""
    uses_full_counts: bool = False
    """See `Leaf.uses_full_counts`."""

    @property
    def question(self) -> Question:
        """Question of the space."""
        return self.space.question

    @property
    def allowed_at_all(self) -> Bools:
        """(P,): policies a stage may use under some schedule."""
        return np.array([policy in self.policies for policy in RECOMPUTE_POLICIES])

    def allowed(self, schedule: int) -> Bools:
        """(P,): policies a stage may use under a schedule."""
        schedule_policies = allowed_recompute(SCHEDULES[schedule])
        return np.array(
            [policy in self.policies and policy in schedule_policies for policy in RECOMPUTE_POLICIES]
        )

    def costs(self, columns: LayoutColumns, counts: Boxes) -> StageCosts:
        """Minimum costs of layouts that stand for boxes of counts, within the memory limit."""
        return self.limited(least_costs(self.question, columns, counts))

    def limited(self, costs: StageCosts) -> StageCosts:
        """Costs within the user's memory limit."""
        if self.max_memory is None:
            return costs
        return replace(costs, memory_limit=np.minimum(costs.memory_limit, self.max_memory))

    def bounds(self, columns: LayoutColumns, costs: StageCosts) -> Array:
        """(N,) quick bounds of layouts: those of one pipeline shape together, those in chunks of one schedule; infinite
        where the schedule runs under none of the policies, as in a space that was made for more of them."""
        bound = np.full(len(columns), np.inf)
        plain = is_scheduled(columns, PLAIN)
        for rows in groups_of(columns, np.flatnonzero(plain)):
            bound[rows] = quick_bounds(self.group(columns, costs, rows))
        for schedule in np.unique(columns.schedule[~plain]).tolist():
            if not self.allowed(schedule).any():
                continue
            rows = np.flatnonzero(columns.schedule == schedule)
            bound[rows] = quick_bounds(self.group(columns, costs, rows, one_shape=False))
        return bound

    def group(
        self, columns: LayoutColumns, costs: StageCosts, rows: Ints, *, one_shape: bool = True
    ) -> RankCosts:
        """Rows of one schedule, for the bounds; of several pipeline shapes for their quick bound in chunks."""
        columns = columns.rows(rows)
        return RankCosts.of_rows(
            self.question,
            columns,
            costs.rows(rows),
            self.allowed(int(columns.schedule[0])),
            uses_full_counts=self.uses_full_counts,
            one_shape=one_shape,
        )

    def leaf(self, columns: LayoutColumns, costs: StageCosts, row: int) -> Leaf:
        """One layout, to be placed."""
        rows = np.array([row])
        row_columns = columns.rows(rows)
        leaf = replace(self.group(columns, costs, rows).leaf, least_blocks=int(named_blocks(row_columns)[0]))
        if not self.space.in_scenarios:
            return leaf
        scenarios = costs_under_scenarios(self.question, row_columns)
        assert scenarios is not None
        return WeighedLeaf.of(leaf, scenarios, self.question.risk)


def groups_of(columns: LayoutColumns, rows: Ints | None = None) -> list[Ints]:
    """Rows that share pp, vpp and schedule, of some or all."""
    rows = np.arange(len(columns)) if rows is None else rows
    if not len(rows):
        return []
    keys = ((columns.schedule * (1 << 40)) + (columns.pp << 20) + columns.vpp)[rows]
    order = np.argsort(keys, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(keys[order])) + 1)


SEED_CORES = 64
"""Cores opened first, for an early incumbent."""
FIRST_OPENED, MOST_OPENED = 128, 20_000
"""Entries opened in one batch: few at first, doubling every time."""
FIRST_RELAXED, MOST_RELAXED = 4096, 65_536
"""Cores relaxed in one batch: few at first, doubling every time."""
FEWEST_PARTS = 256
"""Minimum number of boxes of counts that are priced together: pricing one takes as long as pricing many."""
TIES = 4 * TOLERANCE
"""Relative margin above the time to beat within which a layout may tie with the best and has to be opened."""
PRICED_TOGETHER = 50_000
"""Rows priced in one batch, which bounds memory."""
MOST_NEAR = 100_000
"""Maximum number of layouts examined for the nearest."""
PLACEMENTS_PER_LAYOUT = 3
"""Maximum placements tried for each requested layout: some layouts fit nowhere."""


class Cores:
    """Cores under their ideal bound and, once relaxed, under their sharper relaxed bound."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self.bound = best_known_bounds(pricing.space, pricing.allowed_at_all)
        self.is_relaxed = np.zeros(len(self.bound), dtype=np.bool_)
        self.is_open = np.zeros(len(self.bound), dtype=np.bool_)
        self._batch = FIRST_RELAXED

    def least_closed(self) -> float:
        """Minimum bound of the closed cores, seconds; infinite where none is left."""
        return float(np.min(self.bound, where=~self.is_open, initial=np.inf))

    def seeds(self) -> Ints:
        """Cores likely to hold a good layout: the lowest relaxed bounds among those with the best ideal bound, overall
        or of their (tp, pp, cp)."""
        cores = self._pricing.space.cores
        order = np.argsort(self.bound, kind="stable")
        mesh = (cores.tp * (1 << 40) + cores.pp * (1 << 20) + cores.cp)[order]
        _, first = np.unique(mesh, return_index=True)
        likely = order[np.union1d(first, np.arange(min(len(order), SEED_CORES)))]
        self._relax(likely)
        best: Ints = likely[np.argsort(self.bound[likely], kind="stable")][:SEED_CORES]
        return best[np.isfinite(self.bound[best])]

    def _relax(self, cores: Ints) -> None:
        """Replace ideal bounds of cores by relaxed bounds."""
        for start in range(0, len(cores), PRICED_TOGETHER):
            batch = cores[start : start + PRICED_TOGETHER]
            sharper = relaxed_bounds(
                self._pricing.space, batch, self._pricing.allowed_at_all, self._pricing.max_memory
            )
            self.bound[batch] = np.maximum(self.bound[batch], sharper)
        self.is_relaxed[cores] = True

    def lowest(self, threshold: float, max_count: int) -> Ints:
        """At most `max_count` closed cores with the lowest bounds below `threshold` seconds, relaxed first if
        necessary."""
        while True:
            closed = np.flatnonzero(~self.is_open & (self.bound < threshold))
            rows = lowest(self.bound, closed, max_count)
            if self.is_relaxed[rows].all():
                return rows
            batch = lowest(self.bound, closed[~self.is_relaxed[closed]], self._batch)
            self._relax(np.sort(batch))  # neighbours have more in common
            self._batch = min(2 * self._batch, MOST_RELAXED)


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed layouts of open cores, or boxes of layouts that differ in counts of blocks."""

    core: Ints
    """(N,)"""
    choice: Ints
    """(N, 4) zero, shard, vpp and schedule"""
    counts: Boxes
    bound: Array
    """(N,) seconds"""

    def rows(self, index: Ints) -> Closed:
        """Selected entries."""
        return Closed(self.core[index], self.choice[index], self.counts.rows(index), self.bound[index])

    @classmethod
    def joined(cls, parts: Sequence[Closed]) -> Closed:
        """Concatenation of several tables."""
        core, choice, bound = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("core", "choice", "bound")
        )
        return cls(core, choice, Boxes.joined([part.counts for part in parts]), bound)


class UniformCandidates:
    """The candidates of a question on one kind of GPU."""

    def __init__(self, question: Question, limits: Restrictions, space: Space | None = None) -> None:
        """Candidates of `space`; by default of all legal layouts."""
        space = space or legal_space(question, limits)
        if not len(space):
            raise nothing_legal(question, limits)
        self._pricing = Pricing(
            space=space,
            policies=limits.recompute(question),
            max_memory=limits.max_memory,
            uses_full_counts=limits.counts_blocks(question),
        )
        self._limits = limits
        self._cores = Cores(self._pricing)
        core, choice = space.choices_of(np.empty(0, dtype=np.int64))
        self.closed = Closed(core, choice, space.counts.rows(core), np.empty(0))
        self._columns = space.rows(core, choice)
        self._costs = stage_costs(question, self._columns)
        self._seeded, self._batch = False, FIRST_OPENED

    @property
    def question(self) -> Question:
        """The question whose layouts these are."""
        return self._pricing.question

    @property
    def max_memory(self) -> float | None:
        """Bytes a plan may fill of each device, where that is less than the device allows; None: no such limit."""
        return self._pricing.max_memory

    def __len__(self) -> int:
        return len(self._pricing.space)

    def least_closed(self) -> float:
        """Minimum bound of the closed cores and layouts, seconds."""
        return min(self._cores.least_closed(), float(self.closed.bound.min(initial=np.inf)))

    def open(self, threshold: float) -> Array:
        """Open the entries with the lowest bounds; the first call opens seeds, for an early incumbent."""
        if not self._seeded:
            self._seeded = True
            return self.open_cores(self._cores.seeds(), threshold)
        if self._cores.least_closed() <= self.closed.bound.min(initial=np.inf):
            cores = self._cores.lowest(threshold, self._batch)
            self._batch = min(2 * self._batch, MOST_OPENED)
            return self.open_cores(cores, threshold)
        bound = self.closed.bound
        return self.halve(lowest(bound, np.flatnonzero(bound < threshold), self._batch), threshold)

    def open_cores(self, cores: Ints, threshold: float) -> Array:
        """Price every layout of some cores; returns the quick bounds of layouts that may take less than `threshold`."""
        self._cores.is_open[cores] = True
        core, choice = self._pricing.space.choices_of(cores)
        return self._price(core, choice, self._pricing.space.counts.rows(core), threshold)

    def halve(self, rows: Ints, threshold: float) -> Array:
        """Replace closed boxes of counts by their halves, or smaller parts where there are few; single layouts that may
        take less than `threshold` seconds are opened, and their quick bounds returned."""
        parents = self.closed.rows(rows)
        self.closed = self.closed.rows(np.setdiff1d(np.arange(len(self.closed.core)), rows))
        core, choice, counts = parents.core, parents.choice, parents.counts
        while True:
            part, counts = counts.halves()
            core, choice = core[part], choice[part]
            if len(core) >= FEWEST_PARTS or counts.is_single.all():
                return self._price(core, choice, counts, threshold)

    def _price(self, core: Ints, choice: Ints, counts: Boxes, threshold: float) -> Array:
        """Price (N,) layouts or boxes. Single layouts that may take less than `threshold` seconds, or tie, become rows,
        whose quick bounds are returned; the others stay closed."""
        bounds, columns_of, costs_of, closed = [np.empty(0)], [self._columns], [self._costs], [self.closed]
        for start in range(0, len(core), PRICED_TOGETHER):
            batch = np.arange(start, min(start + PRICED_TOGETHER, len(core)))
            boxes = counts.rows(batch)
            columns = with_counts(self._pricing.space.rows(core[batch], choice[batch]), boxes.least)
            costs = self._pricing.costs(columns, boxes)
            bound = self._pricing.bounds(columns, costs)
            is_row = boxes.is_single & (bound < threshold * (1 + TIES))
            rows, priced = np.flatnonzero(is_row), Closed(core[batch], choice[batch], boxes, bound)
            columns_of.append(columns.rows(rows))
            costs_of.append(costs.rows(rows))
            closed.append(priced.rows(np.flatnonzero(~is_row)))
            bounds.append(bound[rows])
        self._columns, self._costs = joined(columns_of), joined(costs_of)
        self.closed = Closed.joined(closed)
        return np.concatenate(bounds)

    def open_all(self) -> None:
        """Write out every layout, even those that hosts cannot hold."""
        self._columns = self._pricing.space.all_rows()
        self._costs = self._pricing.costs(self._columns, Boxes.of(self._columns))

    def tally(self, threshold: float) -> Tally:
        """Count the layouts of closed entries; bounds of `threshold` seconds or more mean pruned."""
        closed = ~self._cores.is_open
        layouts = np.concatenate([self._pricing.space.sizes[closed], self.closed.counts.layouts])
        bound = np.concatenate([self._cores.bound[closed], self.closed.bound])
        infeasible, late = np.isinf(bound), bound >= threshold

        def total(entries: Bools) -> int:
            return int(layouts[entries].sum())

        return Tally(total(infeasible), total(late & ~infeasible), total(~late & ~infeasible))

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """Finer lower bounds of rows, seconds (N,); bounds above `cut_off` may be the cut-off."""
        bound = np.empty(len(rows))
        for members in groups_of(self._columns.rows(rows)):
            group = self._pricing.group(self._columns, self._costs, rows[members])
            bound[members] = capacity_bounds(group, cut_off)
        return bound

    def leaf(self, row: int) -> Leaf:
        """One row with its costs, ready to be placed."""
        return self._pricing.leaf(self._columns, self._costs, row)

    def layout(self, row: int) -> Layout:
        """The layout of one row, without a placement."""
        return self._columns.layout(row)

    def nothing_fits(self) -> InfeasibleError:
        """The error to raise when no placement of any layout fits."""
        core, columns = self._pricing.space.smallest_rows()
        columns, has_room = most_held(self.question, columns, self._pricing.space.counts.rows(core))
        if not has_room.any():
            return nothing_held(self.question, columns)
        core, columns = core[has_room], columns.rows(np.flatnonzero(has_room))
        costs = self._pricing.costs(columns, Boxes.of(columns))
        return explain_infeasible(self.question, columns, costs, self._pricing.policies)

    def in_words(self) -> str:
        """Description of what the search covers."""
        shapes = np.concatenate([own for by_stage in self._pricing.space.shapes for own in by_stage])
        used = [SCHEDULES[index] for index in np.unique(shapes[:, 1]).tolist()]
        policies = " / ".join(self._pricing.policies)
        mixes = f"any number of blocks of a stage under each of recompute {policies}"
        chunked = ", or where stages are of such sizes all ranks as many of their first blocks"
        if self._pricing.uses_full_counts:
            mixes, chunked = "any number of first blocks recomputed in full, of every stage the same", ""
        return (
            "all legal tp x pp x vpp x cp x dp x ep x etp x mbs x ZeRO x shard groups x sequence parallelism x axis"
            f" orders x ways of context parallelism x schedules ({', '.join(used)}) on"
            f" {self.question.cluster.num_gpus} GPUs, within limits:"
            f" {limits_in_words(self.question, self._limits)}; {mixes}{chunked}"
            + "; in plain pipelines each stage recomputes as is fastest at mean costs of the scenarios"
            * bool(self._pricing.space.in_scenarios)
        )


def count_below(
    search: BranchAndBound, seconds: float, max_count: int, has_time: Callable[[], bool]
) -> int | None:
    """Number of layouts whose bound is below `seconds`; None if there are more than `max_count`, or time is over.

    Entries that the search left closed for its smaller time to beat are opened, and bounds cut off there are refined.
    """
    candidates, rows = search.candidates, search.rows
    while candidates.least_closed() < seconds:
        rows.add(candidates.open(seconds))
        if int((rows.first_bound < seconds).sum()) > max_count or not has_time():
            return None
    near = rows.first_bound < seconds
    stopped = rows.first_bound >= search.kth_seconds
    unrefined = np.flatnonzero(near & (~rows.refined | stopped))
    rows.refine(unrefined, candidates.capacity_bounds(unrefined, seconds))
    return int((rows.first_bound < seconds).sum())


def nearest_below(
    searches: Sequence[BranchAndBound],
    seconds: float,
    max_layouts: int,
    first: Layout,
    has_time: Callable[[], bool],
) -> list[Layout]:
    """At most `max_layouts` layouts faster than `seconds`, lowest bounds first, each with a good placement; they differ
    from `first` and one another in degrees or microbatch. The result does not depend on search order."""
    for search in searches:
        count_below(search, seconds, MOST_NEAR, has_time)
    near = sorted(
        (float(search.rows.first_bound[row]), number, str(search.candidates.layout(row)), row)
        for number, search in enumerate(searches)
        for row in np.flatnonzero(search.rows.first_bound < seconds).tolist()
    )
    layouts, degrees, num_placed = list[Layout](), {_degrees(first)}, 0
    for _, number, _, row in near:
        candidates = searches[number].candidates
        layout = candidates.layout(row)
        if _degrees(layout) in degrees:
            continue
        if len(layouts) == max_layouts or num_placed == PLACEMENTS_PER_LAYOUT * max_layouts or not has_time():
            break
        leaf, num_placed = candidates.leaf(row), num_placed + 1
        solution = good_placement(leaf) if leaf.is_plain else best_pattern(leaf, seconds)
        if solution and solution[1] < seconds:
            degrees.add(_degrees(layout))
            layouts.append(solution[0].on(layout))
    return layouts


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.cp, layout.dp, layout.ep, layout.expert_tp, layout.mbs
