"""Best placement of one plain layout, by label setting and critical paths.

**Paths.** A path is a chain of actions that every schedule of its kind contains, so its length is a lower
bound for any durations, known without running the timeline. The integer program starts from some paths, and
adds those that its solution violates; the bounds of `planner.bounds.steps` are the same paths, relaxed.

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
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.schedules.timeline import CriticalPath
from planner.bounds.steps import rank_sizes
from planner.placement.leaf import (
    TOLERANCE,
    Leaf,
    Placement,
    ScenarioPaths,
    Solution,
    Status,
    WeighedLeaf,
    proven,
)
from planner.placement.mixes import fastest_mixes
from planner.placement.rank_costs import RankCosts


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows that begin on one rank, one for each last rank: (windows,) each."""

    rounds: Ints
    remainder: Ints
    transfers: Ints


@lru_cache(maxsize=256)
def windows_from(first: int, pp: int, microbatches: int) -> Windows | None:
    """Rounds, remainder and transfers of the path through each window of ranks `first` … `last`, for last =
    first … pp − 1; None if microbatches do not outlast the warm-up."""
    after_warm_up = microbatches - 1 - (pp - first)
    if after_warm_up < 0:
        return None
    length = np.arange(1, pp - first + 1)
    rounds, remainder = np.divmod(after_warm_up, length)
    return Windows(rounds, remainder, 2 * (pp - 1) + 2 * (pp - 1 - first) + rounds * 2 * (length - 1))


def known_paths(leaf: Leaf) -> list[CriticalPath]:
    """Paths that are rows of every program: at least one through each rank."""
    ranks = range(leaf.pp)
    paths = [_busy_rank(leaf, rank, returns=True) for rank in ranks]
    paths += [_busy_rank(leaf, rank, returns=False) for rank in ranks if rank]
    if leaf.steady == "queue":
        paths += [_queue(leaf, rank) for rank in ranks]
    elif leaf.steady == "pairs" and leaf.microbatches > leaf.pp:
        paths += [_round_window(leaf, rank, rank) for rank in ranks]
        paths.append(_round_window(leaf, 0, leaf.pp - 1))
    return paths


def longest_windows(leaf: Leaf, blocks_RP: Ints, max_paths: int) -> list[CriticalPath]:
    """1F1B paths around windows of neighbouring ranks that are longest for one placement.

    At most `max_paths` paths, longest first; for each window the path that ends on the rank where it is longest.
    """
    if leaf.steady != "pairs":
        return []
    forward_R = leaf.forward(blocks_RP)
    both_R = forward_R + leaf.backward(blocks_RP)
    before_R, delay = np.cumsum(both_R) - both_R, leaf.cost("p2p")
    lead_R = np.cumsum(forward_R) - forward_R - before_R - np.arange(leaf.pp) * delay
    lead_R = lead_R + leaf.once_a_step("sync", blocks_RP)
    ways = []
    for first in range(leaf.pp):
        windows = windows_from(first, leaf.pp, leaf.microbatches)
        if windows is None:
            continue
        end = int(lead_R[: first + 1].argmax())
        around = np.append(before_R, both_R.sum())[first + 1 :] - before_R[first]
        length = lead_R[end] - before_R[first] + windows.rounds * around + windows.remainder * both_R[first]
        length = length + windows.transfers * delay
        ways += [(seconds, first, first + index, end) for index, seconds in enumerate(length.tolist())]
    longest = sorted(ways, key=lambda way: -way[0])[:max_paths]
    return [_round_window(leaf, first, last, end) for _, first, last, end in longest]


def _path(forward: Ints, backward: Ints, transfers: int, rank: int = 0) -> CriticalPath:
    return CriticalPath(
        forward_counts=forward,
        backward_counts=backward,
        weight_counts=backward,
        p2p_count=transfers,
        rank=rank,
    )


def _busy_rank(leaf: Leaf, rank: int, *, returns: bool) -> CriticalPath:
    """Path down to a rank, through all its work, and (with `returns`) back up to rank 0."""
    own_R = leaf.microbatches * (np.arange(leaf.pp) == rank)
    down_R = (np.arange(leaf.pp) < rank).astype(np.int64)
    if returns:
        return _path(down_R + own_R, down_R + own_R, 2 * rank)
    return _path(down_R + own_R, own_R, rank, rank)


