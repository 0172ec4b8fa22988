"""Opening closed entries best bound first: from bounds of many layouts at once to the costs of single ones.

    cores   ideal bound    → relaxed costs, a sharper bound
    cores   relaxed bound  → each of their variants
    pairs   core and variant, the same bound under their own costs → halves of their counts of offloaded blocks, and of
            single counts each of their shapes
    shapes  bound of their pipeline, at the same costs             → written out
    rows    layouts, bound of their pipeline at their own costs    → placed by `planner.search.branching`

Opening replaces an entry by what it stands for. An entry whose bound cannot beat the k-th best layout is never opened,
which decides all its layouts at once.

How many layouts may take less than some seconds, counted from where a search ended.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from planner.bounds.pricing import Pricing, groups_of, shape_bounds
from planner.bounds.step import capacity_bounds
from planner.placement.leaf import Leaf
from planner.rules.searched import searched
from planner.search.branching import BranchAndBound
from planner.search.candidates import Tally
from planner.search.entries import FIRST_OPENED, MOST_OPENED, SEEDS, TIES, Cores, Pairs, joined
from planner.space.counts import Boxes, with_counts
from planner.space.layouts import Space, legal_space
from planner.space.limits import limits_in_words
from planner.space.nothing_fits import explain_infeasible, nothing_legal
from planner.space.restrictions import Restrictions


class UniformCandidates:
    """The candidates of a question on one kind of GPU."""

    def __init__(self, question: Question, limits: Restrictions, space: Space | None = None) -> None:
        """Of a `space` that is known, or else of what is legal."""
        space = space or legal_space(question, limits)
        if not len(space):
            raise nothing_legal(question, limits)
        self._pricing = Pricing(
            space=space,
            policies=limits.recompute(question),
            max_memory=limits.max_memory,
            counted=limits.counts_blocks(question),
        )
        self._limits = limits
        self._cores, self._pairs = Cores(self._pricing), Pairs(self._pricing)
        none = np.empty(0, dtype=np.int64)
        self._columns = space.rows(none, none.reshape(0, 2), none.reshape(0, 2))
        self._costs = stage_costs(question, self._columns)
        self._opened = 0
        self._passed_over = [(none, none.reshape(0, 2), np.empty(0))]
        """Pairs, shapes and bounds of layouts of open pairs that the bound of their shape discarded."""
        self._batch = FIRST_OPENED

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
        """Least bound of the closed cores and pairs, seconds."""
        return min(self._cores.least(), self._pairs.least())

    def open(self, below: float) -> Array:
        """Open the entries with the least bounds; the first time some of every kind, for an early incumbent."""
        self._opened += 1
        if self._opened == 1:
            seeds = self._cores.seeds()
            self._cores.relax(seeds)
            best = seeds[np.argsort(self._cores.bound[seeds], kind="stable")][:SEEDS]
            self._open_cores(best[np.isfinite(self._cores.bound[best])])
        elif self._cores.least() <= self._pairs.least():
            self._open_cores(self._cores.next(below, self._batch))
            self._batch = min(2 * self._batch, MOST_OPENED)
            return np.empty(0)
        return self._open_pairs(self._pairs.next(below, self._batch), below * (1 + TIES))

    def _open_cores(self, cores: Ints) -> None:
        self._cores.is_open[cores] = True
        self._pairs.add(cores)

    def _open_pairs(self, chosen: Ints, cut_off: float) -> Array:
        """Write out the shapes of some pairs that may take less than `cut_off` seconds; returns their quick bounds.

        Those that stand for several counts are halved, and come again.
        """
        space, pairs = self._pricing.space, self._pairs
        single = pairs.counts.rows(chosen).is_single
        if not single.all():
            pairs.halve(chosen[~single])
            chosen = chosen[single]
        pairs.is_open[chosen] = True
        if pairs.passes is None or not len(chosen):
            return np.empty(0)
        owned = [
            space.shapes[pipeline][zero]
            for pipeline, zero in zip(
                space.pipeline[pairs.core[chosen]].tolist(), pairs.variant[chosen, 0].tolist(), strict=True
            )
        ]
        pair, shape = np.repeat(chosen, [len(own) for own in owned]), np.concatenate(owned)
        cores = space.cores.rows(pairs.core[pair])
        least = shape_bounds(
            pairs.passes.rows(pair),
            pp=cores.pp,
            shapes=shape,
            microbatches=cores.microbatches(self.question.training.global_batch),
            kinds=self.question.kinds,
        )
        kept = least < cut_off
        self._passed_over.append((pair[~kept], shape[~kept], least[~kept]))
        return self._write_out(pair[kept], shape[kept], least[kept])

    def reopen(self, below: float) -> Array:
        """Write out the shapes of open pairs that a smaller time to beat left unwritten; returns their quick bounds."""
        pair, shape, least = map(np.concatenate, zip(*self._passed_over, strict=True))
        late = least < below
        self._passed_over = [(pair[~late], shape[~late], least[~late])]
        return self._write_out(pair[late], shape[late], least[late])

    def _write_out(self, pair: Ints, shape: Ints, least: Array) -> Array:
        """Price (N,) pairs with (N, 2) shapes, whose bounds are known; returns their quick bounds."""
        counts = self._pairs.counts.rows(pair)
        columns = self._pricing.space.rows(self._pairs.core[pair], self._pairs.variant[pair], shape)
        columns = with_counts(columns, counts.least)
        costs = self._pricing.costs(columns, counts)
        self._columns, self._costs = joined(self._columns, columns), joined(self._costs, costs)
        return np.maximum(self._pricing.bounds(columns, costs), least)

    def open_all(self) -> None:
        """Write out every layout, with what hosts cannot hold."""
        self._columns = self._pricing.space.all_rows()
        self._costs = self._pricing.costs(self._columns, Boxes.of(self._columns))

    def tally(self, below: float) -> Tally:
        """Count the layouts of closed entries; those whose bound is `below` seconds or more are pruned."""
        infeasible, undecided = 0, 0
        pruned = sum(len(least) for _, _, least in self._passed_over)
        for level, layouts in (
            (self._cores, self._pricing.space.sizes),
            (self._pairs, self._pairs.layouts),
        ):
            closed = ~level.is_open
            infeasible += int(layouts[closed & np.isinf(level.bound)].sum())
            pruned += int(layouts[closed & np.isfinite(level.bound) & (level.bound >= below)].sum())
            undecided += int(layouts[closed & (level.bound < below)].sum())
        return Tally(infeasible, pruned, undecided)

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """(N,) finer lower bounds of rows; a bound need not be computed beyond `cut_off` seconds."""
        bound = np.empty(len(rows))
        for some in groups_of(self._columns.rows(rows)):
            group = self._pricing.group(self._columns, self._costs, rows[some])
            bound[some] = capacity_bounds(group, cut_off)
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
        for axis in searched().values():
            if axis.most_held is None or axis.nothing_held is None:
                continue
            columns, held = axis.most_held(self.question, columns, self._pricing.space.counts.rows(core))
            if not held.any():
                return axis.nothing_held(self.question, columns)
            core, columns = core[held], columns.rows(np.flatnonzero(held))
        costs = self._pricing.costs(columns, Boxes.of(columns))
        return explain_infeasible(self.question, columns, costs, self._pricing.policies)

    def in_words(self) -> str:
        """What the search covers, in words."""
        shapes = np.concatenate([own for by_stage in self._pricing.space.shapes for own in by_stage])
        used = [SCHEDULES[index] for index in np.unique(shapes[:, 1]).tolist()]
        policies = " / ".join(self._pricing.policies)
        mixes = f"any number of blocks of a stage under each of recompute {policies}"
        alike = ", or where stages are of such sizes all ranks as many of their first blocks"
        if self._pricing.counted:
            mixes, alike = "any number of first blocks recomputed in full, of every stage the same", ""
        return (
            "all legal tp x pp x vpp x cp x dp x ep x etp x mbs x ZeRO x shard groups x sequence parallelism x axis"
            f" orders x ways of context parallelism x schedules ({', '.join(used)}) on"
            f" {self.question.cluster.num_gpus} GPUs, within limits:"
            f" {limits_in_words(self.question, self._limits)}; {mixes}{alike}"
            + "; in plain pipelines each stage recomputes as is fastest at mean costs of the scenarios"
            * bool(self._pricing.space.in_scenarios)
        )


def count_below(found: BranchAndBound, seconds: float, most: int, has_time: Callable[[], bool]) -> int | None:
    """Number of layouts whose bound is below some seconds; None where there are more than `most` or time is over.

    What the search discarded for a smaller time to beat is opened again; bounds that it stopped at that time are
    computed further.
    """
    candidates, rows = found.candidates, found.rows
    assert isinstance(candidates, UniformCandidates)
    rows.add(candidates.reopen(seconds))
    while candidates.least_closed() < seconds:
        rows.add(candidates.open(seconds))
        if int((rows.first_bound < seconds).sum()) > most or not has_time():
            return None
    near = rows.first_bound < seconds
    stopped = rows.first_bound >= found.kth_seconds
    some = np.flatnonzero(near & (~rows.refined | stopped))
    rows.refine(some, candidates.capacity_bounds(some, seconds))
    return int((rows.first_bound < seconds).sum())
