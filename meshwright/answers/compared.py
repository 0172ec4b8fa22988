"""The answer of `compare`: plans side by side, and in what their questions differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cost_models.estimate import Estimate
from cost_models.question import Question
from meshwright.records import JSON_SCHEMA
from meshwright.records.estimates import estimate_record, question_record
from meshwright.render.plans.comparison import comparison_table, differences_table
from meshwright.render.tables import Table
from meshwright.render.words import wrapped
from planner.explaining.compare import Line
from planner.explaining.compare import compare as lines_of
from planner.explaining.differing import Difference, differences, same_work

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A question and the price of one layout for it."""

    question: Question
    estimate: Estimate


@dataclass(frozen=True, kw_only=True, repr=False)
class Compared:
    """Plans, every quantity of which is set beside that of the first."""

    plans: tuple[PricedPlan, ...]

    @property
    def questions(self) -> list[Question]:
        """One for each plan, in their order."""
        return [plan.question for plan in self.plans]

    @property
    def estimates(self) -> list[Estimate]:
        """One for each plan, in their order."""
        return [plan.estimate for plan in self.plans]

    @property
    def differs(self) -> tuple[Difference, ...]:
        """In what the questions differ; nothing where they are the same."""
        return tuple(differences(self.questions))

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every quantity, with a value for each plan."""
        return tuple(lines_of(self.estimates, self.questions))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each quantity."""
        return [
            {"group": line.group, "quantity": line.name, "unit": line.unit}
            | {f"plan_{number}": value for number, value in enumerate(line.values, start=1)}
            for line in self.lines
        ]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "differs": [{"what": one.what, "values": list(one.values)} for one in self.differs],
            "same_work": same_work(self.questions),
            "questions": [question_record(question) for question in self.questions],
            "plans": [estimate_record(estimate) for estimate in self.estimates],
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright compare` prints."""
        named = [
            wrapped(
                f"{number}: {estimate.layout.brief}{'' if estimate.fits else ', does not fit'}", indent="   "
            )
            for number, estimate in enumerate(self.estimates, start=1)
        ]
        return *named, *self._differences(), "", comparison_table(self.lines)

    def _differences(self) -> tuple[str | Table, ...]:
        """What differs in the questions, said before anything is compared."""
        if not self.differs:
            return ()
        said = "They answer different questions:"
        if not same_work(self.questions):
            said = (
                "They answer different questions, and their steps do different work: parts are shares of their"
                " own step."
            )
        return "", wrapped(said), differences_table(self.differs)

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))
