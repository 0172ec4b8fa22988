"""When blocks move to and from host memory and are updated there: the window's list of moves at priced seconds.

The list is that of `axes.offload.window`, which the executor carries out. A move begins when the list has it begin,
once its lane is free and what it needs is there. It takes an even share of what the price has its lane busy with such
moves, so that the moves of a lane add up to the price's seconds. Passes that wait for weights put off what follows
them. The timeline does not show that, as the price has all waits of a step in one sum after its passes: where a lane
cannot keep up its moves lag behind the passes that want them.

    down     gradients of streamed blocks after their backward passes, of `states` blocks before their update; parked
             states after theirs; activations after forward passes
    up       weights of streamed blocks, activations before backward passes; after the last pass, updated weights of
             `states` blocks and parked states
    update   gradients added up by the CPU, blocks updated
    drive    states read and written for an update
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, Layout
from cost_models.axes.offload.channels import ADAM_BYTES, channel_seconds, link_rate, seconds_by_residency
from cost_models.axes.offload.residency import PARKED, STATES, STREAMED, Residency, residency_of_blocks
from cost_models.axes.offload.traffic import ADDED_BYTES, gradient_traffic
from cost_models.axes.offload.window import Turn, turns_of_rank
from cost_models.axes.recompute import policy_of_blocks
from cost_models.memory.activations import activation_bytes
from cost_models.pipeline.placed import PassSpans, pass_spans, place
from cost_models.question import MixedQuestion, Question
from cost_models.schedules.actions import IDLE
from cost_models.specs.choices import RECOMPUTE_POLICIES

Lane = Literal["down", "up", "update", "drive"]
LANE_NAMES: Mapping[Lane, str] = {
    "down": "host link down",
    "up": "host link up",
    "update": "CPU update",
    "drive": "drive",
}
"""In the order in which they are shown."""


class MoveSpan(NamedTuple):
    """One move of one pipeline rank; seconds from the start of the step."""

    rank: int
    lane: Lane
    what: str
    """`weights`, `gradients`, `activations` or `states` that a lane carries; `add` or `update`, of the CPU."""
    block: int
    """By its place in the model."""
    start: float
    end: float


class _Pass(NamedTuple):
    """A turn of the window, when it is."""

    turn: Turn
    start: float
    end: float


def predicted_moves(question: Question, layout: Layout) -> tuple[MoveSpan, ...]:
    """All moves of a step, rank by rank in order of time; those of no length are left out, and of a layout without
    `offload=` there are none.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    if layout.offload == NOWHERE or isinstance(question, MixedQuestion):
        return ()
    layout = place(layout, question).layout
    passes = pass_spans(question, layout)
    found: list[MoveSpan] = []
    for rank in range(layout.pp):
        stages = [stage for stage, own in enumerate(passes.table.rank_of_stage) if own == rank]
        lives = residency_of_blocks(layout, stages)
        turns = list(_turns(question, layout, rank, stages, passes))
        found += _Lanes(rank, lives, _seconds(question, layout, lives, turns)).carry_out(
            turns, at_once=question.stack.overlaps_host
        )
    lasting = (move for move in found if move.end > move.start)
    return tuple(sorted(lasting, key=lambda move: (move.rank, move.start, move.end)))


