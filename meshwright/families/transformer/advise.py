"""`advise` on a transformer's plan: the changes of what is run today, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cost_models.axes.layout import parse_layout
from cost_models.estimate import Estimate
from cost_models.units import format_bytes, format_seconds
from meshwright.records import fields_of
from meshwright.records.estimates import estimate_record, layout_cells, question_record
from meshwright.render.estimates import mfu_words
from meshwright.render.explanation import unplaced
from meshwright.render.ranked import certificate_sentence, question_header
from meshwright.render.tables import Table, table
from meshwright.render.words import NOT_PROVED, change, wrapped
from meshwright.terminal.answers import PlanAnswer
from planner.answers.optimum import PROVEN
from planner.explain.advice import Advice
from planner.explain.advice import advise as advice_of
from planner.explain.reasons import NEGLIGIBLE_GAIN
from planner.formats.registry import switch_words
from planner.plan import Plan, make_plan
from planner.search.search import Budget
from planner.space.restrictions import Restrictions


@dataclass(frozen=True, kw_only=True, repr=False)
class Advised(PlanAnswer):
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

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for today, for each change, and for the best plan."""
        advice = self.advice
        rows = [self._row("today", "", None, advice.today)]
        rows += [self._row(one.words, one.trouble, one.by_itself, one.with_earlier) for one in advice.changes]
        if not is_reached(advice):
            rows.append(self._row(*advice.final_change, None, advice.best))
        return rows

    def _row(self, words: str, trouble: str, alone: Estimate | None, together: Estimate) -> dict[str, Any]:
        return {
            "change": words,
            "trouble": trouble,
            "alone_step_seconds": alone and alone.step_seconds,
            "alone_peak_bytes": alone and alone.peak_bytes,
            **fields_of(together, "step_seconds", "peak_bytes", "mfu"),
            "layout": str(together.layout),
            **layout_cells(together.layout),
        }

    def document(self) -> dict[str, Any]:
        advice, (rest, trouble) = self.advice, self.advice.final_change
        changes = [
            {"change": one.words, "trouble": one.trouble}
            | {"alone": estimate_record(one.by_itself), "together": estimate_record(one.with_earlier)}
            for one in advice.changes
        ]
        further = [
            {"change": one.words, "trouble": one.trouble, "proven": one.proven}
            | {"plan": estimate_record(one.estimate)}
            for one in advice.other_questions
        ]
        return {
            "question": question_record(advice.question),
            "today": estimate_record(advice.today),
            "changes": changes,
            "rest": {"change": rest, "trouble": trouble, "reached": is_reached(advice)},
            "best": estimate_record(advice.best),
            "certificate": advice.result.certificate.model_dump(mode="json"),
            "further": further,
        }

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        return [NOT_PROVED] if self.advice.result.certificate.gap > PROVEN and not interrupted else []

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright advise` prints; no table where nothing is left to change."""
        advice = self.advice
        header = question_header(advice.question, self.today.trust)
        changes = (advice_table(advice), "") if advice.changes or not is_reached(advice) else ()
        return header, "", today_sentence(advice), "", *changes, conclusion(advice)


def advise(plan: Plan, layout: str | None, budget: Budget) -> Advised:
    """What to change of a plan, or of another layout of its question, that is run today."""
    today, restrictions = plan.layout if layout is None else parse_layout(layout), plan.restrictions.read
    advice = advice_of(plan.question, today, restrictions, budget, switch_words)
    return Advised(advice=advice, restrictions=restrictions)


def today_sentence(advice: Advice) -> str:
    """What is run: its layout, its step, and whether it fits."""
    today = advice.today
    fits = "" if today.fits else ", which does not fit"
    size, limit = format_bytes(today.peak_bytes), today.limit_words
    step = f"{format_seconds(today.step_seconds)} a step, {mfu_words(today)}"
    return wrapped(f"today {unplaced(today.layout)}: {step}, {size} of {limit}{fits}")


def advice_table(advice: Advice) -> Table:
    """The path: today, each change on top of those before it, and the best plan; `alone` is today with that change."""
    today = advice.today
    rows = [("today", "", "", "", format_seconds(today.step_seconds), "", format_bytes(today.peak_bytes))]
    for one in advice.changes:
        alone = (format_seconds(one.by_itself.step_seconds), _gain(today, one.by_itself))
        rows.append((f"+ {one.words}", one.trouble, *alone, *_in_all(today, one.with_earlier)))
    if not is_reached(advice):
        rest, trouble = advice.final_change
        words = f"+ the rest: {rest}" if rest else "+ blocks placed as in the best plan"
        rows.append((words, trouble, "", "", *_in_all(today, advice.best)))
    headers = ("change", "trouble", "alone", "gain", "together", "in all", "peak mem")
    return table(headers, rows, words=("change", "trouble"))


def _in_all(today: Estimate, reached: Estimate) -> tuple[str, str, str]:
    return format_seconds(reached.step_seconds), _gain(today, reached), format_bytes(reached.peak_bytes)


def _gain(today: Estimate, other: Estimate) -> str:
    """Of step time; a step that does not fit is nothing to gain on."""
    return change(today.step_seconds, other.step_seconds) if today.fits else "fits"


def is_reached(advice: Advice) -> bool:
    """Whether the changes lead to the best plan, or next to it."""
    reached = advice.reached
    return reached.fits and reached.step_seconds <= advice.best.step_seconds * (1 + NEGLIGIBLE_GAIN)


def conclusion(advice: Advice) -> str:
    """That all of it can run, where it ends with the proof, and what lies beyond."""
    lines = []
    if advice.changes:
        lines.append(wrapped("Every change is legal and fits in memory, alone and on top of those above it."))
    elif is_reached(advice):
        lines.append(wrapped("Nothing to change: no plan is faster."))
    lines.append(wrapped(f"Best: {advice.best.layout.brief}"))
    lines.append(certificate_sentence(advice.result.certificate, advice.best.step_seconds))
    for one in advice.other_questions:
        gain = _gain(advice.today, one.estimate) + ", not proved" * (not one.proven)
        step = f"{format_seconds(one.estimate.step_seconds)} ({gain})"
        lines.append(wrapped(f"With {one.words} ({one.trouble}): {step}, {unplaced(one.estimate.layout)}"))
    return "\n".join(lines)