def _queue(leaf: Leaf, rank: int) -> CriticalPath:
    """GPipe path: the first microbatch down, the others queueing at one rank both ways, the last one up."""
    counts_R = np.ones(leaf.pp, dtype=np.int64)
    counts_R[rank] = leaf.microbatches
    return _path(counts_R, counts_R, 2 * (leaf.pp - 1))


def _round_window(leaf: Leaf, first: int, last: int, end: int = 0) -> CriticalPath:
    """1F1B path: the first microbatch down to a window of ranks, rounds in it, the last microbatch down and up.

    The path begins with a forward pass on the ranks before `end` and ends on rank `end`.
    """
    windows = windows_from(first, leaf.pp, leaf.microbatches)
    assert windows is not None
    rounds, remainder, transfers = (
        int(column[last - first]) for column in (windows.rounds, windows.remainder, windows.transfers)
    )
    rank_R = np.arange(leaf.pp)
    counts_R = 1 + (rank_R >= first) + rounds * ((rank_R >= first) & (rank_R <= last))
    counts_R[first] += remainder
    return _path(counts_R, np.where(rank_R < end, 0, counts_R), transfers - end, end)


SAME_LINE = 1e-12
"""Relative distance within which passes count as on one straight line."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Block counts open to each rank, each under the fastest mix of recompute policies that fits."""

    leaf: Leaf
    first: int
    """Index of the first choice: the smallest block count for a single kind."""
    blocks: Ints
    """Blocks under each policy, for each block count on each rank, (B, R, P)."""
    backward: Array
    """Seconds of one backward pass, (R, B)."""
    useful: Bools
    """Whether a rank may make the choice, (R, B)."""

    @cached_property
    def sizes(self) -> Ints:
        """Block counts of the choices, (B,)."""
        return (self.first + np.arange(len(self.blocks))) // self.leaf.classes

    @cached_property
    def classes(self) -> Ints:
        """Class of positions where the blocks of a choice begin, (B,)."""
        return (self.first + np.arange(len(self.blocks))) % self.leaf.classes

    @cached_property
    def forward(self) -> Array:
        """Seconds of one forward pass, (R, B)."""
        return self._affine(self.leaf.forward(self.leaf.no_blocks), self.leaf.by_stage("layer_forward"))

    @cached_property
    def seconds(self) -> Array:
        """Seconds of one pass forward and back, (R, B)."""
        return self.forward + self.backward

    @cached_property
    def sync(self) -> Array:
        """Seconds of gradient synchronisation after a rank's last action, (R, B)."""
        return self._affine(
            self.leaf.once_a_step("sync", self.leaf.no_blocks), self.leaf.by_rank("layer_sync")
        )

    @cached_property
    def optimizer(self) -> Array:
        """Seconds of a rank's optimizer step, (R, B)."""
        fixed_R = self.leaf.once_a_step("optimizer", self.leaf.no_blocks)
        return self._affine(fixed_R, self.leaf.by_rank("layer_optimizer"))

    @cached_property
    def fixed(self) -> Array:
        """Seconds of one pass forward and back without blocks, (R,)."""
        nothing = self.leaf.no_blocks
        return self.leaf.forward(nothing) + self.leaf.backward(nothing)

    @cached_property
    def least_block(self) -> float:
        """Minimum seconds that a block adds to a pass."""
        each_RB = (self.seconds - self.fixed[:, None]) / self.sizes
        return float(each_RB[self.useful].min())

    @cached_property
    def on_a_line(self) -> bool:
        """Whether the seconds of a pass depend only on the rank's block count, as under the fastest policy."""
        line_RB = self.fixed[:, None] + self.least_block * self.sizes
        off_RB = np.abs(self.seconds - line_RB) > SAME_LINE * line_RB
        return not bool((off_RB & self.useful).any())

    @cached_property
    def least_blocks(self) -> Ints:
        """Minimum blocks of each rank, (R,)."""
        fewest: Ints = self.sizes[self.useful.argmax(axis=1)]
        return fewest

    @cached_property
    def most_blocks(self) -> Ints:
        """Maximum blocks of each rank, (R,)."""
        greatest: Ints = self.sizes[::-1][self.useful[:, ::-1].argmax(axis=1)]
        return greatest

    def placement(self, layers_R: Ints) -> Placement:
        """Placement with these block counts on the ranks."""
        return Placement.of(self.table(layers_R))

    def table(self, layers_KR: Ints) -> Ints:
        """Blocks under each policy, (..., R, P), for block counts of the ranks, (..., R)."""
        return self.blocks[self.leaf.choice_indices(layers_KR) - self.first, np.arange(self.leaf.pp)]

    @cached_property
    def slowest_step(self) -> float:
        """Upper bound of the step of any placement from these choices, seconds."""
        if self.leaf.classes == 1:
            return float(self.leaf.step_seconds(self.table(self.most_blocks)))
        chosen_BRP = np.where(self.useful.T[..., None], self.blocks, 0)
        return float(self.leaf.step_seconds(chosen_BRP.max(axis=0)))

    def only(self, eligible_RB: Bools) -> Choices | None:
        """Choices within `eligible_RB`; None if some rank has none left."""
        useful_RB = self.useful & eligible_RB
        if not useful_RB.any(axis=1).all():
            return None
        used = np.flatnonzero(useful_RB.any(axis=0))
        span = slice(int(used[0]), int(used[-1]) + 1)
        return replace(
            self,
            first=self.first + span.start,
            blocks=self.blocks[span],
            backward=self.backward[:, span],
            useful=useful_RB[:, span],
        )

    def _affine(self, fixed_R: Array, each_R: Array) -> Array:
        """Fixed value plus a value per block, (R, B); values per block are (R,), or (R, P) by kind and policy."""
        if each_R.ndim > 1:
            added_RB: Array = (self.blocks * each_R).sum(axis=-1).T
            return fixed_R[:, None] + added_RB
        return fixed_R[:, None] + each_R[:, None] * self.sizes


