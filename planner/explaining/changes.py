"""One change of a layout at a time, in the words of the notation, and what trouble it is to whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

from pydantic import ValidationError

from cost_models.axes.layout import Layout
from cost_models.axes.pipeline import SCHEDULES, goes_with
from cost_models.axes.recompute import allowed_recompute
from cost_models.question import Question

Trouble = Literal["a flag", "re-sharding"]
"""`a flag`: every rank keeps its share of the model, so a job goes on with another flag. `re-sharding`: the shares are
others, so its checkpoint is re-sharded first."""
WEIGHT: dict[Trouble, float] = {"a flag": 1.0, "re-sharding": 2.0}
"""How many times the gain of a flag a change has to bring to come before it."""

_DEGREES = ("tp", "pp", "cp", "dp", "ep", "etp")
"""Axes that say which rank holds which parameters."""
_SWITCHES = ("vpp", "mbs", "zero", "shard", "sp", "schedule", "order", "context", "recompute")
_FACTORS = (2, 3, 4, 8)
"""By which ranks are taken from one axis and given to another."""
_MOST_MBS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """New values of some axes."""

    values: Mapping[str, Any]
    """Axis → its value; of `recompute` what the move leaves open is chosen by memory."""

    @property
    def axes(self) -> frozenset[str]:
        """Those that change."""
        return frozenset(self.values)

    def of(self, layout: Layout) -> Layout | None:
        """The layout after it, not placed; None where the notation cannot say it.

        What only a pipeline, a tensor group or replicas can have goes with them.
        """
        fields = layout.model_dump() | {"layers": (), "pools": ()} | dict(self.values)
        if fields["pp"] == 1:
            fields |= {"vpp": 1, "schedule": "1f1b"}
        if fields["tp"] == 1:
            fields["sp"] = False
        if fields["dp"] * fields["cp"] == 1:
            fields["zero"] = 0
        if fields["zero"] == 0:
            fields["shard"] = None
        if len(fields["recompute"]) not in (1, fields["pp"] * fields["vpp"]):
            fields["recompute"] = ("none",)
        try:
            return Layout(**fields)
        except ValidationError:
            return None


def moves(question: Question, layout: Layout) -> Iterator[Move]:
    """Every change of one axis, or of two whose product stays, but for recompute; most of them break some rule."""
    stack, model = question.stack, question.model
    share = question.training.global_batch // layout.dp
    for mbs in range(1, min(share, _MOST_MBS) + 1):
        if share % mbs == 0:
            yield Move(values={"mbs": mbs})
    for zero in stack.zero_stages:
        yield Move(values={"zero": zero})
    if layout.tp > 1:
        yield Move(values={"sp": not layout.sp})
    if layout.pp > 1:
        for schedule in stack.schedules:
            for vpp in range(1, model.num_layers // layout.pp + 1):
                if goes_with(schedule, vpp):
                    yield Move(values={"vpp": vpp, "schedule": schedule})
    for order in stack.axis_orders:
        yield Move(values={"order": order})
    if layout.cp > 1:
        for context in (None, *stack.context_kinds):
            yield Move(values={"context": context})
    if layout.zero and stack.hybrid_shard:
        for group in range(2, layout.replicas + 1):
            if layout.replicas % group == 0:
                yield Move(values={"shard": group})
    yield from _degrees(question, layout)


def _degrees(question: Question, layout: Layout) -> Iterator[Move]:
    """Ranks taken from one axis and given to another, and experts shared otherwise."""
    for giver, taker in permutations(("tp", "pp", "cp", "dp"), 2):
        for factor in _FACTORS:
            given = getattr(layout, giver)
            if given % factor == 0:
                values = {giver: given // factor, taker: getattr(layout, taker) * factor}
                yield Move(values=values | ({"etp": None} if "tp" in values else {}))
    if question.model.has_experts:
        for degree in range(1, question.model.num_experts + 1):
            if question.model.num_experts % degree == 0:
                yield Move(values={"ep": degree})
        for degree in range(1, layout.tp + 1):
            if layout.tp % degree == 0:
                yield Move(values={"etp": degree})


def recompute_allowed(question: Question, layout: Layout) -> tuple[str, ...]:
    """Policies of the question that go with the layout's schedule."""
    own = allowed_recompute(layout.schedule)
    return tuple(policy for policy in question.training.recompute if policy in own)


def changed_words(before: Layout, after: Layout) -> str:
    """What to write otherwise, placement aside: "tp4 dp4", "mbs2", "no sp", "recompute=full:3"."""
    words = []
    for axis in ("tp", "pp", "vpp", "cp", "dp", "ep", "etp", "mbs", "zero", "shard"):
        old, new = _degree(before, axis), _degree(after, axis)
        follows = (axis == "etp" and after.etp is None) or (axis == "shard" and after.shard is None)
        if old != new and not follows:
            words.append(f"{axis}{new}")
    if before.sp != after.sp:
        words.append("sp" if after.sp else "no sp")
    usual = SCHEDULES[SCHEDULES.index("interleaved" if after.vpp > 1 else "1f1b")]
    if before.schedule != after.schedule and not (after.schedule == usual and before.vpp != after.vpp):
        words.append(f"schedule={after.schedule}")
    if before.order != after.order:
        words.append(f"order={after.order}")
    if before.context != after.context and after.cp > 1:
        words.append(f"context={after.context or 'as usual'}")
    if before.recompute != after.recompute:
        words += [word for word in str(after).split() if word.startswith("recompute=")] or ["recompute=none"]
    return " ".join(words)


def trouble_between(before: Layout, after: Layout) -> Trouble:
    """The greatest of what differs."""
    other = any(_degree(before, axis) != _degree(after, axis) for axis in _DEGREES)
    return "re-sharding" if other else "a flag"


def _degree(layout: Layout, axis: str) -> int:
    named = {"etp": layout.expert_tp, "shard": layout.shard_group}
    return named[axis] if axis in named else int(getattr(layout, axis))
