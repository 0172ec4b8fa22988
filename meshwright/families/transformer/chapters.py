"""Chapters of a page about a transformer's plan: the answer, why, what would change it, pictures, its trust."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cost_models.estimate import Estimate
from cost_models.expected import expected_step
from cost_models.pipeline.pricing import crossing
from cost_models.units import format_seconds
from meshwright.families.transformer.explain import Explained, explain
from meshwright.families.transformer.pictures import PICTURES
from meshwright.families.transformer.planning.facts import facts_of_file
from meshwright.pages.chapters import Block, Chapter
from meshwright.render.estimates import host_sentences
from meshwright.render.expected import nearest_sentence
from meshwright.render.explanation import explanation_text, layout_planned_again
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import certificate_sentence, placed_on_pools, question_header
from meshwright.render.tables import Table, table
from meshwright.render.words import change
from meshwright.verbs.report.requests import PageRequest, pictures
from planner.plan import Plan

_PICTURES = (
    ("Beside its rivals", "time"),
    ("All layouts", "frontier"),
    ("Pairs of degrees", "heatmap"),
    ("Memory", "memory"),
    ("One step", "timeline"),
)
_WINDOW = ("The window over host memory", "window")
_OF_ANY_CLUSTER = ("time", "memory", "timeline")
"""Pictures that are drawn for several kinds of GPUs, too."""


def chapters(plan: Plan, request: PageRequest) -> Iterator[Chapter]:
    """The chapters in their order."""
    request.tell("explaining")
    explained = explain(plan)
    estimate = explained.explanation.estimate
    request.notes.extend(explained.notes)
    ends = [request.ends] if request.ends else []
    yield Chapter(title="The answer", blocks=[*ends, *answer_blocks(plan, estimate)])
    yield from reasons(plan, explained)
    if explained.explanation.sensitivities:
        yield from pictures(plan, request, (("A quarter more, a quarter less", "tornado"),), PICTURES)
    wanted = [*_PICTURES, *([_WINDOW] if any(plan.layout.offload) else [])]
    if plan.question.has_pools:
        wanted = [one for one in wanted if one[1] in _OF_ANY_CLUSTER]
    yield from pictures(plan, request, wanted, PICTURES)
    yield Chapter(title="How far to trust it", blocks=[*_trust(plan, estimate)])


def reasons(plan: Plan, explained: Explained) -> Iterator[Chapter]:
    """Why the layout is the plan's, and what would change it."""
    yield Chapter(title="Why this layout", blocks=[*_why(plan, explained)])
    yield from _changes(explained)


def answer_blocks(plan: Plan, estimate: Estimate) -> Iterator[Block]:
    """The question, the layout's figures with the proof and the runner-up, and how it was proved."""
    yield (*facts_of_file(plan, estimate),)
    yield question_header(plan.question, estimate.trust)


def _why(plan: Plan, explained: Explained) -> Iterator[str | Table]:
    """What the step and the memory are made of, what binds, and what it wins by."""
    estimate = explained.explanation.estimate
    yield explanation_text(replace(explained.explanation, sensitivities=()))  # those have a chapter
    yield crossing_sentence(crossing(plan.question, estimate))
    yield from host_sentences(plan.question, estimate)
    yield from placed_on_pools(plan.question, estimate)


def _changes(explained: Explained) -> Iterator[Chapter]:
    """What a change of the hardware would do to the step, held and re-planned."""
    found = explained.explanation
    if not found.sensitivities:
        return
    own = found.estimate
    rows = []
    for one in found.sensitivities:
        best = "the same" if one.best is one.repriced else layout_planned_again(one)
        held = format_seconds(one.repriced.step_seconds) if one.repriced.fits else "does not fit"
        gain = change(own.step_seconds, one.best.step_seconds)
        rows.append((one.change, held, format_seconds(one.best.step_seconds), gain, best))
    headers = ("what if", "this layout", "re-planned", "change", "its layout")
    yield Chapter(
        title="What would change it", blocks=[table(headers, rows, words=("what if", "its layout"))]
    )


def _trust(plan: Plan, estimate: Estimate) -> Iterator[str | Table]:
    yield f"Hardware profile {estimate.trust}"
    expected = expected_step(plan.question, estimate)
    if nearest := nearest_sentence(plan.question, estimate.layout, expected):
        yield nearest
    if plan.certificate is not None:
        yield certificate_sentence(plan.certificate, estimate.compared_seconds)
        yield (
            "The proof is exact under the cost model: no other layout of the space searched is faster by it. "
            "How far the model itself is off is what the error above says."
        )
