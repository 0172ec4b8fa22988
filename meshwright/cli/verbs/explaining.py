"""`explain`: what binds a plan, what it wins by, and what would change it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from cost_models.errors import InfeasibleError
from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.units import format_seconds
from meshwright.cli.output import JSON_SCHEMA, Output
from meshwright.cli.progress import progress
from meshwright.records.estimates import breakdown_rows, estimate_record, question_record
from meshwright.render.plans.explanation import explanation_text, why_not_text
from meshwright.render.plans.ranked import placed_on_pools, question_header
from planner.explaining.explain import Explanation, Origin, binding_constraint, rivalry, ties
from planner.explaining.whatif import same_degrees, sensitivities
from planner.explaining.why_not import WhyNot
from planner.explaining.why_not import why_not as ask_why_not
from planner.plan import Plan
from planner.plan_files import load_plan
from planner.repricing import priced_again
from planner.search.search import search
from planner.space.notes import notes_of

RIVALS_SECONDS = 20.0
"""Time limit of the search for the plan's rivals."""
RIVALS = 6
"""Plans searched for: the plan itself, those as fast, and the next best."""


DRIFT = 1e-6
"""Relative difference between a plan's prediction and its price today that is not rounding."""


def explain(path: Path, why_not: str | None, *, output: Output) -> None:
    """Explain a plan file, or why another layout is not the plan.

    Raises:
        InputError: a broken plan, or not a layout.
    """
    plan = load_plan(path)
    question = plan.question
    restrictions = plan.restrictions.read
    estimate = priced_again(plan)
    drift = estimate.step_seconds / plan.prediction.step_seconds - 1
    if abs(drift) > DRIFT:
        output.note(
            f"note: {path} was written with a step of {format_seconds(plan.prediction.step_seconds)};"
            f" this version prices it at {format_seconds(estimate.step_seconds)}"
        )
    notes = notes_of(question, restrictions)
    for note in notes:
        output.note(f"note: {note}")
    if why_not is not None:
        answer = ask_why_not(question, estimate, why_not, restrictions, Origin.of(plan))
        output.answer(_why_not_record(answer), _why_not_rows(answer), why_not_text(answer, estimate))
        return
    with progress(output) as reporter:
        reporter.say("searching for rivals")
        explanation = explained(plan, estimate)
    output.answer(
        {**_explanation_record(question, explanation), "notes": list(notes)},
        [
            *breakdown_rows("step", estimate.time),
            *breakdown_rows("memory", estimate.rank_memory[estimate.fullest_rank]),
        ],
        question_header(question, estimate.trust, estimate.memory_limit),
        "",
        explanation_text(explanation),
        *placed_on_pools(question, estimate),
    )


def explained(plan: Plan, estimate: Estimate) -> Explanation:
    """All that there is to say about a plan that was priced again."""
    question, restrictions, origin = plan.question, plan.restrictions.read, Origin.of(plan)
    rivals: tuple[Estimate, ...] = ()
    with suppress(InfeasibleError):  # a layout that was asked for may be all there is, and not fit
        rivals = search(question, top=RIVALS, restrictions=restrictions, time_limit=RIVALS_SECONDS).estimates
    return Explanation(
        estimate=estimate,
        origin=origin,
        binding=binding_constraint(question, estimate, restrictions),
        ties=ties(estimate, rivals),
        rivalry=rivalry(estimate, rivals),
        sensitivities=sensitivities(question, estimate, restrictions, replan=origin.is_fastest),
    )


def _explanation_record(question: Question, explanation: Explanation) -> dict[str, Any]:
    bound, rivals = explanation.binding, explanation.rivalry
    return {
        "schema": JSON_SCHEMA,
        "question": question_record(question),
        "plan": estimate_record(explanation.estimate, question),
        "searched": explanation.origin.searched,
        "binds": {
            "resource": bound.resource,
            "change": bound.change,
            "faster": estimate_record(bound.faster) if bound.faster else None,
        },
        "ties": [str(tie.layout) for tie in explanation.ties],
        "runner_up": None
        if rivals is None
        else {"plan": estimate_record(rivals.rival), "difference": rivals.difference.as_dict()},
        "if_only": [
            {
                "change": one.change,
                "layout": str(one.best.layout),
                "step_seconds": one.best.step_seconds,
                "same_layout": same_degrees(one.best.layout, explanation.estimate.layout),
                "fits": one.best.fits,
                "as_it_is": {"step_seconds": one.held.step_seconds, "fits": one.held.fits},
            }
            for one in explanation.sensitivities
        ],
    }


def _why_not_record(answer: WhyNot) -> dict[str, Any]:
    return {
        "schema": JSON_SCHEMA,
        "layout": answer.layout,
        "read_as": str(answer.completed.layout),
        "of_the_plan": list(answer.completed.taken),
        "dropped": list(answer.completed.dropped),
        "excluded": answer.excluded,
        "reason": answer.reason,
        "problems": [str(problem) for problem in answer.problems],
        "estimate": estimate_record(answer.estimate) if answer.estimate else None,
        "difference": answer.difference.as_dict() if answer.difference else None,
    }


def _why_not_rows(answer: WhyNot) -> list[dict[str, Any]]:
    if answer.difference is None:
        return [{"what": answer.reason, "part": str(problem), "value": ""} for problem in answer.problems]
    return breakdown_rows(answer.reason, answer.difference)
