"""The working window as data: which blocks are copied to the device before each pass, and what leaves it after.

One rule makes it: before a pass the ring holds the next `ring` different streamed blocks that passes will use, its own
among them; what is not among the next leaves when its pass is done. With passes in model order this is the window of
STRONGHOLD (Sun et al. 2022), forward and backward; with those of a pipeline schedule it holds for that too. What the
device keeps for good is no part of it: those blocks are the first of a rank, and a step begins on them while others
come.

    load B     copy the weights of block B to the device
    drop B     forget them there
    down B     add the gradients of block B to those on the host
    update B   all its gradients are there, or go there now: the CPU updates the block

Updates are in the list where each begins as soon as it can; where the norm of all gradients must be known first, they
come after the last pass. The executor carries this list out (`executor.axes.offload.streaming`), and traces show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import (
    STATES,
    STREAMED,
    Residency,
    blocks_of_stages,
    residency_of_blocks,
)
from cost_models.schedules.actions import Action
from cost_models.schedules.registry import build


class Use(NamedTuple):
    """A pass of one microbatch through one block."""

    kind: Literal["F", "B"]
    block: int
    microbatch: int


class Move(NamedTuple):
    """One thing that is done with a block beside a pass."""

    what: Literal["load", "drop", "down", "update"]
    block: int

    def __str__(self) -> str:
        return f"{self.what} {self.block}"


class Turn(NamedTuple):
    """A pass, and what is done before and after it."""

    use: Use
    before: tuple[Move, ...]
    after: tuple[Move, ...]


def turns_of_rank(
    layout: Layout, stages: Sequence[int], microbatches: int, *, at_once: bool, keeps: bool = True
) -> list[Turn]:
    """What the rank of these virtual stages does in a step, pass by pass; of a layout whose blocks are placed."""
    actions: Sequence[Action] = one_after_the_other(microbatches)
    if layout.pp > 1:
        table = build(layout.schedule, layout.pp, layout.vpp, microbatches)
        (rank,) = {int(table.rank_of_stage[stage]) for stage in stages}
        actions = table.actions(rank)
    lives = residency_of_blocks(layout, stages)
    uses = uses_of(actions, blocks_of_stages(layout, stages))
    return window(uses, lives, layout.ring, at_once=at_once, keeps=keeps)


def uses_of(actions: Iterable[Action], blocks: Mapping[int, Sequence[int]]) -> list[Use]:
    """The passes through single blocks that a rank's actions are made of; `blocks` are those of each virtual stage."""
    uses: list[Use] = []
    for action in actions:
        held = blocks[action.stage]
        if action.kind == "F":
            uses += [Use("F", block, action.microbatch) for block in held]
        elif action.kind == "B":
            uses += [Use("B", block, action.microbatch) for block in reversed(held)]
        else:
            raise AssertionError("split backward passes do not go with offload")
    return uses


def one_after_the_other(microbatches: int) -> list[Action]:
    """The actions of a rank that has the whole model."""
    return [
        Action(kind, 0, microbatch) for microbatch in range(microbatches) for kind in _FORWARD_THEN_BACKWARD
    ]


_FORWARD_THEN_BACKWARD: tuple[Literal["F", "B"], ...] = ("F", "B")


def window(
    uses: Sequence[Use],
    lives: Mapping[int, Residency],
    ring: int,
    *,
    at_once: bool = True,
    keeps: bool = True,
) -> list[Turn]:
    """Every pass of a step with what is done around it, in order.

    Args:
        uses: the passes of the step.
        lives: where each block of the rank lives.
        ring: most streamed blocks on the device at a time.
        at_once: whether the CPU updates a block as soon as its gradients are there.
        keeps: whether a block stays that is among the next; else it leaves after each pass and comes again.
    """
    last = {use.block: at for at, use in enumerate(uses) if use.kind == "B"}
    streamed = {block for block, where in lives.items() if where == STREAMED}
    turns: list[Turn] = []
    wanted = _next_blocks(uses, streamed, ring)
    loaded: set[int] = set()
    for at, use in enumerate(uses):
        before = tuple(Move("load", block) for block in wanted[at] if block not in loaded)
        loaded |= {move.block for move in before}
        after: list[Move] = []
        block, where = use.block, lives[use.block]
        if use.kind == "B" and block in streamed:
            after.append(Move("down", block))
        if block in streamed and not (keeps and block in wanted[at + 1]):
            after.append(Move("drop", block))
            loaded.discard(block)
        if at_once and where in (STATES, STREAMED) and last[block] == at:
            after.append(Move("update", block))
        turns.append(Turn(use, before, tuple(after)))
    return turns


def _next_blocks(uses: Sequence[Use], streamed: set[int], ring: int) -> list[list[int]]:
    """For each pass, and for the end, the next `ring` different streamed blocks, the pass's own among them."""
    found: list[list[int]] = [[]]
    for use in reversed(uses):
        following = found[-1]
        if use.block in streamed:
            following = [use.block, *(block for block in following if block != use.block)][:ring]
        found.append(following)
    return found[::-1]
