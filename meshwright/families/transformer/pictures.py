"""Pictures of transformers' plans, and chapters of an HTML page about a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cost_models.errors import InputError
from cost_models.expected import expected_step
from cost_models.pipeline.pricing import crossing
from cost_models.units import format_seconds
from meshwright.families.transformer import TransformerVerbs
from meshwright.families.transformer.explain import Explained
from meshwright.families.transformer.plan import facts_of_file
from meshwright.families.transformer.question import ClustersQuestion
from meshwright.pages.chapters import Chapter
from meshwright.plots.drawing import Drawing, PictureRequest, PlotOptions
from meshwright.plots.pictures import pictures_of
from meshwright.render.estimates import host_sentences, nearest_sentence
from meshwright.render.explanation import explanation_text, layout_planned_again
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import certificate_sentence, placed_on_pools, question_header
from meshwright.render.tables import table
from meshwright.render.words import change, sentence_list
from meshwright.verbs.report import PageRequest, pictures
from planner.answers.optimum import offers_of
from planner.objectives import Objective
from planner.plan import Plan


def frontier(request: PictureRequest) -> Drawing:
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
    verbs, question, certificate = TransformerVerbs(), plan.question, plan.certificate
    explained = verbs.explain(plan)
    estimate = explained.explanation.estimate
    request.notes.extend(explained.notes)
    ends = [request.ends] if request.ends else []
    answer = tuple(facts_of_file(plan, estimate)), question_header(question, estimate.trust)
    yield Chapter(title="The answer", blocks=[*ends, *answer])
    yield from reasons(plan, explained)
    if explained.explanation.sensitivities:
        yield from pictures(plan, request, [("A quarter more, a quarter less", "tornado")], verbs.pictures)
    listed = [*_PICTURES, *([_WINDOW] if any(plan.layout.offload) else [])]
    if question.has_pools:
        listed = [one for one in listed if one[1] in _OF_ANY_CLUSTER]
    yield from pictures(plan, request, listed, verbs.pictures)
    trust = [f"Hardware profile {estimate.trust}"]
    trust += [nearest_sentence(question, estimate.layout, expected_step(question, estimate))]
    if certificate is not None:
        trust += [
            certificate_sentence(certificate, estimate.compared_seconds),
            "The proof is exact under the cost model: no other layout of the space searched is faster by it. "
            "How far the model itself is off is what the error above says.",
        ]
    yield Chapter(title="How far to trust it", blocks=[*filter(None, trust)])


def reasons(plan: Plan, explained: Explained) -> Iterator[Chapter]:
    """Chapters on why the layout was chosen, and on changes of hardware: step of this layout, and of a layout planned
    anew."""
    question, explanation = plan.question, explained.explanation
    estimate, rows = explanation.estimate, []
    why = explanation_text(replace(explanation, sensitivities=()))  # those have a chapter
    traffic = crossing_sentence(crossing(question, estimate)), *host_sentences(question, estimate)
    yield Chapter(title="Why this layout", blocks=[why, *traffic, *placed_on_pools(question, estimate)])
    for case in explanation.sensitivities:
        best = "the same" if case.best is case.repriced else layout_planned_again(case)
        step = format_seconds(case.repriced.step_seconds) if case.repriced.fits else "does not fit"
        gain = change(estimate.step_seconds, case.best.step_seconds)
        rows.append((case.change, step, format_seconds(case.best.step_seconds), gain, best))
    if rows:
        headers = ("what if", "this layout", "re-planned", "change", "its layout")
        changes = table(headers, rows, words=("what if", "its layout"))
        yield Chapter(title="What would change it", blocks=[changes])
