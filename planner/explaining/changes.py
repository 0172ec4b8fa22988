"""Changes of a layout, one at a time, in words of the notation, and how much trouble each is to whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Literal

from pydantic import ValidationError

from cost_models.axes.axis import Mesh
from cost_models.axes.layout import AXES, Layout
from cost_models.axes.pipeline import goes_with
from cost_models.axes.recompute import allowed_recompute
from cost_models.question import Question

Trouble = Literal["a flag", "re-sharding"]
"""How much trouble a change is. `a flag`: each rank keeps its share of the model, so a job continues under another
flag. `re-sharding`: shares differ, so its checkpoint is re-sharded first."""
WEIGHT: dict[Trouble, float] = {"a flag": 1.0, "re-sharding": 2.0}
"""Weight of a trouble: how many times the gain of a flag a change must bring to come before it."""

_DEGREES = ("tp", "pp", "cp", "dp", "ep", "etp")
"""Axes that decide which rank holds which parameters."""
_MOVED = ("sp", "order", "context", "ep", "etp")
"""Axes that the search tries and whose moves are named below; other such axes move to every value of theirs."""
_PLACING = ("layers", "pools", "replicas")
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
        for group in range(2, layout.data_ranks + 1):
            if layout.data_ranks % group == 0:
                yield Move(values={"shard": group})
    mesh = Mesh(layout.tp, layout.pp, layout.cp, layout.dp)
    for name, axis in AXES.items():
        if axis.values is not None and name not in _MOVED:
            for numbers in axis.values(question, mesh):
                value = axis.word.value(*numbers) if isinstance(numbers, tuple) else axis.word.value(numbers)
                yield Move(values={name: value})
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
    """The words of the notation that change, placement aside: "tp4 dp4", "mbs2", "no sp", "usual overlap"."""
    words = []
    for name, axis in AXES.items():
        old, new = axis.value_in(name, before), axis.value_in(name, after)
        follows = axis.comes_to is not None and getattr(before, name) is getattr(after, name) is None
        silent = bool(axis.within) and getattr(after, axis.within) == 1
        if name in _PLACING or old == new or follows or silent or _is_implied(name, before, after):
            continue
        words.append(axis.word.said(name, new))
    return " ".join(words)


def _is_implied(name: str, before: Layout, after: Layout) -> bool:
    """Whether the schedule follows from a change of vpp."""
    usual = "interleaved" if after.vpp > 1 else "1f1b"
    return name == "schedule" and after.schedule == usual and before.vpp != after.vpp


def trouble_between(before: Layout, after: Layout) -> Trouble:
    """The trouble of going from one layout to another: the greatest of all their differences."""
    other = any(AXES[axis].value_in(axis, before) != AXES[axis].value_in(axis, after) for axis in _DEGREES)
    return "re-sharding" if other else "a flag"
