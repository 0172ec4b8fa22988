"""Offload: blocks whose states, weights or activations live in host memory, and how many come back at a time.

Of the blocks of every rank so many have their

    states      optimizer states (moments and master weights) on the host, where the CPU updates them
                (Ren et al. 2021, ZeRO-Offload),
    parked      the same states there, streamed to the device for its update,
    streamed    weights, gradients and states there; a ring of `ring` buffers holds the weights at work, the CPU updates
                (Sun et al. 2022, STRONGHOLD; Rajbhandari et al. 2021, ZeRO-Infinity),

and the rest stays on the device: the first blocks of a rank, which are wanted first. `activations` moves what every
block keeps for its backward pass, whatever holds its states. With `drive` the optimizer states that the CPU updates,
those of `states` and `streamed` blocks, lie on the host's drive and come through its memory chunk by chunk. A part
without a count means every block that is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.axis import Axis, Counted, Mesh, Needless
from cost_models.axes.rule import Limit, Words, refuses, rule_when
from cost_models.axes.words import EVERY, Counts
from cost_models.errors import either
from cost_models.question import Question
from cost_models.units import counted

if TYPE_CHECKING:
    from cost_models.axes.columns import LayoutColumns
    from cost_models.axes.layout import Layout


class Offload(NamedTuple):
    """Blocks of every rank that have each of these in host memory, or on the drive; `EVERY`: all of them."""

    states: int = 0
    parked: int = 0
    streamed: int = 0
    activations: int = 0
    drive: int = 0

    @property
    def named(self) -> int:
        """Blocks of a rank that have a residency with a count."""
        return sum(count for count in self[: len(RESIDENCIES)] if count < EVERY)


RESIDENCIES = ("states", "parked", "streamed")
"""Where the states of a block may live besides on the device."""
UPDATED_BY_CPU = ("states", "streamed")
"""Those of them whose states the CPU updates, so that they may lie on the drive."""
NOWHERE = Offload()
USUAL_RING = 2
"""Buffers for streamed weights: one computes while the next is filled."""


def offloads(columns: LayoutColumns) -> Bools:
    """(N,): which layouts keep something of some block in host memory."""
    some: Bools = np.any([getattr(columns, f"offload_{part}") > 0 for part in Offload._fields], axis=0)
    return some


def named_blocks(columns: LayoutColumns) -> Ints:
    """(N,) blocks of a rank that have a residency with a count."""
    named: Ints = np.sum([counted_blocks(columns, part) for part in RESIDENCIES], axis=0)
    return named


def counted_blocks(columns: LayoutColumns, part: str) -> Ints:
    """(N,) blocks of a rank that a layout gives a residency by number."""
    counts: Ints = getattr(columns, f"offload_{part}")
    return np.where(counts >= EVERY, 0, counts)


def evenly(question: Question, columns: LayoutColumns) -> Ints:
    """(N,) blocks of every rank at least, where they are spread evenly."""
    return question.model.num_layers // columns.pp


@rule_when("a rank has the blocks that it offloads", lambda q, x: named_blocks(x) > evenly(q, x))
def _more_than_there_are(question: Question, layout: Layout) -> Words:
    has = question.model.num_layers // layout.pp
    named = counted(layout.offload.named, "block")
    return Words(
        f"`offload` moves {named} of every rank; `pp{layout.pp}` gives a rank {has}",
        "name fewer, or leave out the count: every block",
    )


@rule_when("LAMB updates on the device", lambda q, x: _cpu_updates(x) & (q.training.optimizer == "lamb"))
def _lamb_on_host(question: Question, layout: Layout) -> Words:
    what = "`optimizer: lamb` scales a parameter by the norm of all of it, which its ranks add up before they change it"
    return Words(
        f"{what}; the CPU updates blocks one after another as their gradients come",
        "use `offload=parked`, whose states the device updates, or `optimizer: adamw`",
    )


def _cpu_updates(columns: LayoutColumns) -> Bools:
    """(N,): whether some block's states are the CPU's to update."""
    some: Bools = np.any([getattr(columns, f"offload_{part}") > 0 for part in UPDATED_BY_CPU], axis=0)
    return some


@rule_when(
    "the stack uses drives under this ZeRO stage",
    lambda q, x: (x.offload_drive > 0) & (x.replicas > 1) & ~np.isin(x.zero, q.stack.drive.zero_stages),
)
def _drive_at(question: Question, layout: Layout) -> Words:
    stages = either([f"`zero{stage}`" for stage in question.stack.drive.zero_stages])
    return Words(
        f"software stack `{question.stack.name}` keeps states on the drive under {stages} only",
        f"use {stages}, or leave out `drive`",
    )


def _stack_lacks(question: Question, x: LayoutColumns) -> Bools:
    lacks = np.zeros(len(x), dtype=np.bool_)
    for part in Offload._fields:
        if part not in question.stack.residencies:
            lacks |= getattr(x, f"offload_{part}") > 0
    return lacks


@rule_when("the stack offloads this", _stack_lacks)
def _lacks(question: Question, layout: Layout) -> Words:
    stack = question.stack
    has = (
        f"it keeps {either([f'`{one}`' for one in stack.residencies])}"
        if stack.residencies
        else "it keeps nothing"
    )
    wanted = [part for part, count in zip(Offload._fields, layout.offload, strict=True) if count]
    lacking = [part for part in wanted if part not in stack.residencies]
    if lacking == ["drive"]:
        what = f"software stack `{stack.name}` cannot keep states on a drive"
        return Words(what, "leave out `drive`; `--stack` names another")
    parts = " and ".join(f"`{part}`" for part in lacking)
    what = f"software stack `{stack.name}` cannot keep {parts} of a block in host memory"
    return Words(what, f"{has} there; `--stack` names another")


def countable(question: Question, pp: Ints) -> Ints:
    """(N,) blocks of every rank that counts may name together: one less than all of the least rank, as all of them
    have a word of their own."""
    return (question.model.num_layers - 1) // pp


_UNPRICED = (
    "what offloading takes is not priced where adapters or preferences are trained, parts are frozen or images read,"
    " nor with this optimizer"
)


def _unpriced(question: Question) -> bool:
    """Whether host memory would hold frozen weights, or moments that are not of Adam's size."""
    training = question.training
    of_adam = training.optimizer in ("adamw", "sgd", "lamb")
    parts = training.freeze or question.model.tower
    return not of_adam or bool(parts or training.tuning or training.reference)


