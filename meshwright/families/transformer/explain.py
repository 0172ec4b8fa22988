"""`explain` and `advise` for transformers: bottlenecks, rivals, why another layout was not chosen, and what to
change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from cost_models.estimate import Estimate
from cost_models.expected import expected_step
from cost_models.pipeline.pricing import LossPart, crossing, loss_part
from cost_models.question import Question
from cost_models.units import format_bytes, format_seconds
from meshwright.families.advised import AnyAdvised
from meshwright.families.transformer.plan import recommended_in_plan
from meshwright.records import fields_of, further_records
from meshwright.records.estimates import (
    breakdown_rows,
    completed_record,
    estimate_record,
    layout_cells,
    question_record,
)
from meshwright.render.estimates import expected_lines, expected_record, mfu_words
from meshwright.render.explanation import explanation_text, loss_sentence, unplaced, why_not_text
from meshwright.render.goals import count_sentence, flops_counted
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import certificate_sentence, layout_text, question_header
from meshwright.render.tables import Table
from meshwright.render.words import wrapped
from meshwright.terminal.answers import Answer
from planner.explain.advice import Advice
from planner.explain.compare import difference, same_degrees
from planner.explain.reasons import Explanation, WhyNot
from planner.plan import Plan, make_plan
from planner.space.restrictions import Restrictions


class Explained(Answer):
    """Answer of `explain` for a transformer: bottleneck of a plan, its rival, and changes that would make it
    faster."""

    explanation: Explanation
    notes: tuple[str, ...] = ()
    """Sentences on effects that the answer leaves out."""

    @property
    def plan(self) -> Plan:
        """Plan that is explained."""
        return self.explanation.plan

    @property
    def question(self) -> Question:
        """Question that the plan answers."""
        return self.plan.question

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each part of the step, and of the memory of the fullest rank."""
        estimate = self.explanation.estimate
        memory = estimate.rank_memory[estimate.fullest_rank]
        return [*breakdown_rows("step", estimate.time), *breakdown_rows("memory", memory)]

    def document(self) -> dict[str, Any]:
        """JSON document: price, bottleneck, ties, runner-up, and changes of hardware."""
        explanation, estimate = self.explanation, self.explanation.estimate
        bound, rival = explanation.binding, explanation.rival
        recommended, runner_up = self.plan.recommendation, None
        if rival is not None:
            parts = dict(difference(estimate.time, rival.time))
            runner_up = {"plan": estimate_record(rival), "difference_seconds": parts}
        return {
            "question": question_record(self.question),
            **figures_of(self.question, estimate),
            "searched": explanation.plan.searched,
            "loss": self.loss and asdict(self.loss),
            "flops_per_token": flops_counted(self.question, estimate.layout.tp),
            "recommendation": recommended and recommended.model_dump(mode="json"),
            "bottleneck": fields_of(bound, "resource", "change")
            | {"faster_plan": bound.faster and estimate_record(bound.faster)},
            "ties": [str(tie.layout) for tie in explanation.ties],
            "runner_up": runner_up,
            "what_if": [
                {
                    "change": one.change,
                    "layout": str(one.best.layout),
                    "step_seconds": one.best.step_seconds,
                    "same_layout": same_degrees(one.best.layout, estimate.layout),
                    "fits": one.best.fits,
                    "as_it_is": fields_of(one.repriced, "step_seconds", "fits"),
                }
                for one in explanation.sensitivities
            ],
            "notes": list(self.notes),
        }

    @property
    def loss(self) -> LossPart | None:
        """Time and memory of the output layer and the loss on the last pipeline stage; None on several GPU pools."""
        return loss_part(self.question, self.explanation.estimate.layout)

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright explain` prints."""
        return layout_text(self.question, self.explanation.estimate, repr(self))

    def __repr__(self) -> str:
        """Text of the explanation, without the question's header."""
        question, estimate = self.question, self.explanation.estimate
        lines = [explanation_text(self.explanation), loss_sentence(self.loss, estimate)]
        traffic = crossing_sentence(crossing(question, estimate))
        lines += [count_sentence(question, estimate.layout.tp), traffic, recommended_in_plan(self.plan)]
        lines += expected_lines(question, estimate.layout, expected_step(question, estimate))
        return "\n".join(filter(None, lines))


class NotChosen(Answer):
    """Answer of `explain --why-not`: why another layout is not the plan."""

    answer: WhyNot
    plan: Estimate

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each part of the step that differs, or for each rule that the layout breaks."""
        if self.answer.difference is None:
            reason = {"what": self.answer.reason}
            return [reason | {"part": str(problem), "value": ""} for problem in self.answer.problems]
        return breakdown_rows(self.answer.reason, self.answer.difference)

    def document(self) -> dict[str, Any]:
        """JSON document: the layout, the reason against it, and its price beside the plan's."""
        return {
            "layout": self.answer.layout,
            **completed_record(self.answer.completed),
            "excluded": self.answer.excluded,
            "left_out": list(self.answer.left_out),
            "reason": self.answer.reason,
            "problems": [str(problem) for problem in self.answer.problems],
            "estimate": self.answer.estimate and estimate_record(self.answer.estimate),
            "difference_seconds": dict(self.answer.difference) if self.answer.difference else None,
        }

    def view(self) -> tuple[str, ...]:
        """Text on why the layout was not chosen."""
        return (why_not_text(self.answer, self.plan),)


def figures_of(question: Question, estimate: Estimate) -> dict[str, Any]:
    """JSON fields of a plan: its predicted price, and the step time expected in a real run."""
    expectation = expected_record(question, estimate.layout, expected_step(question, estimate))
    return {"plan": estimate_record(estimate, question), "expected": expectation}


class Advised(AnyAdvised):
    """Answer of `advise` for a transformer: the layout run today, the changes that gain most for their effort, and
    the best plan."""

    advice: Advice
    restrictions: Restrictions
    """Restrictions of today's plan, which the best plan also obeys."""

    @property
    def best(self) -> Estimate:
        """Best layout, priced."""
        return self.advice.best

    @property
    def plan(self) -> Plan:
        """Best layout, as a plan."""
        result = self.advice.result
        certificate = result.certificate if self.best is result.best else None
        return make_plan(self.advice.question, self.best, certificate, self.restrictions)

    def path(self) -> Iterator[tuple[str, str, Estimate | None, Estimate]]:
        """Each change that leads to the best plan: words, effort, price of today's layout with only this change (None
        for the last step to the best plan), and price with this and all earlier changes."""
        yield from self.advice.changes
        if not self.advice.is_reached:
            yield (*self.advice.final_change, None, self.advice.best)

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for today's layout, each change, and the best plan: step time with this change alone, then the price with
        this and all earlier changes."""
        return [
            {
                "change": words,
                "trouble": trouble,
                "alone_step_seconds": alone and alone.step_seconds,
                "alone_peak_bytes": alone and alone.peak_bytes,
                **fields_of(estimate, "step_seconds", "peak_bytes", "mfu"),
                "layout": str(estimate.layout),
                **layout_cells(estimate.layout),
            }
            for words, trouble, alone, estimate in (("today", "", None, self.advice.today), *self.path())
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: prices of today's layout, each change and the best plan, and the proof."""
        advice, (remainder, trouble) = self.advice, self.advice.final_change
        changes = [
            {"change": one.words, "trouble": one.trouble}
            | {"alone": estimate_record(one.by_itself), "together": estimate_record(one.with_earlier)}
            for one in advice.changes
        ]
        return {
            "question": question_record(advice.question),
            "today": estimate_record(advice.today),
            "changes": changes,
            "rest": {"change": remainder, "trouble": trouble, "reached": advice.is_reached},
            "best": estimate_record(advice.best),
            "certificate": advice.certificate.model_dump(mode="json"),
            "further": further_records(advice.other_questions, estimate_record),
        }

    def view(self) -> Iterator[str | Table]:
        """Text that `meshwright advise` prints: today's layout, the table of changes, the best plan with its proof, and
        gains by changes other than the layout (such as precision)."""
        advice, today = self.advice, self.advice.today
        step = f"{format_seconds(today.step_seconds)} a step, {mfu_words(today)}"
        if (run := advice.question.measured) is not None and run.layout == str(today.layout):
            step = f"{format_seconds(run.seconds)} a step measured, {step} on paper"
        size = f"{format_bytes(today.peak_bytes)} of {today.limit_words}{', which does not fit' * (not today.fits)}"
        start = wrapped(f"today {unplaced(today.layout)}: {step}, {size}")
        yield from (question_header(advice.question, today.trust), "", start, "")
        if advice.changes or not advice.is_reached:
            remainder = self.advice.final_change[0]
            final = f"+ the rest: {remainder}" if remainder else "+ blocks placed as in the best plan"
            yield from (self.changes_table(format_seconds, final), "")
        if advice.changes:
            yield wrapped("Every change is legal and fits in memory, alone and on top of those above it.")
        elif advice.is_reached:
            yield wrapped("Nothing to change: no plan is faster.")
        yield wrapped(f"Best: {advice.best.layout.brief}")
        yield certificate_sentence(advice.certificate, advice.best.step_seconds)
        for case in advice.other_questions:
            gain = self.gain(case.estimate) + ", not proved" * (not case.proven)
            step = f"{format_seconds(case.estimate.step_seconds)} ({gain})"
            yield wrapped(f"With {case.words} ({case.trouble}): {step}, {unplaced(case.estimate.layout)}")
