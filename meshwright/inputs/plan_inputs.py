"""Everything that the user gives to `plan`, whatever the model is, as it was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from cost_models.specs.cluster import ClusterSpec
from meshwright.inputs.goals import Goal
from meshwright.inputs.limits import Limits
from meshwright.inputs.questions import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """A question for a plan, not read yet."""

    inputs: Inputs
    clusters: Sequence[str | ClusterSpec] = ()
    """Where there is a choice of several."""
    gpus: int | str | Sequence[int] | None = None
    """One number, or several to choose from."""
    goal: Goal
    limits: Limits
    pick: str | None = None
    """Which layout is saved as the plan."""
    risk: str | None = None
    """What of a step is minimised."""

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the options that were said."""
        own = {name: getattr(self, name) for name in ("clusters", "gpus", "pick", "risk")}
        return (*given(self.inputs), *_said(own), *given(self.limits), *given(self.goal))


def given(inputs: Inputs | Limits | Goal) -> tuple[str, ...]:
    """Names of the fields of a record that were said."""
    return _said({field.name: getattr(inputs, field.name) for field in fields(inputs)})


def _said(values: dict[str, object]) -> tuple[str, ...]:
    return tuple(name for name, value in values.items() if not _is_nothing(value))


def _is_nothing(value: object) -> bool:
    return value is None or (isinstance(value, (str, tuple, list)) and not value)
