"""`advise` on a transformer's plan: the changes of what is run today, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.estimate import Estimate
from meshwright.records import JSON_SCHEMA
from meshwright.records.estimates import estimate_record, layout_cells, question_record
from meshwright.render.plans.advice import (
    HEADERS,
    advice_cells,
    advice_table,
    conclusion,
    is_reached,
    today_sentence,
)
from meshwright.render.plans.ranked import question_header
from meshwright.render.tables import Table
from meshwright.render.words import NOT_PROVED, as_html
from planner.answers.optimum import PROVEN
from planner.explaining.advice import Advice
from planner.plan import Plan, make_plan
from planner.plan_files import save_plan
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Advised:
    """What is run today, the changes that gain most for their trouble, and the best plan."""

    advice: Advice
    restrictions: Restrictions
    """Of the plan that is run, within which the best is."""

    @property
    def today(self) -> Estimate:
        """The layout that is run today, priced."""
        return self.advice.today

    @property
    def best(self) -> Estimate:
        """The best layout, to which the changes lead."""
        return self.advice.best

    @property
    def plan(self) -> Plan:
        """The best layout as a plan."""
        found = self.advice.result
        certificate = found.certificate if self.best is found.best else None
        return make_plan(self.advice.question, self.best, certificate, self.restrictions)

    def save(self, path: str | Path) -> None:
        """Write the best plan."""
        save_plan(self.plan, Path(path))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for today, for each change, and for the best plan."""
        advice = self.advice
        rows = [self._row("today", "", None, advice.today)]
        rows += [self._row(one.words, one.trouble, one.by_itself, one.with_earlier) for one in advice.changes]
        if not is_reached(advice):
            rows.append(self._row(advice.rest, advice.rest_trouble, None, advice.best))
        return rows

    def _row(self, words: str, trouble: str, alone: Estimate | None, together: Estimate) -> dict[str, Any]:
        return {
            "change": words,
            "trouble": trouble,
            "alone_step_seconds": None if alone is None else alone.step_seconds,
            "alone_peak_bytes": None if alone is None else alone.peak_bytes,
            "step_seconds": together.step_seconds,
            "peak_bytes": together.peak_bytes,
            "mfu": together.mfu,
            "layout": str(together.layout),
            **layout_cells(together.layout),
        }

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame; seconds, bytes, shares."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        advice = self.advice
        return {
            "schema": JSON_SCHEMA,
            "question": question_record(advice.question),
            "today": estimate_record(advice.today),
            "changes": [
                {
                    "change": one.words,
                    "trouble": one.trouble,
                    "alone": estimate_record(one.by_itself),
                    "together": estimate_record(one.with_earlier),
                }
                for one in advice.changes
            ],
            "rest": {"change": advice.rest, "trouble": advice.rest_trouble, "reached": is_reached(advice)},
            "best": estimate_record(advice.best),
            "certificate": advice.result.certificate.model_dump(mode="json"),
            "further": [
                {
                    "change": one.words,
                    "trouble": one.trouble,
                    "proven": one.proven,
                    "plan": estimate_record(one.estimate),
                }
                for one in advice.other_questions
            ],
        }

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """What is said below the answer."""
        if self.advice.result.certificate.gap > PROVEN and not interrupted:
            return [NOT_PROVED]
        return []

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright advise` prints; no table where nothing is left to change."""
        header, today, end = self._around_the_table()
        changes = () if self.reached and not self.advice.changes else (advice_table(self.advice), "")
        return header, "", today, "", *changes, end

    @property
    def reached(self) -> bool:
        """Whether the changes lead to the best plan, or next to it."""
        return is_reached(self.advice)

    def __repr__(self) -> str:
        header, today, end = self._around_the_table()
        return f"{header}\n\n{today}\n\n{advice_table(self.advice)}\n\n{end}"

    def _repr_html_(self) -> str:
        header, today, end = (f"<p>{as_html(text)}</p>" for text in self._around_the_table())
        return f"{header}{today}{self._in_words().to_html(index=False, border=0)}{end}"

    def _around_the_table(self) -> tuple[str, str, str]:
        today = self.today
        header = question_header(self.advice.question, today.trust, today.memory_limit)
        return header, today_sentence(self.advice), conclusion(self.advice)

    def _in_words(self) -> pd.DataFrame:
        """The table of `meshwright advise`."""
        import pandas as pd

        return pd.DataFrame(advice_cells(self.advice), columns=list(HEADERS))