def _tried(question: Question, mesh: Mesh) -> Sequence[tuple[int, ...]]:
    """All blocks of every rank with one residency, or none, or a count of one residency, of streamed blocks beside such
    whose states are away, and of both beside resident ones. Each with activations and without, and with what the
    CPU updates on the drive, where hosts have one, and without.

    A count of one stands for every one that there is room for (`countable`). Nothing where the device's memory is the
    host's, and over several pools.
    """
    if question.cluster.gpu.kind == "cpu" or len(question.by_pool) > 1 or _unpriced(question):
        return [NOWHERE]
    has, room = question.stack.residencies, int(countable(question, np.array(mesh.pp)))
    counts = [1, EVERY] if room else [EVERY]
    found = [NOWHERE, *(NOWHERE._replace(**{part: n}) for part in RESIDENCIES if part in has for n in counts)]
    if room and {"states", "streamed"} <= set(has):
        found += [Offload(states=EVERY, streamed=1)]
        found += [Offload(states=1, streamed=1)] if room > 1 else []
    if "activations" in has:
        found += [one._replace(activations=EVERY) for one in found]
    if "drive" in has and question.cluster.drive is not None:
        found += [one._replace(drive=EVERY) for one in found if one.states or one.streamed]
    return found


def _untried(question: Question, limits: object, x: LayoutColumns) -> Bools:
    beside = (x.offload_states > 0) | (x.offload_streamed > 0)
    whole = (x.offload_streamed >= EVERY) & (x.offload_states > 0)
    own_host = offloads(x) & (question.cluster.gpu.kind == "cpu")
    counts_all = named_blocks(x) > countable(question, x.pp)
    return own_host | counts_all | whole | ((x.offload_parked > 0) & beside)


