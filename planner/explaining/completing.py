"""Reading a layout of a few words beside a plan: words left out are the plan's, as far as that is legal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations

from cost_models.axes.layout import Layout, parse_layout
from cost_models.errors import InputError, Problem
from cost_models.question import Question
from planner.rules.legality import check

_AXIS = re.compile(r"[a-z]+", re.ASCII)
_PLACING = ("layers", "pools", "replicas")
"""Axes that say where blocks lie, which another layout does not take from the plan."""
_USUAL = {"tp": "tp1", "pp": "pp1", "mbs": "mbs1", "zero": "zero0"}
"""Words that every plan has, and that mean the same as leaving them out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A layout that was read beside a plan, with what was taken from the plan."""

    layout: Layout
    problems: tuple[Problem, ...]
    """Rules that the layout breaks; empty for a legal one."""
    taken: tuple[str, ...] = ()
    """Words of the plan that the layout has taken over."""
    dropped: tuple[str, ...] = ()
    """Words of the plan that were dropped, since they break a rule beside what was written."""


def completed(question: Question, plan: Layout, text: str, trainer: str | None = None) -> Completed:
    """The layout that `text` means beside a plan's: with as many of the plan's words as are legal (for a trainer), and
    with all GPUs of the question in `dp` where it does not say dp. A recompute that differs by stage is not taken.

    Raises:
        InputError: `text` is not a layout.
    """
    written = _axes(text)
    others = {
        axis: word for axis, word in _axes(str(plan)).items() if axis not in {*written, *_PLACING, "dp"}
    }
    words = [word for axis, word in others.items() if word != _USUAL.get(axis)]
    words = [word for word in words if not (word.startswith("recompute=") and len(plan.recompute) > 1)]
    closest: Completed | None = None
    if not text.strip():
        words = []
    for count in range(len(words) + 1):
        for dropped in combinations(words[::-1], count):  # switches before degrees
            taken = tuple(word for word in words if word not in dropped)
            try:
                layout = _with_dp(question, " ".join([text, *taken]), "dp" in written)
            except InputError:
                continue
            found = Completed(
                layout=layout, problems=tuple(check(question, layout, trainer)), taken=taken, dropped=dropped
            )
            if not found.problems:
                return found
            if closest is None or len(found.problems) < len(closest.problems):
                closest = found
    if closest is None:
        layout = parse_layout(text)  # which says what cannot be read
        closest = Completed(layout=layout, problems=tuple(check(question, layout, trainer)))
    return closest


def _with_dp(question: Question, text: str, given: bool) -> Layout:
    layout = parse_layout(text)
    left, rest = divmod(question.cluster.num_gpus, layout.tp * layout.cp * layout.pp)
    return layout if given or rest else parse_layout(f"{text} dp{left}")


def _axes(text: str) -> dict[str, str]:
    """Axis → the word that names it."""
    return {match[0]: word for word in text.split() if (match := _AXIS.match(word))}
