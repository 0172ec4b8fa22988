"""Predicted start and end of each copy of a block to or from host memory and each CPU update in a step.

The list is that of `residency.turns_of_rank`, which the executor carries out. A move begins at its place in
the list, once its lane is free and its data is ready. The price's busy seconds of a lane are shared evenly
among the lane's moves, so that their sum is the price's. Passes that wait for weights delay everything after
them. The pipeline's timeline does not show these delays, as the price adds all waits of a step after its
passes: on a lane that cannot keep up, moves lag behind the passes that need them.

    down     gradients of streamed blocks after their backward passes, of `states` blocks before their update; parked
             states after theirs; activations after forward passes
    up       weights of streamed blocks, activations before backward passes; after the last pass, updated weights of
             `states` blocks and parked states
    update   gradients added up by the CPU, blocks updated
    drive    states read and written for an update
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, RESIDENCIES, UPDATED_BY_CPU, Layout, Residency
from cost_models.axes.offload.channels import (
    ADAM_BYTES,
    ADDED_BYTES,
    channel_seconds,
    gradient_traffic,
    link_rate,
)
from cost_models.axes.offload.residency import residency_of_blocks, turns_of_rank
from cost_models.axes.stages import policy_of_blocks
from cost_models.memory.activations import activation_bytes
from cost_models.pipeline.pricing import PassSpans, pass_spans, price_ranks
from cost_models.question import Question
from cost_models.schedules.actions import IDLE
from cost_models.specs.choices import RECOMPUTE_POLICIES

Lane = Literal["down", "up", "update", "drive"]
LANE_NAMES = {"down": "host link down", "up": "host link up", "update": "CPU update", "drive": "drive"}
"""Name that charts show for each channel of a rank (a lane), by channel, in order."""


class MoveSpan(NamedTuple):
    """Copy or CPU update of a block on one pipeline rank, with start and end in seconds from the start of the
    step."""

    rank: int
    lane: Lane
    what: str
    """Data copied (`weights`, `gradients`, `activations` or `states`), or the CPU's work (`add` or
    `update`)."""
    block: int
    """Index of the block in the model."""
    start: float
    end: float


def predicted_moves(question: Question, layout: Layout) -> tuple[MoveSpan, ...]:
    """Predicted copies and CPU updates of offloaded blocks in a step, sorted by rank and start. Moves of zero
    length are left out; layouts without `offload=` have none.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    if layout.offload == NOWHERE or question.has_pools:
        return ()
    priced = price_ranks(question, layout)
    layout, passes = priced.placement.layout, pass_spans(priced)
    ranks = [_Lanes(question, layout, rank, passes) for rank in range(layout.pp)]
    lasting = [move for lanes in ranks for move in lanes.carry_out() if move.end > move.start]
    return tuple(sorted(lasting, key=lambda move: (move.rank, move.start, move.end)))


