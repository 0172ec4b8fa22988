"""What is asked of a family's pictures: plans that were read, options of the curves, and the notes met on the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from cost_models.errors import InputError
from meshwright.render.words import sentence_list
from meshwright.verbs.plot import PlotOptions
from planner.plan import AnyPlan
from planner.search.search import KINDS, Budget

P = TypeVar("P", bound=AnyPlan)


STACKED = "stacked"
"""Strong scaling with the parts of each step on one another, for families that draw it."""


def scaling_kinds(options: PlotOptions, *more: str) -> Sequence[str]:
    """The kinds of scaling that are asked for, one of them or of `more`. Raises InputError for one that is none."""
    if options.kind is None:
        return KINDS
    known = (*KINDS, *more)
    if options.kind not in known:
        raise InputError(
            f"--kind: `{options.kind}` is not one of {sentence_list([f'`{one}`' for one in known])}"
        )
    return (options.kind,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureRequest:
    """Files to draw, or the plans in them, options, and the notes met on the way."""

    files: Sequence[Path] = ()
    plans: Sequence[AnyPlan] = ()
    options: PlotOptions
    budget: Budget
    """For the searches of a curve."""
    notes: list[str] = field(default_factory=list)
    """What the pictures pass over."""
    named: bool = True
    """Whether their data are read besides, so that every layout in them needs its name."""

    def note(self, notes: Iterable[str]) -> None:
        """Add those that are new."""
        self.notes.extend(note for note in notes if note not in self.notes)

    def only(self, kind: str, plan_type: type[P]) -> P:
        """The one plan. Raises InputError where there are several."""
        if len(self.plans) != 1:
            raise InputError(f"`{kind}` draws one plan, not {len(self.plans)}")
        return self.all(plan_type)[0]

    def all(self, plan_type: type[P]) -> list[P]:
        """The plans. Raises InputError where one is of another family."""
        found = [plan for plan in self.plans if isinstance(plan, plan_type)]
        if strangers := [plan for plan in self.plans if not isinstance(plan, plan_type)]:
            raise InputError(
                f"plans of two kinds cannot be drawn together: `{found[0].kind}` of {found[0].model_name},"
                f" `{strangers[0].kind}` of {strangers[0].model_name}"
            )
        return found
