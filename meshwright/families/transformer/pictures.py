"""Pictures of transformers' plans, and chapters of an HTML page about a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.expected import expected_step
from cost_models.pipeline.pricing import crossing
from cost_models.units import format_seconds
from meshwright.families.transformer import TransformerVerbs
from meshwright.families.transformer.explain import Explained
from meshwright.families.transformer.plan import facts_of_file
from meshwright.families.transformer.question import ClustersQuestion
from meshwright.pages.chapters import Block, Chapter
from meshwright.plots.drawing import Draw, Drawing, PictureRequest, PlotOptions
from meshwright.plots.pictures import pictures_of
from meshwright.render.estimates import host_sentences, nearest_sentence
from meshwright.render.explanation import explanation_text, layout_planned_again
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import certificate_sentence, placed_on_pools, question_header
from meshwright.render.tables import Table, table
from meshwright.render.words import change, sentence_list
from meshwright.verbs.report import PageRequest, pictures
from planner.answers.optimum import offers_of
from planner.objectives import Objective
from planner.plan import Plan


def _frontier(request: PictureRequest) -> Drawing:
    """Draw the frontier of a plan. For a plan chosen from several priced clusters, search all of them again, without
    the deadline, and draw cost against days."""
    plan = request.only("frontier", Plan)
    offers = offers_of(plan)
    if not offers or plan.question.training.tokens is None or any(one.price is None for one in offers):
        return pictures_of(Plan)["frontier"](request)
    options = request.options if request.named else PlotOptions()
    names = [name for name in ("gpus", "points", "tokens", "price") if getattr(options, name) is not None]
    if names or options.between not in (None, "time,cost", "cost,time"):
        flags = ["--" + name for name in names] or ["--between"]
        reason = "a plan chosen from several clusters has its frontier of cost and time over all of them"
        raise InputError(reason, hint=f"leave out {sentence_list(flags)}")
    objective, limits = Objective(name="gpu-hours"), plan.restrictions.read
    proof = request.budget.proof
    asked = ClustersQuestion(offers=offers, objective=objective, restrictions=limits, proof=proof)
    return asked.answer(request.budget).plot()


def pictures_of_plans() -> Mapping[str, Draw]:
    """Kinds of pictures of a transformer's plan → function that draws the kind."""
    return pictures_of(Plan) | {"frontier": _frontier}


_PICTURES = (
    ("Beside its rivals", "time"),
    ("All layouts", "frontier"),
    ("Pairs of degrees", "heatmap"),
    ("Memory", "memory"),
    ("One step", "timeline"),
)
_WINDOW = ("The window over host memory", "window")
_OF_ANY_CLUSTER = ("time", "memory", "timeline")
"""Pictures that can also be drawn for clusters with several kinds of GPUs."""


def chapters(plan: Plan, request: PageRequest) -> Iterator[Chapter]:
    """Chapters of an HTML page about a transformer's plan, in order."""
    request.tell("explaining")
    explained = TransformerVerbs().explain(plan)
    estimate = explained.explanation.estimate
    request.notes.extend(explained.notes)
    ends = [request.ends] if request.ends else []
    yield Chapter(title="The answer", blocks=[*ends, *answer_blocks(plan, estimate)])
    yield from reasons(plan, explained)
    if explained.explanation.sensitivities:
        yield from pictures(
            plan, request, (("A quarter more, a quarter less", "tornado"),), pictures_of_plans()
        )
    listed = [*_PICTURES, *([_WINDOW] if any(plan.layout.offload) else [])]
    if plan.question.has_pools:
        listed = [one for one in listed if one[1] in _OF_ANY_CLUSTER]
    yield from pictures(plan, request, listed, pictures_of_plans())
    yield Chapter(title="How far to trust it", blocks=[*_trust(plan, estimate)])


def reasons(plan: Plan, explained: Explained) -> Iterator[Chapter]:
    """Chapters on why the layout was chosen, and on what would change it."""
    yield Chapter(title="Why this layout", blocks=[*_reasons(plan, explained)])
    yield from _changes(explained)


def answer_blocks(plan: Plan, estimate: Estimate) -> Iterator[Block]:
    """Blocks of a page on the answer: the layout's figures, proof and runner-up, then the question."""
    yield (*facts_of_file(plan, estimate),)
    yield question_header(plan.question, estimate.trust)


def _reasons(plan: Plan, explained: Explained) -> Iterator[str | Table]:
    """Text on parts of step and memory, the bottleneck, rivals, host memory and pools."""
    estimate = explained.explanation.estimate
    yield explanation_text(replace(explained.explanation, sensitivities=()))  # those have a chapter
    yield crossing_sentence(crossing(plan.question, estimate))
    yield from host_sentences(plan.question, estimate)
    yield from placed_on_pools(plan.question, estimate)


def _changes(explained: Explained) -> Iterator[Chapter]:
    """Chapter with a table of changes of hardware: step of this layout, and of a layout planned anew; none without
    changes."""
    explanation = explained.explanation
    if not explanation.sensitivities:
        return
    estimate = explanation.estimate
    rows = []
    for case in explanation.sensitivities:
        best = "the same" if case.best is case.repriced else layout_planned_again(case)
        step = format_seconds(case.repriced.step_seconds) if case.repriced.fits else "does not fit"
        gain = change(estimate.step_seconds, case.best.step_seconds)
        rows.append((case.change, step, format_seconds(case.best.step_seconds), gain, best))
    headers = ("what if", "this layout", "re-planned", "change", "its layout")
    changes = table(headers, rows, words=("what if", "its layout"))
    yield Chapter(title="What would change it", blocks=[changes])


def _trust(plan: Plan, estimate: Estimate) -> Iterator[str | Table]:
    """Sentences on the profile's error, the nearest measured run, and the proof."""
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