class _Lanes:
    """Simulation of one rank's host copies and CPU updates: each move is scheduled on its channel (lane) in
    turn."""

    def __init__(self, question: Question, layout: Layout, rank: int, passes: PassSpans) -> None:
        self.question, self.layout, self.rank = question, layout, rank
        table, stack = passes.table, question.stack
        stages = [stage for stage, own in enumerate(table.rank_of_stage) if own == rank]
        self.lives = residency_of_blocks(layout, stages)
        retain = stack.keeps_streamed_blocks and layout.zero < 2
        turns = turns_of_rank(layout, stages, table.microbatches, at_once=stack.overlaps_host, retain=retain)
        spans: list[tuple[float, float]] = []
        for at in np.flatnonzero(table.kind[rank] != IDLE).tolist():
            stage_blocks = layout.layers[int(table.stage[rank, at])]
            start, end = passes.start[rank, at], passes.end[rank, at]
            spans += pairwise(np.linspace(start, end, stage_blocks + 1).tolist())
        self.turns = [(turn, *span) for turn, span in zip(turns, spans, strict=True)]
        """Passes of the rank with their moves, and start and end in seconds: each pass of the timeline is divided
        into equal parts, one a block."""
        self.moves: list[MoveSpan] = []
        self._free: dict[str, float] = dict.fromkeys(LANE_NAMES, 0.0)
        self._arrived: dict[int, float] = {}
        """Time at which the gradients of each block are added up on the host, by block."""
        self._updated: dict[int, float] = {}
        columns = LayoutColumns.of([layout])
        by_part = {part: channel_seconds(question, columns, (part,)) for part in RESIDENCIES}
        blocks = Counter(self.lives.values())
        traffic = gradient_traffic(question, columns)
        trips, sums = int(traffic.trips[1, 0]), float(traffic.sums[1, 0])  # of streamed blocks
        loads, downs = sum(len(turn.before) for turn, _, _ in self.turns), blocks["streamed"] * trips
        added = sums * ADDED_BYTES / ADAM_BYTES
        adding = added / (added + (1 / float(columns.shard[0]) if layout.zero else 1.0))

        def seconds(part: Residency, channel: str, count: int, share: float = 1.0) -> float:
            """Seconds of one of `count` equal moves on a channel: the channel's busy seconds for one residency,
            times `share`, divided by `count`."""
            return share * float(getattr(by_part[part], channel)[0]) / max(count, 1)

        self._down_from = layout.microbatches(question.training.global_batch) - trips
        """Microbatch from which gradients of streamed blocks are copied to the host."""
        self._seconds: dict[tuple[str, str, str], float] = {
            ("up", "weights", "streamed"): seconds("streamed", "up", loads),
            ("up", "weights", "states"): seconds("states", "back", blocks["states"]),
            ("up", "states", "parked"): seconds("parked", "back", blocks["parked"]),
            ("down", "states", "parked"): seconds("parked", "back", blocks["parked"]),
            ("up", "gradients", "states"): seconds("states", "up", blocks["states"]),
            ("down", "gradients", "states"): seconds("states", "down", blocks["states"]),
            ("down", "gradients", "streamed"): seconds("streamed", "down", downs),
            ("update", "add", "streamed"): seconds("streamed", "update", downs - blocks["streamed"], adding),
            ("update", "update", "states"): seconds("states", "update", blocks["states"]),
            ("update", "update", "streamed"): seconds("streamed", "update", blocks["streamed"], 1 - adding),
        }
        """Seconds of one move by lane, tensor or task, and residency of the block: a channel's busy seconds per
        step divided by its number of moves."""
        updated = blocks["states"] + blocks["streamed"]
        self._read, self._write = (seconds("states", channel, updated) for channel in ("read", "write"))
        copy_seconds = activation_bytes(question, columns).block[0] / link_rate(question, columns)[0]
        by_stage = zip(layout.layers, layout.stage_recompute, strict=True)
        policies = [policy for number, text in by_stage for policy in policy_of_blocks(number, text)]
        copies = bool(layout.offload.activations) * copy_seconds
        by_policy = dict(zip(RECOMPUTE_POLICIES, copies.tolist(), strict=True))
        self._activations = [by_policy[policy] for policy in policies]
        """Seconds by block, of a microbatch one way."""

    def carry_out(self) -> list[MoveSpan]:
        """Schedule all host copies and CPU updates of a step on one rank's channels; return them with start
        and end."""
        lag = since = 0.0  # seconds that passes have waited so far, and start of the pass before
        weights_ready: dict[int, float] = {}  # block → time at which its weights are on the device
        copy_ends: dict[tuple[int, int], float] = {}  # (block, microbatch) → end of the copy of activations
        for turn, start, end in self.turns:
            kind, block, microbatch = turn.use
            start = start + lag
            for move in turn.before:
                weights_ready[move.block] = self._put("up", "weights", move.block, start)
            needed, copying = weights_ready.get(block, 0.0), self._activations[block]
            if kind == "B":
                arrival = max(since, copy_ends[block, microbatch])
                needed = max(needed, self._put("up", "activations", block, arrival, copying))
            lag, since = lag + max(0.0, needed - start), start
            end = end + lag
            if kind == "F":
                copy_ends[block, microbatch] = self._put("down", "activations", block, end, copying)
            for action, moved_block in turn.after:
                if action == "down" and microbatch >= self._down_from:
                    arrival = self._put("down", "gradients", moved_block, end)
                    if moved_block in self._arrived:
                        arrival = self._put("update", "add", moved_block, arrival)
                    self._arrived[moved_block] = arrival
                elif action == "update":
                    self._update(moved_block, end)
        last = self.turns[-1][2] + lag
        if not self.question.stack.overlaps_host:
            for block, lives in reversed(self.lives.items()):
                if lives in UPDATED_BY_CPU:
                    self._update(block, last)
        for block, updated in self._updated.items():
            if self.lives[block] == "states":
                self._put("up", "weights", block, max(last, updated))
        for block, lives in self.lives.items():
            if lives == "parked":
                self._put("down", "states", block, self._put("up", "states", block, last))
        return self.moves

    def _update(self, block: int, ready: float) -> None:
        """Schedule the moves that update a block, from time `ready` on and once all its gradients are on the
        host."""
        ready = max(ready, self._arrived.get(block, 0.0))
        if self.lives[block] == "states":
            ready = self._put("up", "gradients", block, ready)
            ready = self._put("down", "gradients", block, ready)
        if self.question.stack.drive.overlaps:
            begin = max(ready, self._free["update"], self._free["drive"])
            self._put("drive", "states", block, begin, self._read + self._write)
            self._put("update", "update", block, begin)
            end = max(self._free["update"], self._free["drive"])
        else:
            read = self._put("drive", "states", block, ready, self._read)
            end = self._put("update", "update", block, read)
            end = self._put("drive", "states", block, end, self._write)
        self._updated[block] = end

    def _put(self, lane: Lane, action: str, block: int, ready: float, seconds: float | None = None) -> float:
        """Schedule a move on a channel as soon as its data is ready and the channel is free; return the time
        at which it ends."""
        if seconds is None:
            seconds = self._seconds[lane, action, self.lives[block]]
        if seconds == 0:
            return ready
        start = max(ready, self._free[lane])
        self._free[lane] = start + seconds
        self.moves.append(MoveSpan(self.rank, lane, action, block, start, start + seconds))
        return start + seconds