def choices_of(leaf: Leaf, target: float = math.inf) -> Choices | None:
    """Choices for a step of at most `target` seconds, by bounds of single ranks; None where no step is so short."""
    low, high = leaf.sizes.start, leaf.sizes.stop - 1
    least_R, most_R = np.full(leaf.pp, low), np.full(leaf.pp, high)
    if math.isfinite(target):
        least_NR, most_NR = rank_sizes(RankCosts.of(leaf), np.array([target * (1 + TOLERANCE)]))
        least_R, most_R = least_NR[0], most_NR[0]
    sizes = range(max(low, int(least_R.min())), min(high, int(most_R.max())) + 1)
    if not len(sizes):
        return None
    seconds_BR, blocks_BRP = fastest_mixes(leaf, sizes)
    fitting = Choices(
        leaf=leaf,
        first=sizes.start * leaf.classes,
        blocks=blocks_BRP,
        backward=leaf.backward(blocks_BRP).T,
        useful=np.isfinite(seconds_BR).T,
    )
    return fitting.only((fitting.sizes >= least_R[:, None]) & (fitting.sizes <= most_R[:, None]))


def all_ways(choices: Choices) -> Bools:
    """Choices open to each rank, by the blocks before it, (R, L + 1, B); other ranks are not considered."""
    kinds, positions = choices.leaf.kinds, choices.leaf.num_layers + 1
    if kinds is not None:
        begins: Bools = choices.useful[:, None, :] & (kinds.class_at[:, None] == choices.classes)
        return begins
    return np.broadcast_to(choices.useful[:, None, :], (choices.leaf.pp, positions, len(choices.sizes)))


def least_remaining(choices: Choices, ways: Bools, added_CRB: Array) -> Array:
    """(R + 1, C, L + 1) least sum that rank r and later ranks add, by the number of blocks before them;
    infinite if impossible.

    `ways` (R, L + 1, B) are the remaining `all_ways`.
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


def most_remaining(choices: Choices, ways: Bools, added_CRB: Array) -> Array:
    """Greatest sum that ranks r and later add, (R + 1, C, L + 1); minus infinity where impossible."""
    return -least_remaining(choices, ways, -added_CRB)


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Paths through the timeline, each a sum over ranks that no step undercuts."""

    added: Array
    """Seconds that each choice of a rank adds to each path, (C, R, B)."""
    fixed: Array
    """Seconds of the path's transfers, (C,)."""
    least_rest: Array
    """`least_remaining`, (R + 1, C, L + 1)."""
    most_rest: Array
    """`most_remaining`, (R + 1, C, L + 1)."""
    is_full_step: bool
    """Whether the paths include the optimizer step and the overhead."""

    def __len__(self) -> int:
        return len(self.fixed)


