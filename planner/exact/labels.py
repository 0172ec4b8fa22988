"""Best placement of one plain layout (one stage per rank), by label setting and critical paths.

**Paths.** A path is a chain of actions that every schedule of its kind contains, so its length is a lower
bound for any durations, known without running the timeline. The integer program starts from those that are critical
with one rank slowed, and adds those that its solution violates; `planner.bounds.steps` relaxes paths.

Windows of 1F1B: rank r runs backward j just before forward j + p − r. So a forward that goes down from
`first` to `last`, turns into the backward there that follows it, and comes up, is followed at `first` by the
forward `last − first + 1` later: a round of the window for that many microbatches; the remainder, less than a
round, passes `first` as pairs. With T_r forward plus backward of one microbatch, c a transfer and S_r the sum
of T over ranks before r, and including the first microbatch's way down from rank e and the last one's way up
to e,

    M_e ≥ F_e − S_e − e c + 2 S_p − S_first + rounds (S_last+1 − S_first) + remainder T_first + transfers c

where F_e is the forward part of S_e: ranks e and later are a separate pipeline that begins F_e + e c later.

**Choices** of each rank: block counts that fit within a given step, with their seconds, and the least and
greatest sums that the ranks still to be filled can add. With several kinds of blocks a choice is a number of
blocks and the class of their start (`Kinds.class_at`), numbered as in `Leaf.choice_indices`; a rank may take
it after blocks of that class.

**Labels.** A label is one way to fill ranks 0 … r, represented by all that later ranks depend on: its blocks,
its sums, and the limits that windows and paths begun in it set for later ranks. If two labels have equally
many blocks, one that leaves at least as much in every respect stands for both, so few remain (label setting:
Desrochers and Soumis 1988).

Every limit is a path through the timeline, below which no step can be: if no label reaches the last rank, no
placement takes less than the target. Labels that reach it are candidates. Their timelines give a better step,
or a critical path by which the next pass excludes them (Benders 1962, with label setting in place of a linear
program). Placements are finitely many and every round excludes one, so this ends with a proof.

Shape legend: K labels, R ranks (each one stage), B choices, in order of blocks, P recompute policies, C sums
or cuts, Q boundaries after the filled ranks, L blocks in all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.risk import weighed_mask
from cost_models.schedules.registry import schedule_named
from cost_models.schedules.timeline import CriticalPath
from planner.bounds.steps import rank_sizes
from planner.placement.leaf import TOLERANCE, Leaf, Placement, Solution, Status, Task, final_status
from planner.placement.mixes import fastest_mixes
from planner.placement.rank_costs import RankCosts

SAME_LINE = 1e-12
"""Relative deviation within which the seconds of a pass count as linear in the number of blocks."""


class Choices:
    """Block counts that each rank may have, each count with its seconds and with the fastest mix of recompute
    policies that fits."""

    def __init__(self, leaf: Leaf, first: int, blocks: Ints, useful: Bools) -> None:
        self.leaf = leaf
        self.first = first
        """Index of the first choice in the tables of `Leaf.choice_indices`, for a single kind of block the
        smallest block count."""
        self.blocks = blocks
        """Number of blocks under each recompute policy, for each block count on each rank, (B, R, P)."""
        self.useful = useful
        """Whether each rank may have each block count, (R, B)."""
        self.sizes, self.classes = np.divmod(first + np.arange(len(blocks)), leaf.kinds.classes)
        """Block counts of the choices, and classes of positions where their blocks begin, (B,)."""
        self.forward, self.backward = leaf.forward(blocks).T, leaf.backward(blocks).T
        self.seconds = self.forward + self.backward
        """Seconds of one pass forward and back, (R, B)."""
        self.sync = leaf.once_a_step("sync", blocks).T
        """Seconds of gradient synchronisation after a rank's last action, (R, B)."""
        self.optimizer = leaf.once_a_step("optimizer", blocks).T
        """Seconds of a rank's optimizer step, (R, B)."""
        self.most_blocks = self.sizes[::-1][useful[:, ::-1].argmax(axis=1)]
        """Maximum blocks of each rank, (R,)."""

    @cached_property
    def ways(self) -> Bools:
        """Whether each rank may have each block count when all earlier ranks together have 0, 1, ... or L
        blocks, (R, L + 1, B)."""
        return np.asarray(self.useful[:, None, :] & (self.leaf.kinds.class_at[:, None] == self.classes))

    def table(self, layers_KR: Ints) -> Ints:
        """Table of blocks under each recompute policy, (..., R, P), for given block counts of the ranks, (..., R)."""
        return self.blocks[self.leaf.choice_indices(layers_KR) - self.first, np.arange(self.leaf.pp)]

    @cached_property
    def slowest_step(self) -> float:
        """Upper bound of the step time of any placement made of the choices, seconds."""
        if self.leaf.kinds.classes == 1:
            return float(self.leaf.step_seconds(self.table(self.most_blocks)))
        chosen_BRP = np.where(self.useful.T[..., None], self.blocks, 0)
        return float(self.leaf.step_seconds(chosen_BRP.max(axis=0)))