def _turns(
    question: Question, layout: Layout, rank: int, stages: Sequence[int], passes: PassSpans
) -> Iterator[_Pass]:
    """The turns of a rank: each pass of the timeline in equal parts, one for each block."""
    keeps = question.stack.keeps_streamed_blocks and layout.zero < 2
    turns = iter(
        turns_of_rank(
            layout,
            stages,
            passes.table.microbatches,
            at_once=question.stack.overlaps_host,
            keeps=keeps,
        )
    )
    for at in range(passes.table.kind.shape[1]):
        if passes.table.kind[rank, at] == IDLE:
            continue
        blocks = layout.layers[int(passes.table.stage[rank, at])]
        borders = np.linspace(passes.start[rank, at], passes.end[rank, at], blocks + 1)
        for start, end in pairwise(borders):
            yield _Pass(next(turns), float(start), float(end))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seconds:
    """What one move of each kind takes on one rank."""

    load: float
    """Weights of a streamed block."""
    down: Mapping[str, float]
    """Gradients of a block, by its residency."""
    down_from: int
    """Microbatch from which gradients of streamed blocks go down."""
    fetched: Mapping[str, float]
    """Gradients that the device adds to."""
    add: float
    """To the gradients of a streamed block."""
    update: Mapping[str, float]
    """Of a block, by its residency."""
    back: float
    """Updated weights of a `states` block."""
    parked: float
    """States of a block, each way."""
    activations: Mapping[int, float]
    """Of a microbatch, each way, by block."""
    read: float
    """States of a block that are on the drive."""
    write: float
    beside: bool
    """Whether the CPU updates while the drive reads and writes."""


def _seconds(
    question: Question, layout: Layout, lives: Mapping[int, Residency], turns: Sequence[_Pass]
) -> _Seconds:
    """The busy seconds of each channel, shared out evenly among its moves."""
    columns = LayoutColumns.of([layout])
    by_part = seconds_by_residency(question, columns)
    blocks = Counter(lives.values())
    loads = sum(len(one.turn.before) for one in turns)
    updated = sum(blocks[part] for part in (STATES, STREAMED))

    def each(part: str, channel: str, count: int, share: float = 1.0) -> float:
        return share * float(getattr(by_part[part], channel)[0]) / max(count, 1)

    traffic = gradient_traffic(question, columns, residency=STREAMED, experts=False)
    downs = blocks[STREAMED] * int(traffic.trips[0])
    adds = downs - blocks[STREAMED]
    added = float(traffic.sums[0]) * ADDED_BYTES / ADAM_BYTES
    adding = added / (added + (1 / float(columns.shard[0]) if layout.zero else 1.0))
    drive = channel_seconds(question, columns)
    return _Seconds(
        load=each(STREAMED, "up", loads),
        down={
            STATES: each(STATES, "down", blocks[STATES]),
            STREAMED: each(STREAMED, "down", downs),
        },
        down_from=layout.microbatches(question.training.global_batch) - int(traffic.trips[0]),
        fetched={STATES: each(STATES, "up", blocks[STATES]), STREAMED: 0.0},
        add=each(STREAMED, "update", adds, adding),
        update={
            STATES: each(STATES, "update", blocks[STATES]),
            STREAMED: each(STREAMED, "update", blocks[STREAMED], 1 - adding),
        },
        back=each(STATES, "back", blocks[STATES]),
        parked=each(PARKED, "back", blocks[PARKED]),
        activations=_activation_seconds(question, layout),
        read=float(drive.read[0]) / max(updated, 1),
        write=float(drive.write[0]) / max(updated, 1),
        beside=question.stack.drive.overlaps,
    )


def _activation_seconds(question: Question, layout: Layout) -> Mapping[int, float]:
    """What a microbatch's activations of each block take one way; nothing where they stay."""
    columns = LayoutColumns.of([layout])
    moved = activation_bytes(question, columns).block[0] / link_rate(question, columns)[0]
    policies = [
        policy
        for blocks, text in zip(layout.layers, layout.stage_recompute, strict=True)
        for policy in policy_of_blocks(blocks, text)
    ]
    away = bool(layout.offload.activations)
    return {
        block: float(moved[RECOMPUTE_POLICIES.index(policy)]) * away for block, policy in enumerate(policies)
    }