def cuts_of(choices: Choices, ways: Bools, paths: Sequence[CriticalPath]) -> Cuts:
    """Cuts of paths, each with the synchronisation of its last rank."""
    shape = (len(paths), choices.leaf.pp, 1)
    forward = np.array([path.forward_counts for path in paths], dtype=np.float64).reshape(shape)
    backward = np.array([path.backward_counts for path in paths], dtype=np.float64).reshape(shape)
    ends = np.array([path.rank for path in paths], dtype=np.int64)
    added = forward * choices.forward + backward * choices.backward
    added[np.arange(len(paths)), ends] += choices.sync[ends]
    fixed = np.array([path.p2p_count for path in paths]) * choices.leaf.cost("p2p")
    return cuts_that_add(choices, ways, added, fixed, is_full_step=False)


def cuts_that_add(choices: Choices, ways: Bools, added: Array, fixed: Array, *, is_full_step: bool) -> Cuts:
    """Cuts that add `added` (C, R, B) seconds on the ranks and `fixed` (C,) seconds."""
    return Cuts(
        added=added,
        fixed=fixed,
        least_rest=least_remaining(choices, ways, added),
        most_rest=most_remaining(choices, ways, added),
        is_full_step=is_full_step,
    )


ROUNDING = 1e-11
"""Relative rounding error of sums of seconds, by which limits are loosened."""
NO_LIMIT = 1e30
"""Stands for infinity, which would spoil sums."""
GRAIN = ROUNDING / 128
"""Labels are compared in multiples of this share of the target, so that rounding does not tell them apart."""
MUCH = 8.0
"""Cap on compared sums and limits, in multiples of the target; larger values do not matter."""
PIVOTS = 32
"""Labels compared with all others in one batch: enough for numpy, few enough to bound memory."""