def choices_among(leaf: Leaf, first: int, blocks_BRP: Ints, useful_RB: Bools) -> Choices | None:
    """Create `Choices` from the mask of useful block counts, (R, B); None if a rank has no useful count."""
    return Choices(leaf, first, blocks_BRP, useful_RB) if useful_RB.any(axis=1).all() else None


def choices_of(leaf: Leaf, target: float = math.inf) -> Choices | None:
    """Block counts that each rank may have in a step of at most `target` seconds; None if no step is so
    short."""
    low, high = leaf.sizes.start, leaf.sizes.stop - 1
    least_R, most_R = np.full(leaf.pp, low), np.full(leaf.pp, high)
    if math.isfinite(target):
        (least_R,), (most_R,) = rank_sizes(RankCosts.of(leaf), np.array([target * (1 + TOLERANCE)]))
    sizes = range(max(low, int(least_R.min())), min(high, int(most_R.max())) + 1)
    if not len(sizes):
        return None
    seconds_BR, blocks_BRP = fastest_mixes(leaf, sizes)
    size_B = np.repeat(sizes, leaf.kinds.classes)
    useful_RB = np.isfinite(seconds_BR).T & (size_B >= least_R[:, None]) & (size_B <= most_R[:, None])
    return choices_among(leaf, sizes.start * leaf.kinds.classes, blocks_BRP, useful_RB)


def least_remaining(choices: Choices, ways: Bools, added_CRB: Array) -> Array:
    """Minimum sum of `added_CRB` over rank r and all later ranks, for each number of blocks on earlier ranks,
    (R + 1, C, L + 1). It is infinite if the remaining blocks cannot be placed.

    `ways` (R, L + 1, B) are those of `Choices.ways` that remain.
    """
    layers, pp = choices.leaf.num_layers, choices.leaf.pp
    least_CL = np.full((pp + 1, len(added_CRB), layers + 1), np.inf)
    least_CL[pp, :, layers] = 0.0
    for rank in range(pp - 1, -1, -1):
        for index in np.flatnonzero(choices.useful[rank]).tolist():
            size = int(choices.sizes[index])
            begun = least_CL[rank, :, : layers + 1 - size]
            extended = least_CL[rank + 1, :, size:] + added_CRB[:, rank, index, None]
            np.minimum(begun, extended, out=begun, where=ways[rank, : layers + 1 - size, index])
    return least_CL


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Critical paths as lower bounds of the step, each a sum of seconds that depend on the ranks' block
    counts."""

    added: Array
    """Seconds that each choice of a rank adds to each path, (C, R, B)."""
    fixed: Array
    """Seconds of the path's transfers, (C,)."""
    is_full_step: bool = False
    """Whether the paths include the optimizer step and the overhead."""


