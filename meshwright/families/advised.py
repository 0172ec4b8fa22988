"""Base class of answers of `advise`: the changes that lead from what is run today to the best plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cost_models.units import format_bytes
from meshwright.render.tables import Table, table_of
from meshwright.render.words import NOT_PROVED, change
from meshwright.verbs.contract import PlanAnswer
from planner.answers.optimum import PROVEN
from planner.explain.advice import Advice
from planner.recommender.advice import ShardingAdvice


class AnyAdvised(PlanAnswer):
    """Base class of answers of `advise`: what is run today, the changes that gain most for their effort, and the best
    plan; each family defines the path of changes and its text."""

    advice: Advice | ShardingAdvice

    def path(self) -> Iterator[tuple[str, str, Any, Any]]:
        """Each change that leads to the best plan: its words, its effort (may be empty), the price with this change
        alone (None if not priced), and the price with this and all earlier changes."""
        raise NotImplementedError

    @property
    def is_proved(self) -> bool:
        return self.advice.certificate.gap <= PROVEN

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        """Warning below the answer if the best plan is not proved optimal."""
        return [] if self.is_proved or interrupted else [NOT_PROVED]

    def gain(self, then: Any) -> str:
        """Change of the step time against today's, as text; if today's does not fit, "fits", or "less" if this one does
        not either."""
        if self.advice.today.fits:
            return change(self.advice.today.step_seconds, then.step_seconds)
        return "fits" if then.fits else "less"

    def changes_table(self, write: Callable[[float], str], final: str) -> Table:
        """Table of changes added one after the other, with column `alone` for today's with only that change, and
        column `trouble` if efforts are named. `write` writes seconds, `final` is the label of the last row."""
        today, path = self.advice.today, list(self.path())
        rows = [("today", "", "", "", write(today.step_seconds), "", format_bytes(today.peak_bytes))]
        for words, trouble, alone, reached in path:
            by_itself = (final, trouble, "", "")
            if alone is not None:
                by_itself = f"+ {words}", trouble, write(alone.step_seconds), self.gain(alone)
            rows.append(
                (
                    *by_itself,
                    write(reached.step_seconds),
                    self.gain(reached),
                    format_bytes(reached.peak_bytes),
                )
            )
        headers = ("change", "trouble", "alone", "gain", "together", "in all", "peak mem")
        columns = dict(zip(headers, zip(*rows, strict=True), strict=True))
        if not any(columns["trouble"]):
            del columns["trouble"]
        return table_of(columns, words=("change", "trouble"))
