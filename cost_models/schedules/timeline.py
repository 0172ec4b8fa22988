"""Start and end of every action of a schedule's table, computed from the durations of passes, and the
critical path.

A rank runs its actions in order. A forward waits for the same microbatch's forward on the stage before, a
backward (or the input half of a split one) for its backward or input half on the stage after, plus the
transfer delay if the two stages are on different ranks. On one rank the order already implies this, as it
does for a backward after its own forward and for a weight half, for which nothing waits. Results of an
overlapped pair leave when both actions are done.

Durations: F takes `forward`, I `backward`, W `weight`, a complete backward B `backward` + `weight`. If no
backward of the table is split, `weight` is omitted and `backward` is the complete pass.

Shape legend: `...` any batch of placements, B the same flattened, S virtual stages, R ranks, A actions of a
rank, E all actions in the order they are evaluated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array, Ints
from cost_models.schedules.actions import BACKWARD, CACHED_TABLES, FORWARD, INPUT, KINDS, ActionTable
from cost_models.schedules.registry import shortened_table

Seconds = npt.ArrayLike
"""Durations in seconds, as numbers or arrays that broadcast."""
_STEP_START = 0
"""Row of end times that is zero, the predecessor of each rank's first action."""
_NEVER = 1
"""Row of end times that is minus infinity, the sender to actions that receive nothing."""
_OFFSET = 2
"""Number of rows of end times before the first action's row."""
_NARROW = 16
"""Minimum number of actions × placements in a level (actions evaluated together) for which numpy is faster
than a Python loop."""
_AS_LONG = 1e-9
"""Relative difference below which two rounds count as equally long, despite rounding errors in sums."""
_LENGTHENED = 4
"""Factor by which a table's number of microbatches grows if its steady rounds did not take equally long."""
_MOST_ACTIONS = 1_000_000
"""Maximum number of actions in a shortened table. If two ranks are so nearly equally busy that its rounds
still differ in length, the price is an upper estimate: no later round is longer than the longest of them."""
_BATCH_ROWS = 4_000_000
"""Maximum number of actions × placements evaluated at once, which bounds memory (32 MB) and suits the
caches."""


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Critical path of a step up to one rank's last action: a longest chain of actions and transfers, each of
    which waits for the previous one.

    Its length, forward_counts · forward + backward_counts · backward + weight_counts · weight + p2p_count ·
    p2p, is a lower bound on that rank's end for any durations, and equals it for the durations of its search.
    """

    forward_counts: Ints
    """Number of forward passes of each virtual stage on the path, (S,)."""
    backward_counts: Ints
    """Number of complete backward passes and input halves of each virtual stage on the path, (S,)."""
    weight_counts: Ints
    """Number of complete backward passes and weight halves of each virtual stage on the path, (S,)."""
    p2p_count: int
    rank: int


class Timeline:
    """Action table of a schedule, prepared for computing end times. Actions are sorted into levels, each of
    which depends only on earlier levels."""

    def __init__(self, table: ActionTable) -> None:
        self.table, sender_RA, actions = table, _senders(table), table.kind.shape[1]
        level_RA = _earliest_levels(sender_RA)
        order_E = np.argsort(level_RA, axis=None, kind="stable")
        bounds = np.flatnonzero(np.diff(level_RA.ravel()[order_E], prepend=-1, append=-1)).tolist()
        self.levels = [slice(start, stop) for start, stop in pairwise(bounds)]
        """Range of action numbers (0 to E − 1) in each level, a set of actions evaluated together."""
        # the sender -1 (none) finds the last entry
        place = np.concatenate([np.empty_like(order_E), [_NEVER]])
        place[order_E] = _OFFSET + np.arange(len(order_E))
        self.receives = place[sender_RA.ravel()[order_E]]
        """Row in the end times of the action on another rank whose result each action receives, (E,)."""
        self.row_of: Ints = place[:-1].reshape(level_RA.shape)
        """Row in the end times of each action in the table, (R, A)."""
        follows_RA = np.full_like(self.row_of, _STEP_START)
        follows_RA[:, 1:] = self.row_of[:, :-1]
        self.follows = follows_RA.ravel()[order_E]
        """Row in the end times of each action's predecessor on the same rank, (E,)."""
        self.duration_of = (table.stage + table.num_stages * table.kind).ravel()[order_E]
        """Index of each action's duration in the columns of `_flat_durations`, (E,)."""
        kind_A, stage_A, microbatch_A = table.kind[0], table.stage[0], table.microbatch[0]
        middle = actions // 2
        repeats_A = (kind_A == kind_A[middle]) & (stage_A == stage_A[middle])
        repeats_A &= microbatch_A == microbatch_A[middle] + table.round_size
        self.cycle = int(repeats_A.argmax()) - middle
        """Number of actions of a rank in one round of microbatches, after which the steady state repeats."""
        waits_RA = np.where(sender_RA < 0, 0, np.arange(actions) - sender_RA % actions)
        self.reach = int(waits_RA[:, actions // 4 : 3 * actions // 4].max(initial=1))
        """Maximum difference in position (column of the table) between an action and an action on which it
        waits."""

    def rank_ends(
        self, forward_S: Seconds, backward_S: Seconds, p2p: Seconds = 0.0, weight_S: Seconds = 0.0
    ) -> Array:
        """Seconds from the start of the step until each rank's last action ends, (..., R), from durations
        (..., S) and the transfer delay `p2p` (...) in seconds.

        Omitted rounds take as long as the rounds before them, once these, singly or in groups, take equally
        long: an action waits for the one before it and for one of another rank, so equally long rounds are
        followed by equally long ones. If they do not yet, a longer table is evaluated.
        """
        duration_BS, delay_B, batch = self._flat_durations(forward_S, backward_S, p2p, weight_S)
        return self._rank_ends(duration_BS, delay_B).reshape(*batch, self.table.pp)

    def _rank_ends(self, duration_BS: Array, delay_B: Array) -> Array:
        """Seconds from the start of the step until each rank's last action ends, (B, R), for B placements."""
        ends_BR = np.empty((len(delay_B), self.table.pp))
        missing_B = np.zeros(len(delay_B), dtype=np.int64)
        actions = len(self.duration_of)
        step = max(1, _BATCH_ROWS // actions)
        for start in range(0, len(delay_B), step):
            batch = slice(start, start + step)
            end_EB = self._ends(duration_BS[batch], delay_B[batch]).reshape(_OFFSET + actions, -1)
            ends_BR[batch] = end_EB[self.row_of[:, -1]].T
            if self.table.left_out:
                pace_BR, missing_B[batch] = self._pace(duration_BS[batch], end_EB)
                ends_BR[batch] += self.table.left_out * pace_BR
        for missing in np.unique(missing_B[missing_B > 0]).tolist():
            if longer := self._longer_timeline(missing):
                late_B = missing_B == missing
                ends_BR[late_B] = longer._rank_ends(duration_BS[late_B], delay_B[late_B])
        return ends_BR

    def _pace(self, duration_BS: Array, end_EB: Array) -> tuple[Array, Ints]:
        """Seconds by which each additional microbatch delays the end of each rank, (B, R or 1), and number of
        microbatches that the table lacks to make these seconds exact, (B,).

        It is exact for a group of rounds that repeatedly takes equally long, if the omitted microbatches are
        a multiple of the group's; otherwise the longest round bounds it.
        """
        table, stages = self.table, self.table.num_stages
        if (
            table.schedule.steady == "queue"
        ):  # jobs in a row of machines, forward and then back: the slowest sets the pace
            back_BR = np.maximum.accumulate(duration_BS[:, 2 * stages - 1 : stages - 1 : -1], axis=1)[:, ::-1]
            pace_BR = duration_BS[:, :stages].max(axis=1, keepdims=True) + back_BR
            return pace_BR, np.zeros(len(pace_BR), dtype=np.int64)
        middle = self.row_of.shape[1] // 2
        later_RAB = end_EB[self.row_of[:, middle - self.reach : middle]]
        pace_B = np.zeros(later_RAB.shape[2])
        missing_B = np.full(len(pace_B), unsteady := (_LENGTHENED - 1) * table.microbatches)
        for rounds in range(1, (middle // 2 - self.reach) // self.cycle + 1):
            earlier = slice(middle - self.reach - rounds * self.cycle, middle - rounds * self.cycle)
            taken_RAB, microbatches = later_RAB - end_EB[self.row_of[:, earlier]], rounds * table.round_size
            longest_B = taken_RAB.max(axis=(0, 1))
            equal_B = taken_RAB.min(axis=(0, 1)) >= (1 - _AS_LONG) * longest_B
            first_B = equal_B & (missing_B == unsteady)
            pace_B = np.where(first_B | (rounds == 1), longest_B / microbatches, pace_B)
            missing_B[first_B] = table.left_out % microbatches
            if (missing_B < unsteady).all():
                break
        return pace_B[:, None], missing_B

    def _longer_timeline(self, missing: int) -> Timeline | None:
        """Timeline of a table with `missing` more of the step's microbatches; None if that table has too many
        actions."""
        table, minimum = self.table, self.table.microbatches + missing
        if minimum * table.kind.size > _MOST_ACTIONS * table.microbatches:
            return None
        key = (table.schedule.name, table.pp, table.vpp, table.step_microbatches)
        return compile_timeline(shortened_table(*key, minimum=minimum))

    def spans(
        self, forward_S: Seconds, backward_S: Seconds, p2p: Seconds, weight_S: Seconds
    ) -> tuple[Array, Array]:
        """Start and end of every action of the table in seconds from the start of the step, (..., R, A)
        each."""
        duration_BS, delay_B, batch = self._flat_durations(forward_S, backward_S, p2p, weight_S)
        shape = (*batch, *self.row_of.shape)
        end_RAB = self._ends(duration_BS, delay_B)[self.row_of].reshape((*self.row_of.shape, -1))
        end = np.moveaxis(end_RAB, -1, 0).reshape(shape)
        return end - duration_BS[:, self.duration_of[self.row_of - _OFFSET]].reshape(shape), end

    def critical_path(
        self, forward_S: Seconds, backward_S: Seconds, p2p: float, tail_R: Seconds, weight_S: Seconds
    ) -> CriticalPath:
        """Critical path to the last action of the rank that ends latest, where each rank has work of `tail_R`
        seconds after its last action.

        If the table omits rounds, the part of the path that repeats after a few rounds is repeated for them.
        """
        duration_BS, delay_B, _ = self._flat_durations(forward_S, backward_S, p2p, weight_S)
        end_E, pace = self._ends(duration_BS, delay_B), 0.0
        ends_R = end_E[self.row_of[:, -1]]
        if self.table.left_out:
            pace_BR, (missing,) = self._pace(duration_BS, end_E[:, None])
            if missing and (longer := self._longer_timeline(int(missing))):
                return longer.critical_path(forward_S, backward_S, p2p, tail_R, weight_S)
            pace, ends_R = float(pace_BR.min()), ends_R + self.table.left_out * pace_BR[0]
        rank = int(np.argmax(ends_R + np.asarray(tail_R)))
        late_E = end_E[self.receives] + p2p > end_E[self.follows]
        predecessors = np.where(late_E, self.receives, self.follows).tolist()
        path = [int(self.row_of[rank, -1]) - _OFFSET]
        while (row := predecessors[path[-1]]) != _STEP_START:
            path.append(row - _OFFSET)
        path_E, stages = np.array(path), self.table.num_stages
        times = np.ones(len(path_E), dtype=np.int64)
        stretches = self._repeated_stretches(path_E, end_E, pace) if self.table.left_out else []
        for microbatches, begin, end in stretches:
            repeats, missing = divmod(self.table.left_out, microbatches)
            if missing and (longer := self._longer_timeline(missing)):
                return longer.critical_path(forward_S, backward_S, p2p, tail_R, weight_S)
            times[begin:end] += repeats
        count = np.bincount(self.duration_of[path_E], times, (len(KINDS) + 1) * stages).astype(np.int64)
        forward, backward, inputs, weight, _ = count.reshape(-1, stages)  # in the order of `KINDS`
        transfers = int(times[late_E[path_E]].sum())
        return CriticalPath(forward, backward + inputs, backward + weight, transfers, rank)

    def _repeated_stretches(self, path: Ints, end_E: Array, pace: float) -> list[tuple[int, int, int]]:
        """Shortest stretch of a critical path that repeats in the steady state, as (microbatches, begin,
        end), for each phase of the schedule. Stretches count only if they take about `pace` seconds per
        microbatch or more. The path is given from the last action."""
        table, actions = self.table, self.row_of.shape[1]
        at = np.argsort(self.row_of, axis=None)[path]
        place, microbatch = at % actions, table.microbatch.ravel()[at]
        slots = (self.duration_of[path] * table.round_size + microbatch % table.round_size).tolist()
        phases = [(actions // 4, 3 * actions // 4)]
        if table.schedule.steady == "queue":  # the slowest stage of each phase sets its pace
            phases, pace = [(0, actions // 2), (actions // 2, actions)], 0.0
        soonest = []
        for low, high in phases:
            stretches: list[tuple[int, int, int]] = []
            last: dict[int, int] = {}
            for end in np.flatnonzero((place >= low) & (place < high)).tolist():
                if (begin := last.get(slots[end])) is not None:
                    passed = int(microbatch[begin] - microbatch[end])
                    seconds = end_E[_OFFSET + path[begin]] - end_E[_OFFSET + path[end]]
                    if seconds >= (1 - _AS_LONG) * pace * passed:
                        stretches.append((passed, begin, end))
                last[slots[end]] = end
            soonest += [min(stretches)] if stretches else []
        return soonest

    def _flat_durations(
        self, forward_S: Seconds, backward_S: Seconds, p2p: Seconds, weight_S: Seconds
    ) -> tuple[Array, Array, tuple[int, ...]]:
        """Broadcast durations to (batch, kinds · stages) and the transfer delay to (batch,); return both and
        the original shape of the batch.

        The kinds are in the order of `KINDS`, followed by a zero for idle entries; a table without split
        backward passes has only the first two.
        """
        stages = self.table.num_stages
        durations = (np.asarray(value, dtype=np.float64) for value in (forward_S, backward_S, weight_S))
        forward, backward, weight = (np.broadcast_to(x, (*x.shape[:-1], stages)) for x in durations)
        delay = np.asarray(p2p, dtype=np.float64)
        batch = np.broadcast_shapes(*(x.shape[:-1] for x in (forward, backward, weight)), delay.shape)
        kinds = [forward, backward + weight]
        if self.table.schedule.splits != "never":
            kinds += [backward, weight, np.zeros(1)]
        flat = np.concatenate([np.broadcast_to(x, (*batch, x.shape[-1])) for x in kinds], axis=-1)
        flat = flat.reshape(-1, flat.shape[-1])
        return flat, np.broadcast_to(delay, batch).reshape(-1), batch

    def _ends(self, duration_BS: Array, delay_B: Array) -> Array:
        """Array of end times in seconds, (2 + E, batch) or for a batch of one (2 + E,): two fixed rows, then
        a row for each action."""
        if len(delay_B) * len(self.duration_of) < _NARROW * len(self.levels):
            ends = [self._ends_one_by_one(*one) for one in zip(duration_BS, delay_B.tolist(), strict=True)]
            return np.array(ends[0] if len(ends) == 1 else ends).T
        single = len(delay_B) == 1
        duration = duration_BS[0] if single else duration_BS.T
        delay = delay_B[0] if single else delay_B
        end = np.empty((_OFFSET + len(self.duration_of), *duration.shape[1:]))
        end[_STEP_START], end[_NEVER] = 0.0, -np.inf
        np.take(duration, self.duration_of, axis=0, out=end[_OFFSET:])
        for level in self.levels:
            ready = end.take(self.follows[level], axis=0)
            arrived = end.take(self.receives[level], axis=0)
            arrived += delay
            np.maximum(ready, arrived, out=ready)
            end[_OFFSET + level.start : _OFFSET + level.stop] += ready
        return end

    def _ends_one_by_one(self, duration_S: Array, delay: float) -> list[float]:
        """List of end times of one placement in seconds, (2 + E,), as in `_ends`, computed by a Python loop.
        The loop is faster than numpy if levels have few actions."""
        end, duration = [0.0, -math.inf], duration_S[self.duration_of].tolist()
        for span, prior, sender in zip(duration, self.follows.tolist(), self.receives.tolist(), strict=True):
            ready, arrived = end[prior], end[sender] + delay
            end.append((ready if ready > arrived else arrived) + span)
        return end


@lru_cache(maxsize=CACHED_TABLES)
def compile_timeline(table: ActionTable) -> Timeline:
    """Prepare an action table for computing end times under any durations; cached."""
    return Timeline(table)


def _senders(table: ActionTable) -> Ints:
    """Index in the flattened table of the action on another rank whose result each action needs, or -1,
    (R, A)."""
    stages, rank_S = table.num_stages, table.rank_of_stage
    forward_RA = table.kind == FORWARD
    sends_RA = forward_RA | (table.kind == BACKWARD) | (table.kind == INPUT)
    number_of = np.full((2, stages, table.microbatches), -1)
    number_RA = np.arange(table.stage.size).reshape(table.stage.shape)
    number_RA = number_RA + (table.overlapped & forward_RA)  # a pair's results leave after its second action
    way = (~forward_RA).astype(np.int64)
    number_of[way[sends_RA], table.stage[sends_RA], table.microbatch[sends_RA]] = number_RA[sends_RA]
    source = table.stage + np.where(forward_RA, -1, 1)
    receives_RA = sends_RA & (source >= 0) & (source < stages)
    source = source.clip(0, stages - 1)
    crosses_RA = receives_RA & (rank_S[source] != rank_S[table.stage])
    return np.where(crosses_RA, number_of[way, source, table.microbatch], -1)


def _earliest_levels(sender_RA: Ints) -> Ints:
    """Earliest time at which each action can run if every action takes one unit of time, (R, A)."""
    ranks, actions = sender_RA.shape
    sender, unknown = sender_RA.ravel().tolist(), ranks * actions
    # the last for the sender -1 (none)
    level, asleep = ([unknown] * (ranks * actions) + [-1], dict[int, int]())
    ready = [rank * actions for rank in range(ranks)]
    while ready:  # a rank runs until it waits for one that has not run
        start = ready.pop()
        previous = level[start - 1] if start % actions else -1
        for at in range(start, start - start % actions + actions):
            arrival = level[sender[at]]
            if arrival == unknown:
                asleep[sender[at]] = at
                break
            previous = (arrival if arrival > previous else previous) + 1
            level[at] = previous
            if at in asleep:
                ready.append(asleep.pop(at))
    assert unknown not in level, "the ranks of this schedule wait for one another for ever"
    return np.array(level[:-1]).reshape(ranks, actions)