def cuts_of(choices: Choices, paths: Sequence[CriticalPath]) -> Cuts:
    """Lower bounds of the step from critical paths, each including the gradient synchronisation of the path's
    last rank."""
    passes = [(path.forward_counts, path.backward_counts) for path in paths]
    counts = np.array(passes, dtype=np.float64).reshape(len(paths), 2, choices.leaf.pp, 1)
    ends = np.array([path.rank for path in paths], dtype=np.int64)
    added = counts[:, 0] * choices.forward + counts[:, 1] * choices.backward
    added[np.arange(len(paths)), ends] += choices.sync[ends]
    return Cuts(added=added, fixed=np.array([path.p2p_count for path in paths]) * choices.leaf.cost("p2p"))


ROUNDING = 1e-11
"""Relative rounding error of sums of seconds, by which limits are loosened."""
NO_LIMIT = 1e30
"""Large number that stands for infinity, which would spoil sums."""
GRAIN = ROUNDING / 128
"""Share of the target in whose multiples labels (partial placements) are compared, so that rounding does not
tell them apart."""
MUCH = 8.0
"""Cap on compared sums and limits, in multiples of the target; larger values do not matter."""
PIVOTS = 32
"""Number of labels (partial placements) compared with all others in one batch, enough for numpy, few enough
to bound memory."""


@dataclass(frozen=True, slots=True)
class Labels:
    """K partial placements, which give block counts to the first ranks only ("filled" ranks)."""

    blocks: Ints
    """Number of blocks on the filled ranks together, (K,)."""
    seconds: Array
    """Seconds of one pass forward and back through the filled ranks, (K,)."""
    forward: Array
    """Seconds of the forward part of that pass, (K,)."""
    optimizer: Array
    """Longest optimizer step of a filled rank, seconds (K,)."""
    lead: Array
    """Maximum of F_e − S_e − e c + gradient synchronisation of e over the filled ranks e, seconds (K,), as in
    the windows of 1F1B above."""
    limit: Array
    """Upper limits of `seconds` once the ranks before each boundary are filled, (K, R + 1)."""
    cuts: Array
    """Seconds that the filled ranks add to each cut, (K, C); −NO_LIMIT where the cut can no longer matter."""
    sizes: Ints
    """Block count of each filled rank, (K, filled)."""

    def __len__(self) -> int:
        return len(self.blocks)

    def rows(self, index: Ints | Bools) -> Labels:
        """Select the labels (partial placements) at the given indices."""
        return Labels(**{one.name: getattr(self, one.name)[index] for one in fields(self)})


