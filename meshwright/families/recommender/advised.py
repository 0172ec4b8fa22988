"""The answer of `advise` for a recommender: tables to hold otherwise, the best sharding, what other hardware brings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cost_models.recommender.prices import RecommenderEstimate
from cost_models.units import counted, format_bytes
from meshwright.families.recommender.planned import sharding_of
from meshwright.families.recommender.text import (
    estimate_record,
    precise,
    proof_text,
    question_record,
    question_text,
)
from meshwright.records import fields_of
from meshwright.render.tables import Table, table
from meshwright.render.words import NOT_PROVED, change, percent, sentence_list, wrapped
from meshwright.verbs.contract import PlanAnswer
from planner.answers.optimum import PROVEN
from planner.explain.advice import LEAST_GAIN
from planner.recommender.advice import ShardingAdvice, ShardingChange, advise_sharding
from planner.recommender.plan import RecommenderPlan, make_recommender_plan
from planner.recommender.restrictions import ShardingLimits
from planner.search.search import Budget

_LIMIT = 3
"""Tables of a change that are named."""
_HEADERS = ("change", "alone", "gain", "together", "in all", "peak mem")


class ShardingAdvised(PlanAnswer):
    """Table of the sharding run today, the tables whose change gains most, and the best sharding."""

    advice: ShardingAdvice
    limits: ShardingLimits

    @property
    def plan(self) -> RecommenderPlan:
        """The best sharding as a plan."""
        advice, best = self.advice, self.advice.best_sharding
        proof = advice.answer.certificate if best is advice.answer.sharding else None
        return make_recommender_plan(advice.question, best, self.limits, proof)

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for today, for each change, for the best sharding, and for each other question."""
        advice, trouble = self.advice, "tables move"
        rows = [_row("today", "", None, advice.today)]
        rows += [_row(self._words(one), trouble, one.by_itself, one.with_earlier) for one in advice.changes]
        rows += [] if advice.at_the_end else [_row("the rest", trouble, None, advice.best)]
        return rows + [_row(one.words, one.trouble, None, one.estimate) for one in advice.other_questions]

    def document(self) -> dict[str, Any]:
        advice = self.advice
        changes = [
            {
                "change": self._words(one),
                "tables": list(one.tables),
                "before": one.today,
                "after": one.proposed,
            }
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
            "layout": str(advice.sharding),
            "today": estimate_record(advice.today),
            "changes": changes,
            "best_layout": str(advice.best_sharding),
            "best": estimate_record(advice.best),
            "certificate": advice.answer.certificate.model_dump(mode="json"),
            "further": further,
        }

    def remarks(self, *, interrupted: bool = False) -> Sequence[str]:
        return [NOT_PROVED] if self.advice.answer.certificate.gap > PROVEN and not interrupted else []

    def view(self) -> Iterator[str | Table]:
        """Text that `meshwright advise` prints; no table if nothing is left to change."""
        advice, today = self.advice, self.advice.today
        yield question_text(advice.question, today)
        yield ""
        limit = format_bytes(today.device_memory) + ", which does not fit" * (not today.fits)
        yield wrapped(f"today: step {precise(today.step_seconds)}, {_peak(today)} of {limit}")
        yield ""
        if advice.changes or not advice.at_the_end:
            yield table(_HEADERS, list(self._cells()), words=("change",))
            yield ""
        if advice.changes:
            yield "Every change fits in memory and gains, alone and on top of those above it."
        elif advice.at_the_end:
            yield "Nothing to change: no sharding is faster."
        yield proof_text(advice.answer.certificate)
        yield from self._other_questions()

    def _cells(self) -> Iterator[tuple[str, ...]]:
        advice, today = self.advice, self.advice.today
        yield "today", "", "", precise(today.step_seconds), "", _peak(today)
        for move in advice.changes:
            cells = precise(move.by_itself.step_seconds), self._gain(move.by_itself)
            yield f"+ {self._words(move)}", *cells, *self._in_all(move.with_earlier)
        if not advice.at_the_end:
            yield "+ the rest of the tables, as planned", "", "", *self._in_all(advice.best)

    def _in_all(self, reached: RecommenderEstimate) -> tuple[str, str, str]:
        return precise(reached.step_seconds), self._gain(reached), _peak(reached)

    def _gain(self, then: RecommenderEstimate) -> str:
        """Gain in step time, as text; a sharding that does not fit is nothing to gain on."""
        if self.advice.today.fits:
            return change(self.advice.today.step_seconds, then.step_seconds)
        return "fits" if then.fits else "less"

    def _other_questions(self) -> Iterator[str]:
        """Sentences on gains of other questions beyond this question's best sharding, the largest gain first."""
        best = self.advice.best.step_seconds
        cases = sorted(self.advice.other_questions, key=lambda case: case.estimate.step_seconds)
        for case in cases:
            then = case.estimate.step_seconds
            if then < best * (1 - LEAST_GAIN):
                gain = f"{change(best, then)} from the best" + ", not proved" * (not case.proven)
                yield wrapped(f"With {case.words} ({case.trouble}): {precise(then)} ({gain})")
        if idle := [case.words for case in cases if case.estimate.step_seconds >= best * (1 - LEAST_GAIN)]:
            yield wrapped(f"Less than {percent(LEAST_GAIN)} would come of {sentence_list(idle)}")

    def _words(self, move: ShardingChange) -> str:
        """ "user and item: row, not whole"; of tables that only move "user: whole elsewhere"."""
        names, form = [self.advice.question.model.table_names[table] for table in move.tables], move.proposed
        tail = [counted(len(names) - _LIMIT, "table") + " more"] if len(names) > _LIMIT else []
        how = f"{form} elsewhere" if form == move.today else f"{form}, not {move.today}"
        return f"{sentence_list([*names[:_LIMIT], *tail])}: {how}"


def advise(plan: RecommenderPlan, layout: str | None, budget: Budget) -> ShardingAdvised:
    """Advise which tables of a plan, or of another sharding run today, to shard in another way."""
    today = plan.sharding if layout is None else sharding_of(plan.question, layout)
    advice = advise_sharding(plan.question, today, plan.restrictions.read(plan.model), budget)
    return ShardingAdvised(advice=advice, limits=plan.restrictions)


def _row(
    change: str, trouble: str, alone: RecommenderEstimate | None, price: RecommenderEstimate
) -> dict[str, Any]:
    """Row of a change: its price alone, and with all earlier changes."""
    return {
        "change": change,
        "trouble": trouble,
        "alone_step_seconds": alone and alone.step_seconds,
        **fields_of(price, "step_seconds", "samples_per_second"),
        "peak_bytes": float(price.device_bytes.max()),
        "fits": price.fits,
    }


def _peak(priced: RecommenderEstimate) -> str:
    return format_bytes(float(priced.device_bytes.max()))
