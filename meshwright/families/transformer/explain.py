"""`explain` of a transformer's plan: what binds it, its rivals, what would change it, and why another layout lost."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import Any

from cost_models.estimate import Estimate
from cost_models.expected import ExpectedStep, expected_step
from cost_models.pipeline.pricing import LossPart, crossing, loss_part
from cost_models.question import Question
from cost_models.units import format_seconds
from meshwright.families.transformer.planned import recommended_in_plan
from meshwright.records import fields_of
from meshwright.records.estimates import breakdown_rows, completed_record, estimate_record, question_record
from meshwright.render.estimates import expected_lines, expected_record
from meshwright.render.explanation import explanation_text, loss_sentence, why_not_text
from meshwright.render.goals import count_sentence, flops_counted
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import layout_text
from meshwright.render.tables import Table
from meshwright.render.words import drift_note
from meshwright.terminal.answers import Answer
from planner.explain.compare import difference, same_degrees
from planner.explain.reasons import Explanation, WhyNot
from planner.explain.reasons import explain as explanation_of
from planner.explain.reasons import why_not as reason_against
from planner.plan import Plan, priced_again
from planner.space.obstacles import notes_of


class Explained(Answer):
    """Bottlenecks of a plan, its advantages, and changes that would move it."""

    explanation: Explanation
    notes: tuple[str, ...] = ()
    """Sentences on effects that the answer leaves out."""

    @property
    def plan(self) -> Plan:
        """The plan that is explained."""
        return self.explanation.plan

    @property
    def question(self) -> Question:
        """The question that the plan answers."""
        return self.plan.question

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for each part of the step, and of the memory of the fullest rank."""
        estimate = self.explanation.estimate
        memory = estimate.rank_memory[estimate.fullest_rank]
        return [*breakdown_rows("step", estimate.time), *breakdown_rows("memory", memory)]

    def document(self) -> dict[str, Any]:
        explanation, estimate = self.explanation, self.explanation.estimate
        bound, rival = explanation.binding, explanation.rival
        recommended, runner_up = self.plan.recommendation, None
        if rival is not None:
            parts = dict(difference(estimate.time, rival.time))
            runner_up = {"plan": estimate_record(rival), "difference_seconds": parts}
        return {
            "question": question_record(self.question),
            **figures_of(self.question, estimate, self.expected),
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

    @cached_property
    def expected(self) -> ExpectedStep | None:
        """Step time to expect, with its interval."""
        return expected_step(self.question, self.explanation.estimate)

    @property
    def loss(self) -> LossPart | None:
        """The output product and the loss."""
        return loss_part(self.question, self.explanation.estimate.layout)

    def view(self) -> tuple[str | Table, ...]:
        return layout_text(self.question, self.explanation.estimate, repr(self))

    def __repr__(self) -> str:
        question, estimate = self.question, self.explanation.estimate
        lines = [explanation_text(self.explanation), loss_sentence(self.loss, estimate)]
        lines += [
            count_sentence(question, estimate.layout.tp),
            crossing_sentence(crossing(question, estimate)),
        ]
        lines += [recommended_in_plan(self.plan), *expected_lines(question, estimate.layout, self.expected)]
        return "\n".join(filter(None, lines))


class NotChosen(Answer):
    """Why a layout is not the plan."""

    answer: WhyNot
    plan: Estimate

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for each part that differs, or for each rule that the layout breaks."""
        if self.answer.difference is None:
            reason = {"what": self.answer.reason}
            return [reason | {"part": str(problem), "value": ""} for problem in self.answer.problems]
        return breakdown_rows(self.answer.reason, self.answer.difference)

    def document(self) -> dict[str, Any]:
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
        return (repr(self),)

    def __repr__(self) -> str:
        return why_not_text(self.answer, self.plan)


def figures_of(question: Question, estimate: Estimate, expected: ExpectedStep | None) -> dict[str, Any]:
    """Record of a plan's price and its expected step, as in JSON."""
    expectation = expected_record(question, estimate.layout, expected)
    return {"plan": estimate_record(estimate, question), "expected": expectation}


def figures(plan: Plan) -> dict[str, Any]:
    """Record of a plan's price and its expected step, priced now."""
    priced = priced_again(plan)
    return figures_of(plan.question, priced, expected_step(plan.question, priced))


def explain(plan: Plan) -> Explained:
    """Explain a plan's bottlenecks, its rivals, and changes that would move it."""
    notes = (*plan.notes, *notes_of(plan.question, plan.restrictions.read))
    return Explained(explanation=explanation_of(plan, priced_again(plan)), notes=notes)


def why_not(plan: Plan, layout: str) -> NotChosen:
    """Explain why a layout is not the plan; degrees left out are free. Raises InputError if it is no layout."""
    priced = priced_again(plan)
    answer = reason_against(plan.question, priced, layout, plan.user_restrictions)
    return NotChosen(answer=answer, plan=priced)


def drift(plan: Plan, name: object) -> str:
    """A note where the plan in a file was written with another step time than it has today; else nothing."""
    return drift_note(name, plan.prediction.step_seconds, priced_again(plan).step_seconds, format_seconds)