class LabelPass:
    """One pass of label setting, which extends partial placements rank by rank. It finds every placement that
    may take at most `target` seconds, except those dominated by another one."""

    def __init__(self, choices: Choices, ways: Bools, cuts: Cuts, target: float) -> None:
        """Prepare bounds on the ranks not filled yet. `ways` (R, L + 1, B) says whether a rank may make a
        choice, by the blocks before it."""
        self.choices, self.ways, self.cuts = choices, ways, cuts
        self.target = min(target, choices.slowest_step * (1 + TOLERANCE))
        self._steady = schedule_named(choices.leaf.schedule).steady
        self._rest_seconds = least_remaining(choices, ways, choices.seconds[None])[:, 0]
        """Minimum seconds of one pass through the ranks not filled yet, (R + 1, L + 1)."""
        self._least_of_cuts = least_remaining(choices, ways, cuts.added)
        self._most_of_cuts = -least_remaining(choices, ways, -cuts.added)
        """Minimum and maximum seconds that ranks not filled yet add to each cut, (R + 1, C, L + 1)."""
        possible = np.isfinite(self._rest_seconds)
        self._least_reached = possible.argmax(axis=1)
        self._most_reached = choices.leaf.num_layers - possible[:, ::-1].argmax(axis=1)
        """Minimum and maximum blocks before each boundary on any way to the end, (R + 1,)."""
        leaf, useful, seconds = choices.leaf, choices.useful, choices.seconds
        fixed_R = leaf.forward(leaf.no_blocks) + leaf.backward(leaf.no_blocks)
        slowest_R, fewest_R = np.where(useful, seconds, 0.0).max(axis=1), choices.sizes[useful.argmax(axis=1)]
        each_R = np.stack([fixed_R, slowest_R, fewest_R, choices.most_blocks])
        self._sums = np.concatenate([np.zeros((4, 1)), np.cumsum(each_R, axis=1)], axis=1)
        """Sums over the ranks before each boundary, (4, R + 1): seconds of one pass without blocks, its maximum, and
        minimum and maximum blocks."""
        each_RB = (seconds - fixed_R[:, None]) / choices.sizes
        self._least_block = float(each_RB[useful].min())
        """Minimum seconds that a block adds to a pass."""
        line_RB = fixed_R[:, None] + self._least_block * choices.sizes
        off_RB = np.abs(seconds - line_RB) > SAME_LINE * line_RB
        self._on_a_line = not bool((off_RB & useful).any())
        """Whether the seconds of a pass depend only on the rank's block count, as under the fastest policy."""

    def run(self) -> tuple[Labels, Bools] | None:
        """Run the pass; return the labels (placements) that fill all ranks, and which choices lead to them,
        (R, L + 1, B). A choice is a block count of a rank after a number of earlier blocks. None if there
        would be more than `MOST_LABELS` labels."""
        leaf, steps = self.choices.leaf, []
        least_R = np.where(self.choices.useful, self.choices.optimizer, np.inf).min(axis=1)
        zero, optimizer, limit = np.zeros(1), np.full(1, least_R.max()), np.full((1, leaf.pp + 1), NO_LIMIT)
        blocks, sizes = np.zeros(1, dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
        cuts = np.zeros((1, len(self.cuts.fixed)))
        labels = Labels(blocks, zero, zero, optimizer, zero - NO_LIMIT, limit, cuts, sizes)
        for rank in range(leaf.pp):
            labels = self._trim(self._extend(labels, rank), rank)
            size = labels.sizes[:, -1]
            steps.append(np.unique(np.stack([labels.blocks - size, size], axis=1), axis=0))
            if len(labels) > 1:
                labels = labels.rows(undominated(labels.blocks, self._merits(labels, rank)))
            if not len(labels):
                return labels, np.zeros_like(self.ways)
            if len(labels) > MOST_LABELS:
                return None
        return labels, self._on_a_way(steps)

    def _extend(self, labels: Labels, rank: int) -> Labels:
        """Extend each label (partial placement) by each block count of the next rank, except where critical
        paths would exceed the target."""
        choices, leaf = self.choices, self.choices.leaf
        m, c = leaf.microbatches, leaf.cost("p2p")
        has_blocks_KB = labels.blocks[:, None] + choices.sizes <= leaf.num_layers
        parents, picks = np.nonzero(self.ways[rank, labels.blocks] & has_blocks_KB)
        parent = labels.rows(parents)
        size_K, rank_K = choices.sizes[picks], choices.seconds[rank, picks]
        blocks, seconds = parent.blocks + size_K, parent.seconds + rank_K
        forward = parent.forward + choices.forward[rank, picks]
        rest_K = self._rest_seconds[rank + 1, blocks]
        optimizer = np.maximum(parent.optimizer, choices.optimizer[rank, picks])
        lead = parent.forward - parent.seconds - rank * c + choices.sync[rank, picks]
        lead = np.maximum(parent.lead, lead)
        cuts = parent.cuts + self.cuts.added[:, rank, picks].T
        busy = parent.seconds + m * rank_K + 2 * rank * c  # all microbatches pass the rank
        if self._steady == "queue":
            busy = np.maximum(busy, parent.seconds + m * rank_K + rest_K + 2 * (leaf.pp - 1) * c)
        in_time = seconds <= parent.limit[:, rank + 1] * (1 + ROUNDING)
        in_time &= np.isfinite(rest_K) & (lead + busy <= self._room(optimizer))
        cut_seconds = cuts + self.cuts.fixed + self._least_of_cuts[rank + 1][:, blocks].T
        in_time &= (cut_seconds <= self._room_of_cuts(optimizer)[:, None]).all(axis=1)
        sizes = np.concatenate([parent.sizes, size_K[:, None]], axis=1)
        extended = Labels(blocks, seconds, forward, optimizer, lead, parent.limit, cuts, sizes).rows(in_time)
        self._limit_windows(extended, rank, parent.seconds[in_time], rank_K[in_time], rest_K[in_time])
        return extended

    def _limit_windows(self, labels: Labels, rank: int, prior_K: Array, rank_K: Array, rest_K: Array) -> None:
        """Tighten, in each label (partial placement), the time limits of later ranks by the 1F1B windows that
        begin on `rank`."""
        leaf = self.choices.leaf
        after_warm_up = leaf.microbatches - 1 - (leaf.pp - rank)
        if self._steady != "pairs" or after_warm_up < 0:  # microbatches do not outlast the warm-up
            return
        length_Q = np.arange(1, leaf.pp - rank + 1)
        rounds_Q, remainder_Q = np.divmod(after_warm_up, length_Q)
        transfers_Q = 4 * (leaf.pp - 1) - 2 * rank + rounds_Q * 2 * (length_Q - 1)
        in_all = prior_K + rank_K + rest_K
        left_K = self._room(labels.optimizer) - labels.lead - 2 * in_all + prior_K
        left_KQ = left_K[:, None] - transfers_Q * leaf.cost("p2p") - remainder_Q * rank_K[:, None]
        no_round_KQ = np.where(left_KQ < 0, -1.0, NO_LIMIT)
        round_KQ = prior_K[:, None] + left_KQ / np.maximum(rounds_Q, 1)
        limit_KQ = np.where(rounds_Q > 0, round_KQ, no_round_KQ)
        np.minimum(labels.limit[:, rank + 1 :], limit_KQ, out=labels.limit[:, rank + 1 :])

    def _trim(self, labels: Labels, rank: int) -> Labels:
        """Drop labels (partial placements) that leave later ranks too little time. Of the other labels, drop
        time limits and critical paths that can no longer bind."""
        choices, block, later = self.choices, self._least_block, slice(rank + 1, None)
        fixed_Q, slowest_Q, held_Q, reach_Q = self._sums[:, later] - self._sums[:, rank + 1, None]
        limit_KQ = labels.limit[:, later] * (1 + ROUNDING)
        start_K = labels.seconds - block * labels.blocks
        most_KQ = (limit_KQ - start_K[:, None] - fixed_Q) / block
        most_KQ = np.floor(most_KQ + ROUNDING * (np.abs(most_KQ) + choices.leaf.num_layers))
        most_KQ = np.minimum(most_KQ, np.minimum(labels.blocks[:, None] + reach_Q, self._most_reached[later]))
        most_KQ = np.minimum.accumulate((most_KQ - held_Q)[:, ::-1], axis=1)[:, ::-1] + held_Q
        most_KQ = np.minimum.accumulate(most_KQ - reach_Q, axis=1) + reach_Q
        needed_Q = self._least_reached[later]
        rest_K = self._rest_seconds[rank + 1, labels.blocks]
        enough = (most_KQ >= np.maximum(needed_Q, labels.blocks[:, None] + held_Q)).all(axis=1)
        enough &= labels.seconds + rest_K <= limit_KQ[:, -1]
        if self._on_a_line:
            limit_KQ = start_K[:, None] + fixed_Q + block * most_KQ
        else:
            anyway_KQ = labels.seconds[:, None] + slowest_Q
            limit_KQ = np.where(limit_KQ >= anyway_KQ, NO_LIMIT, labels.limit[:, later])
        labels.limit[:, later] = limit_KQ
        worst_KC = labels.cuts + self.cuts.fixed + self._most_of_cuts[rank + 1][:, labels.blocks].T
        longest = np.where(choices.useful, choices.optimizer, 0.0).max(axis=(0, 1))
        labels.cuts[worst_KC <= self._room_of_cuts(longest)] = -NO_LIMIT
        return labels.rows(enough)

    def _merits(self, labels: Labels, rank: int) -> Array:
        """Scores, (K, …), by which labels (partial placements) with equally many blocks are compared; higher
        scores leave later ranks more freedom."""
        sums = np.stack([labels.seconds, labels.forward, labels.optimizer, labels.lead], axis=1)
        merits = np.concatenate([-sums, -labels.cuts, labels.limit[:, rank + 1 :]], axis=1)
        return np.rint(np.clip(merits / self.target, -MUCH, MUCH) / GRAIN)

    def _on_a_way(self, steps: list[Ints]) -> Bools:
        """Mask of the choices that lead to a complete placement, (R, L + 1, B); a choice is a block count of
        a rank after a number of earlier blocks. Ways of dominated labels (partial placements) count as
        well."""
        on_a_way = np.zeros_like(self.ways)
        reached = np.array([self.choices.leaf.num_layers])
        for rank in range(len(steps) - 1, -1, -1):
            before_K, size = steps[rank].T
            leads_on = np.isin(before_K + size, reached)
            choice = self.choices.leaf.choice_index(before_K[leads_on], size[leads_on]) - self.choices.first
            on_a_way[rank, before_K[leads_on], choice] = True
            reached = np.unique(before_K[leads_on])
        return on_a_way

    def _room(self, optimizer: Array) -> Array:
        """Seconds of the target that overhead and optimizer step leave for pipeline and gradient
        synchronisation, (K,)."""
        return (self.target - self.choices.leaf.overhead - optimizer) + ROUNDING * self.target

    def _room_of_cuts(self, optimizer: Array) -> Array:
        """Largest length of a critical path within the target, seconds (K,)."""
        full_step = np.full_like(optimizer, self.target * (1 + ROUNDING))
        return full_step if self.cuts.is_full_step else self._room(optimizer)


def undominated(kind: Ints, merits: Array) -> Bools:
    """Mask (K,) of the labels that no other label of equal `kind` dominates, that is, equals or exceeds in
    all D merits. Of equal labels only the first stays."""
    order = np.lexsort((-merits.sum(axis=1), kind))
    starts = np.flatnonzero(np.diff(kind[order], prepend=kind[order[0]] - 1))
    survives = np.zeros(len(kind), dtype=np.bool_)
    for rows in np.split(order, starts[1:]):
        survives[_front(rows, merits)] = True
    return survives


def _front(rows: Ints, merits: Array) -> Ints:
    """Select the rows whose merits no other row dominates. The given `rows` come in order of falling sums, so
    no row dominates an earlier row."""
    front: list[Ints] = []
    while len(rows):
        pivots = rows[:PIVOTS]
        dominated: Bools = np.all(merits[pivots][:, None, :] >= merits[rows][None, :, :], axis=2)
        dominated &= np.arange(len(pivots))[:, None] < np.arange(len(rows))
        survives: Bools = np.logical_not(np.any(dominated, axis=0))
        front.append(pivots[survives[: len(pivots)]])
        rows = rows[len(pivots) :][survives[len(pivots) :]]
    return np.concatenate(front)


MOST_LABELS = 4096
"""Maximum number of labels (partial placements) after one rank; with more, the integer program takes over."""
MOST_CANDIDATES = 16
"""Maximum number of placements whose timelines are evaluated after one pass."""
MOST_PASSES = 24
"""Maximum number of passes that rule out block counts before the integer program is built."""


def place_by_labels(task: Task) -> Solution | None:
    """Find the best placement of a plain layout (one stage per rank) by label setting, if its step is below
    the cut-off; None if there are too many labels. The incumbent is not used. The solution is `stopped`,
    without a bound, at the deadline or after the maximum number of rounds.

    Where scenarios are weighed, passes are at mean costs and leave every placement that may take less than the target
    (`cost_models.pipeline.pricing`). Each candidate is priced in every scenario; the mean length of its critical paths
    there, of the scenarios that count, is its weighed step and a bound of every other placement's. Each stage has the
    mix of recompute policies that is fastest at mean costs. No integer program does that, so too many labels stop it.
    """
    leaf, cut_off, paths = task.leaf, task.cut_off, [*task.met_paths]
    best, best_seconds, rounds, scenario_paths = None, math.inf, 0, list[ScenarioPaths]()
    while not (stopped := time.monotonic() >= task.deadline or rounds == task.most_rounds):
        target = min(best_seconds, cut_off) * (1 - TOLERANCE)
        choices = choices_of(leaf, target)
        if choices is None:
            break
        rounds += 1
        cuts = _mean_path_cuts(choices, scenario_paths) if leaf.scenarios else cuts_of(choices, paths)
        passed = LabelPass(choices, choices.ways, cuts, target).run()
        if passed is None:
            if leaf.scenarios is None:
                return None
            stopped = True
            break
        sizes_KR, lead_K = passed[0].sizes, passed[0].lead
        if not len(lead_K):
            break
        blocks_KRP = choices.table(sizes_KR[np.argsort(lead_K, kind="stable")[:MOST_CANDIDATES]])
        seconds_K = leaf.step_seconds(blocks_KRP)
        if leaf.scenarios:
            scenario_paths += [_scenario_paths(leaf, leaf.scenarios, blocks_RP) for blocks_RP in blocks_KRP]
        else:
            paths += map(leaf.critical_path, blocks_KRP)
        fastest = int(seconds_K.argmin())
        if seconds_K[fastest] < best_seconds:
            best, best_seconds = Placement.of(blocks_KRP[fastest]), float(seconds_K[fastest])
    status: Status = "stopped" if stopped else final_status(best_seconds, cut_off)
    bound = 0.0 if stopped else min(best_seconds, cut_off)
    return Solution(status, best, best_seconds, bound, rounds, tuple(paths[len(task.met_paths) :]))


def choices_in_time(leaf: Leaf, target: float, paths: Sequence[CriticalPath] = ()) -> Choices | None:
    """Block counts that each rank may have in a step of at most `target` seconds, narrowed by critical paths;
    None if no step is so short.

    Every pass closes ways, so that the next can close more.
    """
    choices = choices_of(leaf, target)
    if choices is None:
        return None
    ways, cuts = choices.ways, cuts_of(choices, paths)
    for _ in range(MOST_PASSES):
        passed = LabelPass(choices, ways, cuts, target * (1 + TOLERANCE)).run()
        if passed is None or passed[1].sum() == ways.sum():
            break
        ways = passed[1]
    useful_RB: Bools = choices.useful & ways.any(axis=1)
    return choices_among(leaf, choices.first, choices.blocks, useful_RB)


ScenarioPaths = list[tuple[int, CriticalPath, int]]
"""Critical paths in several scenarios, each with its scenario and the rank with the longest optimizer step there: the
mean of their lengths plus optimizer and overhead bounds every weighed step."""


def _scenario_paths(leaf: Leaf, scenarios: StageCosts, blocks_RP: Ints) -> ScenarioPaths:
    """Critical paths of one placement, one for each scenario that enters the weighed step time."""
    counts_K = weighed_mask(leaf.step_seconds_by_scenario(scenarios, blocks_RP), leaf.risk)
    leaves = [(at, leaf.scenario_leaves[at]) for at in np.flatnonzero(counts_K).tolist()]
    return [
        (at, scenario.critical_path(blocks_RP), int(scenario.once_a_step("optimizer", blocks_RP).argmax()))
        for at, scenario in leaves
    ]


def _mean_path_cuts(choices: Choices, paths: Sequence[ScenarioPaths]) -> Cuts:
    """Lower bounds of the step time weighed over scenarios: each is the mean length, in seconds, of a set of
    critical paths, one for each scenario that counts. Each path includes the synchronisation of its last
    rank, one rank's optimizer step and the overhead of its scenario."""
    leaves = choices.leaf.scenario_leaves
    choices_of = [Choices(leaf, choices.first, choices.blocks, choices.useful) for leaf in leaves]
    added, fixed = np.zeros((len(paths), *choices.seconds.shape)), np.zeros(len(paths))
    for index, path_set in enumerate(paths):
        for at, path, slowest in path_set:
            share, cut = 1 / len(path_set), cuts_of(choices_of[at], [path])
            cut.added[0, slowest] += choices_of[at].optimizer[slowest]
            added[index] += share * cut.added[0]
            fixed[index] += share * (cut.fixed[0] + leaves[at].overhead)
    return Cuts(added=added, fixed=fixed, is_full_step=True)