class TooManyLabelsError(Exception):
    """Filling the first ranks takes more labels than the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """K partial placements: ways to fill the first ranks."""

    blocks: Ints
    """Blocks on the filled ranks together, (K,)."""
    seconds: Array
    """Seconds of one pass forward and back through the filled ranks, (K,)."""
    forward: Array
    """Seconds of the forward part of that pass, (K,)."""
    optimizer: Array
    """Longest optimizer step of a filled rank, seconds (K,)."""
    lead: Array
    """Largest F_e − S_e − e c + synchronisation of e over the filled ranks e (see `windows`)."""
    limit: Array
    """Upper limits of `seconds` once the ranks before each boundary are filled, (K, R + 1)."""
    cuts: Array
    """Seconds that the filled ranks add to each cut, (K, C); −NO_LIMIT where the cut can no longer matter."""
    sizes: Ints
    """Block count of each filled rank, (K, filled)."""

    def __len__(self) -> int:
        return len(self.blocks)

    def rows(self, index: Ints | Bools) -> Labels:
        """Selected labels."""
        return Labels(**{one.name: getattr(self, one.name)[index] for one in fields(self)})


@dataclass(frozen=True, kw_only=True)
class LabelPass:
    """One pass over the ranks, which finds the placements that may take at most `target` seconds."""

    choices: Choices
    ways: Bools
    """Whether a rank may make a choice, by the blocks before it, (R, L + 1, B)."""
    cuts: Cuts
    target: float
    most_labels: int

    def run(self) -> tuple[Labels, Bools]:
        """Labels that reach the last rank, and (R, L + 1, B): the ways that some label takes to do so.

        Raises:
            TooManyLabelsError: more than `most_labels` would have to be kept.
        """
        labels, steps = self._start(), []
        for rank in range(self.choices.leaf.pp):
            labels = self._trimmed(self._extended(labels, rank), rank)
            size = labels.sizes[:, -1]
            steps.append(np.unique(np.stack([labels.blocks - size, size], axis=1), axis=0))
            if len(labels) > 1:
                labels = labels.rows(undominated(labels.blocks, self._merits(labels, rank)))
            if not len(labels):
                return labels, np.zeros_like(self.ways)
            if len(labels) > self.most_labels:
                raise TooManyLabelsError
        return labels, self._on_a_way(steps)

    def _start(self) -> Labels:
        leaf = self.choices.leaf
        least_R = np.where(self.choices.useful, self.choices.optimizer, np.inf).min(axis=1)
        return Labels(
            blocks=np.zeros(1, dtype=np.int64),
            seconds=np.zeros(1),
            forward=np.zeros(1),
            optimizer=np.full(1, least_R.max()),
            lead=np.full(1, -NO_LIMIT),
            limit=np.full((1, leaf.pp + 1), NO_LIMIT),
            cuts=np.zeros((1, len(self.cuts))),
            sizes=np.zeros((1, 0), dtype=np.int64),
        )

    def _extended(self, labels: Labels, rank: int) -> Labels:
        """Extend each label by each choice of the next rank, if paths that end there leave time for it."""
        choices, leaf = self.choices, self.choices.leaf
        useful = np.flatnonzero(choices.useful[rank])
        parents = np.repeat(np.arange(len(labels)), len(useful))
        picks = np.tile(useful, len(labels))
        blocks = labels.blocks[parents] + choices.sizes[picks]
        placeable = np.flatnonzero(
            self.ways[rank, labels.blocks[parents], picks] & (blocks <= leaf.num_layers)
        )
        parents, picks, blocks = parents[placeable], picks[placeable], blocks[placeable]
        before_K, seconds = labels.seconds[parents], choices.seconds[rank, picks]
        optimizer = np.maximum(labels.optimizer[parents], choices.optimizer[rank, picks])
        lead = labels.forward[parents] - before_K - rank * leaf.cost("p2p") + choices.sync[rank, picks]
        lead = np.maximum(labels.lead[parents], lead)
        cuts = labels.cuts[parents] + self.cuts.added[:, rank, picks].T
        room = self._room(optimizer)
        rest_K = self._rest_seconds[rank + 1, 0, blocks]
        busiest = self._busy(rank, before_K, seconds, rest_K)
        in_time = (before_K + seconds <= labels.limit[parents, rank + 1] * (1 + ROUNDING)) & np.isfinite(
            rest_K
        )
        in_time &= lead + busiest <= room
        cut_seconds = cuts + self.cuts.fixed + self.cuts.least_rest[rank + 1][:, blocks].T
        in_time &= (cut_seconds <= self._room_of_cuts(optimizer)[:, None]).all(axis=1)
        extended = Labels(
            blocks=blocks,
            seconds=before_K + seconds,
            forward=labels.forward[parents] + choices.forward[rank, picks],
            optimizer=optimizer,
            lead=lead,
            limit=labels.limit[parents],
            cuts=cuts,
            sizes=np.concatenate([labels.sizes[parents], choices.sizes[picks, None]], axis=1),
        ).rows(in_time)
        self._limit_windows(extended, rank, before_K[in_time], seconds[in_time], rest_K[in_time])
        return extended

    def _busy(self, rank: int, before_K: Array, rank_K: Array, rest_K: Array) -> Array:
        """Seconds of the path on which all microbatches pass one rank, without the lead, (K,)."""
        m, c, pp = self.choices.leaf.microbatches, self.choices.leaf.cost("p2p"), self.choices.leaf.pp
        busy = before_K + m * rank_K + 2 * rank * c
        if self.choices.leaf.steady != "queue":
            return busy
        return np.maximum(busy, before_K + m * rank_K + rest_K + 2 * (pp - 1) * c)

    def _limit_windows(
        self, labels: Labels, rank: int, before_K: Array, rank_K: Array, rest_K: Array
    ) -> None:
        """Lower the limits to what the 1F1B windows that begin on a rank leave to the ranks after it."""
        leaf = self.choices.leaf
        windows = windows_from(rank, leaf.pp, leaf.microbatches) if leaf.steady == "pairs" else None
        if windows is None:
            return
        in_all = before_K + rank_K + rest_K
        left_K = self._room(labels.optimizer) - labels.lead - 2 * in_all + before_K
        left_KQ = left_K[:, None] - windows.transfers * leaf.cost("p2p") - windows.remainder * rank_K[:, None]
        turns_Q = np.maximum(windows.rounds, 1)
        no_round_KQ = np.where(left_KQ < 0, -1.0, NO_LIMIT)
        limit_KQ = np.where(windows.rounds > 0, before_K[:, None] + left_KQ / turns_Q, no_round_KQ)
        np.minimum(labels.limit[:, rank + 1 :], limit_KQ, out=labels.limit[:, rank + 1 :])

    def _trimmed(self, labels: Labels, rank: int) -> Labels:
        """Drop labels that leave later ranks too little room, and limits and cuts that can no longer matter."""
        choices = self.choices
        later = slice(rank + 1, None)
        fixed_Q, block = self._fixed_before[later] - self._fixed_before[rank + 1], choices.least_block
        limit_KQ = labels.limit[:, later] * (1 + ROUNDING)
        start_K = labels.seconds - block * labels.blocks
        most_KQ = (limit_KQ - start_K[:, None] - fixed_Q) / block
        most_KQ = np.floor(most_KQ + ROUNDING * (np.abs(most_KQ) + choices.leaf.num_layers))
        reach_Q = self._most_blocks_before[later] - self._most_blocks_before[rank + 1]
        most_KQ = np.minimum(most_KQ, np.minimum(labels.blocks[:, None] + reach_Q, self._reached[1][later]))
        held_Q = self._fewest_blocks_before[later]
        most_KQ = np.minimum.accumulate((most_KQ - held_Q)[:, ::-1], axis=1)[:, ::-1] + held_Q
        most_KQ = np.minimum.accumulate(most_KQ - reach_Q, axis=1) + reach_Q
        needed_Q = self._reached[0][later]
        rest_K = self._rest_seconds[rank + 1, 0, labels.blocks]
        enough = (most_KQ >= np.maximum(needed_Q, labels.blocks[:, None] + held_Q - held_Q[0])).all(axis=1)
        enough &= labels.seconds + rest_K <= limit_KQ[:, -1]
        if choices.on_a_line:
            limit_KQ = start_K[:, None] + fixed_Q + block * most_KQ
        else:
            slowest_Q = self._slowest_before[later] - self._slowest_before[rank + 1]
            anyway_KQ = labels.seconds[:, None] + slowest_Q
            limit_KQ = np.where(limit_KQ >= anyway_KQ, NO_LIMIT, labels.limit[:, later])
        labels.limit[:, later] = limit_KQ
        worst_KC = labels.cuts + self.cuts.fixed + self.cuts.most_rest[rank + 1][:, labels.blocks].T
        labels.cuts[worst_KC <= self._room_of_cuts(self._longest_optimizer)] = -NO_LIMIT
        return labels.rows(enough)

    def _merits(self, labels: Labels, rank: int) -> Array:
        """Merits in which a label can leave more room than another with as many blocks, (K, …)."""
        sums = np.stack([labels.seconds, labels.forward, labels.optimizer, labels.lead], axis=1)
        merits = np.concatenate([-sums, -labels.cuts, labels.limit[:, rank + 1 :]], axis=1)
        return np.rint(np.clip(merits / self.target, -MUCH, MUCH) / GRAIN)

    def _on_a_way(self, steps: list[Ints]) -> Bools:
        """Ways by which any label, even a dominated label, reaches the last rank, (R, L + 1, B)."""
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
        """Seconds of the target left for the pipeline and its synchronisation, (K,)."""
        return (self.target - self.choices.leaf.overhead - optimizer) + ROUNDING * self.target

    def _room_of_cuts(self, optimizer: Array) -> Array:
        """Seconds of the target that a cut may take, (K,)."""
        if self.cuts.is_full_step:
            return np.full_like(optimizer, self.target * (1 + ROUNDING))
        return self._room(optimizer)

    @cached_property
    def _longest_optimizer(self) -> Array:
        longest: Array = np.where(self.choices.useful, self.choices.optimizer, 0.0).max(axis=(0, 1))
        return longest

    @cached_property
    def _rest_seconds(self) -> Array:
        """Minimum seconds of one pass through the ranks not filled yet, (R + 1, 1, L + 1)."""
        return least_remaining(self.choices, self.ways, self.choices.seconds[None])

    @cached_property
    def _fixed_before(self) -> Array:
        """Seconds of one pass without blocks through the ranks before each boundary, (R + 1,)."""
        return _sum_before(self.choices.fixed)

    @cached_property
    def _slowest_before(self) -> Array:
        """Maximum seconds of one pass through the ranks before each boundary, (R + 1,)."""
        return _sum_before(np.where(self.choices.useful, self.choices.seconds, 0.0).max(axis=1))

    @cached_property
    def _reached(self) -> tuple[Ints, Ints]:
        """Minimum and maximum blocks before each boundary on any way to the end, (R + 1,) each."""
        possible = np.isfinite(self._rest_seconds[:, 0])
        last = possible.shape[1] - 1
        return possible.argmax(axis=1), last - possible[:, ::-1].argmax(axis=1)

    @cached_property
    def _fewest_blocks_before(self) -> Array:
        """Minimum blocks on the ranks before each boundary, (R + 1,)."""
        return _sum_before(self.choices.least_blocks.astype(np.float64))

    @cached_property
    def _most_blocks_before(self) -> Array:
        """Maximum blocks on the ranks before each boundary, (R + 1,)."""
        return _sum_before(self.choices.most_blocks.astype(np.float64))


def _sum_before(value_R: Array) -> Array:
    return np.concatenate([[0.0], np.cumsum(value_R)])


def undominated(kind: Ints, merits: Array) -> Bools:
    """Mask (K,) of the labels that no other of the same kind beats or equals in all D merits; of equal labels the first
    stays."""
    order = np.lexsort((-merits.sum(axis=1), kind))
    starts = np.flatnonzero(np.diff(kind[order], prepend=kind[order[0]] - 1))
    survives = np.zeros(len(kind), dtype=np.bool_)
    for rows in np.split(order, starts[1:]):
        survives[_front(rows, merits)] = True
    return survives


def _front(rows: Ints, merits: Array) -> Ints:
    """Undominated rows; `rows` come in order of falling sums, so no row dominates an earlier row."""
    front: list[Ints] = []
    while len(rows):
        pivots = rows[:PIVOTS]
        dominated: Bools = np.all(merits[pivots][:, None, :] >= merits[rows][None, :, :], axis=2)
        dominated &= np.arange(len(pivots))[:, None] < np.arange(len(rows))
        survives: Bools = np.logical_not(np.any(dominated, axis=0))
        front.append(pivots[survives[: len(pivots)]])
        rows = rows[len(pivots) :][survives[len(pivots) :]]
    return np.concatenate(front)


Incumbent = tuple[Placement, float]
"""A placement and the seconds of its step."""
MOST_LABELS = 4096
"""Maximum labels kept after one rank; with more, the integer program takes over."""
MOST_CANDIDATES = 16
"""Maximum number of placements whose timelines are evaluated after one pass."""
MOST_PASSES = 24
"""Maximum passes that close ways before the integer program is built."""


def place_by_labels(
    leaf: Leaf,
    *,
    incumbent: Incumbent | None = None,
    cut_off: float = math.inf,
    met_paths: Sequence[CriticalPath] = (),
    deadline: float = math.inf,
    most_rounds: int | None = None,
) -> Solution | None:
    """Best placement of a plain layout, if it takes less than `cut_off` seconds; None if there are too many labels.

    `incumbent` is a placement and its time, `met_paths` are critical paths of other layouts with the same pipeline. It
    is `stopped`, without a bound, at a `deadline` in seconds of the monotonic clock or after `most_rounds` of passes
    and timelines; without both the answer is always proven.

    Where scenarios are weighed, passes are at mean costs and leave every placement that may take less than the target
    (`cost_models.pipeline.pricing`). Each candidate is priced in every scenario; the mean length of its critical paths
    there, of the scenarios that count, is its weighed step and a bound of every other placement's. Each stage has the
    mix of recompute policies that is fastest at mean costs. No integer program does that, so too many labels stop it.
    """
    best, best_seconds = incumbent if incumbent else (None, math.inf)
    paths: list[CriticalPath] = [*met_paths]
    weighed_paths: list[ScenarioPaths] = []
    status: Status | None = None
    rounds = 0
    while status is None:
        target = min(best_seconds, cut_off) * (1 - TOLERANCE)
        if time.monotonic() >= deadline or rounds == most_rounds:
            status = "stopped"
            break
        choices = choices_of(leaf, target)
        if choices is None:
            break
        rounds, ways = rounds + 1, all_ways(choices)
        cuts = (
            _mean_path_cuts(leaf, choices, weighed_paths)
            if isinstance(leaf, WeighedLeaf)
            else cuts_of(choices, ways, paths)
        )
        try:
            labels, _ = label_pass(choices, ways, cuts, target).run()
        except TooManyLabelsError:
            if not isinstance(leaf, WeighedLeaf):
                return None
            status = "stopped"
            break
        if not len(labels):
            break
        sizes_KR = labels.sizes[np.argsort(labels.lead, kind="stable")[:MOST_CANDIDATES]]
        blocks_KRP = choices.table(sizes_KR)
        seconds_K = leaf.step_seconds(blocks_KRP)
        if isinstance(leaf, WeighedLeaf):
            weighed_paths.extend(leaf.bounding_path(blocks) for blocks in blocks_KRP)
        else:
            paths.extend(leaf.critical_path(blocks) for blocks in blocks_KRP)
        fastest = int(seconds_K.argmin())
        if seconds_K[fastest] < best_seconds:
            best, best_seconds = Placement.of(blocks_KRP[fastest]), float(seconds_K[fastest])
    return Solution(
        status=status or proven(best_seconds, cut_off),
        placement=best,
        objective=best_seconds,
        bound=0.0 if status == "stopped" else min(best_seconds, cut_off),
        rounds=rounds,
        paths=tuple(paths[len(met_paths) :]),
    )


def choices_in_time(leaf: Leaf, target: float, paths: Sequence[CriticalPath] = ()) -> Choices | None:
    """Choices that paths allow for a step of at most `target` seconds; None if no step is so short.

    Every pass closes ways, so that the next can close more.
    """
    choices = choices_of(leaf, target)
    if choices is None:
        return None
    ways = all_ways(choices)
    for _ in range(MOST_PASSES):
        open_ways = ways.sum()
        try:
            cuts = cuts_of(choices, ways, paths)
            _, ways = label_pass(choices, ways, cuts, target * (1 + TOLERANCE)).run()
        except TooManyLabelsError:
            break
        if ways.sum() == open_ways:
            break
    used: Bools = np.any(ways, axis=1)
    return choices.only(used)


def label_pass(choices: Choices, ways: Bools, cuts: Cuts, target: float) -> LabelPass:
    """Label pass over `ways` for a step of at most `target` seconds, capped at the slowest step."""
    return LabelPass(
        choices=choices,
        ways=ways,
        cuts=cuts,
        target=min(target, choices.slowest_step * (1 + TOLERANCE)),
        most_labels=MOST_LABELS,
    )


def _mean_path_cuts(leaf: WeighedLeaf, choices: Choices, paths: Sequence[ScenarioPaths]) -> Cuts:
    """One cut for each set of scenario paths, of their mean length in seconds: each path with the
    synchronisation of its last rank, one rank's optimizer step and the overhead of its scenario."""
    leaves = leaf.scenario_leaves
    scenario_choices = [replace(choices, leaf=x, backward=x.backward(choices.blocks).T) for x in leaves]
    added = np.zeros((len(paths), leaf.pp, len(choices.sizes)))
    fixed = np.zeros(len(paths))
    for index, path_set in enumerate(paths):
        for at, path, slowest in path_set.paths:
            costs, share = scenario_choices[at], 1 / len(path_set.paths)
            seconds: Array = path.forward_counts[:, None] * costs.forward
            seconds = seconds + path.backward_counts[:, None] * costs.backward
            seconds[path.rank] += costs.sync[path.rank]
            seconds[slowest] += costs.optimizer[slowest]
            added[index] += share * seconds
            fixed[index] += share * (path.p2p_count * costs.leaf.cost("p2p") + costs.leaf.overhead)
    return cuts_that_add(choices, all_ways(choices), added, fixed, is_full_step=True)
