"""Changes of a layout, one at a time, in words of the notation, and how much trouble each is to whoever runs it."""

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
"""How much trouble a change is. `a flag`: each rank keeps its share of the model, so a job continues under another
flag. `re-sharding`: shares differ, so its checkpoint is re-sharded first."""
WEIGHT: dict[Trouble, float] = {"a flag": 1.0, "re-sharding": 2.0}
"""Weight of a trouble: how many times the gain of a flag a change must bring to come before it."""

_DEGREES = ("tp", "pp", "cp", "dp", "ep", "etp")
"""Axes that decide which rank holds which parameters."""
_FACTORS = (2, 3, 4, 8)
"""Factors by which ranks are moved from one axis to another."""
_MOST_MBS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of one or two axes to new values."""

    values: Mapping[str, Any]
    """Axis → its new value; what a move of `recompute` leaves open is chosen by memory."""

    @property
    def axes(self) -> frozenset[str]:
        """The axes that change."""
        return frozenset(self.values)

    def of(self, layout: Layout) -> Layout | None:
        """The layout after the move, not placed; None where the notation cannot express it.

        Settings that only a pipeline, a tensor group or replicas can have are reset with them.
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
    """Every change of one axis but recompute, or of two degrees whose product stays; most of them break some rule."""
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
    """Moves of ranks from one axis to another, and of experts to other degrees of ep and etp."""
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
    """Recompute policies of the question that the layout's schedule allows."""
    own = allowed_recompute(layout.schedule)
    return tuple(policy for policy in question.training.recompute if policy in own)


def changed_words(before: Layout, after: Layout) -> str:
    """The words of the notation that change, placement aside: "tp4 dp4", "mbs2", "no sp", "recompute=full:3"."""
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
    """The trouble of going from one layout to another: the greatest of all their differences."""
    other = any(_degree(before, axis) != _degree(after, axis) for axis in _DEGREES)
    return "re-sharding" if other else "a flag"


def _degree(layout: Layout, axis: str) -> int:
    named = {"etp": layout.expert_tp, "shard": layout.shard_group}
    return named[axis] if axis in named else int(getattr(layout, axis))