@dataclass(slots=True)
class _Lanes:
    """The lanes of one rank as they fill up."""

    rank: int
    lives: Mapping[int, Residency]
    seconds: _Seconds
    moves: list[MoveSpan] = field(default_factory=list)
    _lag: float = 0.0
    """What passes have waited for so far."""
    _here: dict[int, float] = field(default_factory=dict)
    """Block → when its weights are on the device."""
    _free: dict[Lane, float] = field(default_factory=lambda: dict.fromkeys(LANE_NAMES, 0.0))
    _arrived: dict[int, float] = field(default_factory=dict)
    """Block → when its gradients are added up on the host."""
    _updated: dict[int, float] = field(default_factory=dict)
    _away: dict[tuple[int, int], float] = field(default_factory=dict)
    """Block and microbatch → when its activations are on the host."""

    def carry_out(self, turns: Sequence[_Pass], *, at_once: bool) -> list[MoveSpan]:
        """The moves of a step."""
        since = 0.0
        for one in turns:
            start = one.start + self._lag
            self._before(one.turn, since, start)
            self._after(one.turn, one.end + self._lag)
            since = start
        last = turns[-1].end + self._lag
        if not at_once:
            for block in reversed(list(self.lives)):
                if self.lives[block] in (STATES, STREAMED):
                    self._update(block, last)
        for block, done in self._updated.items():
            if self.lives[block] == STATES:
                self._put("up", "weights", block, max(last, done), self.seconds.back)
        for block, lives in self.lives.items():
            if lives == PARKED:
                here = self._put("up", "states", block, last, self.seconds.parked)
                self._put("down", "states", block, here, self.seconds.parked)
        return self.moves

    def _before(self, turn: Turn, since: float, start: float) -> None:
        """Of a pass that could begin at `start`, the one before at `since`."""
        kind, block, microbatch = turn.use
        for move in turn.before:
            self._here[move.block] = self._put("up", "weights", move.block, start, self.seconds.load)
        wanted = self._here.get(block, 0.0)
        if kind == "B":
            away = max(since, self._away[block, microbatch])
            wanted = max(wanted, self._put("up", "activations", block, away, self.seconds.activations[block]))
        self._lag += max(0.0, wanted - start)

    def _after(self, turn: Turn, end: float) -> None:
        kind, block, microbatch = turn.use
        if kind == "F":
            there = self._put("down", "activations", block, end, self.seconds.activations[block])
            self._away[block, microbatch] = there
        for what, block in turn.after:
            if what == "down" and microbatch >= self.seconds.down_from:
                there = self._put("down", "gradients", block, end, self.seconds.down[STREAMED])
                if block in self._arrived:
                    there = self._put("update", "add", block, there, self.seconds.add)
                self._arrived[block] = there
            elif what == "update":
                self._update(block, end)

    def _update(self, block: int, ready: float) -> None:
        """Of a block whose gradients are all there, or go there now."""
        seconds, lives = self.seconds, self.lives[block]
        ready = max(ready, self._arrived.get(block, 0.0))
        if lives == STATES:
            ready = self._put("up", "gradients", block, ready, seconds.fetched[lives])
            ready = self._put("down", "gradients", block, ready, seconds.down[lives])
        if seconds.beside:
            begin = max(ready, self._free["update"], self._free["drive"])
            self._put("drive", "states", block, begin, seconds.read + seconds.write)
            self._put("update", "update", block, begin, seconds.update[lives])
            done = max(self._free["update"], self._free["drive"])
        else:
            read = self._put("drive", "states", block, ready, seconds.read)
            done = self._put("update", "update", block, read, seconds.update[lives])
            done = self._put("drive", "states", block, done, seconds.write)
        self._updated[block] = done

    def _put(self, lane: Lane, what: str, block: int, ready: float, seconds: float) -> float:
        """One more move on a lane, as soon as that is free; when it is done."""
        if seconds == 0:
            return ready
        start = max(ready, self._free[lane])
        self._free[lane] = start + seconds
        self.moves.append(MoveSpan(self.rank, lane, what, block, start, start + seconds))
        return start + seconds
