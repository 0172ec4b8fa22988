"""Labels, the state of the filled ranks that later ranks of a plain pipeline depend on, and the pass that extends them.

A label is one way to fill ranks 0 … r. What may follow depends on its blocks, on its sums, and on how far the windows
and paths that began in it let later ranks be filled. Of two labels with as many blocks, one that leaves at least as
much room in every respect stands for both; so few are left (Desrochers and Soumis 1988 call it label setting).

Every limit is a path through the timeline, which no step undercuts: when no label reaches the last rank, no placement
takes less than the target. Labels that do reach it are candidates; their own timeline tells.

Shape legend: K labels, R ranks, B numbers of blocks, C cuts, Q boundaries after the filled ranks, L blocks in all.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from planner.exact.labels.choices import Choices, Cuts, least_remaining
from planner.exact.labels.paths import windows_from

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
    """Labels that no label of the same kind (K,) dominates in all merits (K, D), (K,); of equals the first stays."""
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