def _complaint(layout: Layout) -> str:
    """One residency for all that no count names, at most."""
    every = [part for part in RESIDENCIES if getattr(layout.offload, part) >= EVERY]
    return f"offload names {' and '.join(every)} of every block" if len(every) > 1 else ""


def _names_more_than_placed(layout: Layout, least: int) -> Words | None:
    """Counts of a placed layout, whose emptiest rank has `least` blocks."""
    if layout.offload.named <= least:
        return None
    named = counted(layout.offload.named, "block")
    return Words(
        f"`offload` names {named} of every rank; `layers` gives one {least}",
        "name fewer, or spread blocks evenly",
    )


def _opens_nothing(question: Question, trainer: str | None) -> str:
    if _unpriced(question):
        return _UNPRICED
    if any(pool.cluster.gpu.kind == "cpu" for pool in question.by_pool):
        return f"the memory of devices of `{question.cluster.name}` is the host's"
    if not question.stack.residencies:
        return f"software stack `{question.stack.name}` keeps nothing of a block in host memory"
    if len(question.by_pool) > 1:
        return "over several pools it is not searched"
    if question.cluster.host_memory is None:
        return f"cluster `{question.cluster.name}` does not say how much memory a host has (`--host-memory`)"
    return ""


def _kept_away(value: Offload) -> str:
    """What is in host memory, not of how many blocks."""
    return "/".join(part for part, count in value._asdict().items() if count) or "none"


OFFLOAD = Axis(
    word=Counts(parts=Offload._fields),
    text="Blocks of every rank keep states, weights or activations in host memory or on its drive.",
    compared=_kept_away,
    complaint=_complaint,
    rules=(
        _more_than_there_are,
        refuses(
            "offloading is priced of all parameters and of moments in full",
            lambda q, x: offloads(x) & _unpriced(q),
            _UNPRICED,
            "leave out `offload`",
        ),
        refuses(
            "activations move of every block",
            lambda q, x: (x.offload_activations > 0) & (x.offload_activations < EVERY),
            "the activations of all blocks move, or of none",
            "write `activations` without a count",
        ),
        refuses(
            "the drive takes all states that it takes",
            lambda q, x: (x.offload_drive > 0) & (x.offload_drive < EVERY),
            "all states that the CPU updates lie on the drive, or none",
            "write `drive` without a count",
        ),
        _lamb_on_host,
        refuses(
            "the drive is for states that the CPU updates",
            lambda q, x: (x.offload_drive > 0) & ~_cpu_updates(x),
            "`offload` has states on the drive and none that the CPU updates",
            "add `states` or `streamed`: `offload=states/drive`",
        ),
    ),
    stack_rules=(
        _lacks,
        _drive_at,
    ),
    executor_rules="cost_models.axes.offload.hosts:EXECUTOR_RULES",
    late_rules="cost_models.axes.offload.hosts:RULES",
    placed_rule=_names_more_than_placed,
    values=_tried,
    limits=(
        Limit(
            name="residencies go together",
            covered="of offloaded blocks parked ones beside resident ones alone, and streamed ones, unless all are,"
            " beside those with states away",
            beyond=_untried,
            what="`{layout.brief}` mixes residencies, or counts all blocks of a rank, as the search does not",
            matters=lambda q, limits: limits.opens("offload") and bool(q.stack.residencies),
        ),
    ),
    closed=True,
    opens_nothing=_opens_nothing,
    counted=Counted(tuple(f"offload_{part}" for part in RESIDENCIES), countable),
    fewest_blocks=named_blocks,
    sized=lambda columns: columns.offload_activations > 0,
    needless=Needless(("offload_drive",), "cost_models.axes.offload.hosts:needless_drives"),
    search="planner.axes.offload:SEARCHED",
    touches=frozenset({"states", "pipeline"}),
    executor="executor.axes.offload.hook:OffloadAxis",
    price="cost_models.axes.offload.price:PRICE",
    time_part="offload",
    updates_elsewhere=offloads,
)
