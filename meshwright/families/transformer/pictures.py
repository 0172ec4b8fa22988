"""Pictures of transformers' plans, and chapters of a page about one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.expected import expected_step
from cost_models.pipeline.pricing import crossing
from cost_models.question import Question
from cost_models.units import format_seconds
from meshwright.families.transformer.explain import Explained, explain
from meshwright.families.transformer.planned import facts_of_file
from meshwright.families.transformer.ranked import Ranked
from meshwright.inputs.goals import objective_of
from meshwright.inputs.options import Goal
from meshwright.pages.chapters import Block, Chapter
from meshwright.plots.drawing import Drawing
from meshwright.plots.pictures import (
    Tradeoff,
    draw_far_links,
    draw_frontier,
    draw_heatmap,
    draw_ladder,
    draw_memory,
    draw_scaling,
    draw_stacked_scaling,
    draw_time,
    draw_timeline,
    draw_tornado,
    draw_window,
)
from meshwright.render.estimates import host_sentences, nearest_sentence
from meshwright.render.explanation import explanation_text, layout_planned_again
from meshwright.render.links import crossing_sentence
from meshwright.render.ranked import certificate_sentence, placed_on_pools, question_header
from meshwright.render.tables import Table, table
from meshwright.render.words import change, sentence_list
from meshwright.verbs.plot import PlotOptions
from meshwright.verbs.plot.drawing import STACKED, PictureRequest, scaling_kinds
from meshwright.verbs.report.writing import PageRequest, pictures
from planner.answers.optimum import POINTS, Offer, answered_question, offers_of, rank_offers
from planner.explain.compare import differences
from planner.explain.reasons import RIVALS, search_rivals
from planner.objectives import Objective
from planner.plan import Plan, PlanCache, priced_again
from planner.search.search import Budget
from planner.space.sizes import parse_sizes

MOST_POINTS = 1000
"""Points of a frontier that can be asked for by number."""


def _frontier(request: PictureRequest) -> Drawing:
    plan, options = request.only("frontier", Plan), request.options
    question, estimate = plan.question, priced_again(plan)
    offers = offers_of(plan)
    if offers and question.training.tokens is not None and all(one.price is not None for one in offers):
        return _offers(offers, plan, options if request.named else PlotOptions(), request.budget)
    target = question if options.gpus is None else answered_question(plan)
    names = _two_objectives(options.between)
    tokens = options.tokens or question.training.tokens
    prices = [options.price if name == "cost" else None for name in names]
    pairs = zip(names, prices, strict=True)
    goals = [Goal(objective=name, tokens=tokens, price=price) for name, price in pairs]
    aims = list(map(objective_of, goals))
    if aims[0][1] is not None:
        target = replace(target, training=target.training.model_copy(update={"tokens": aims[0][1]}))
    tradeoff = Tradeoff(
        objectives=(aims[0][0], aims[1][0]),
        sizes=() if options.gpus is None else parse_sizes(options.gpus, target),
        points=_points(options.points),
        restrictions=plan.user_restrictions,
        named=request.named,
    )
    return draw_frontier(target, estimate, tradeoff, request.budget)


def _offers(offers: tuple[Offer, ...], plan: Plan, options: PlotOptions, budget: Budget) -> Drawing:
    """Rank the clusters that the plan was chosen from again, without its deadline."""
    names = [name for name in ("gpus", "points", "tokens", "price") if getattr(options, name) is not None]
    if names or options.between not in (None, "time,cost", "cost,time"):
        flags = ["--" + name for name in names] or ["--between"]
        reason = "a plan chosen from several clusters has its frontier of cost and time over all of them"
        raise InputError(reason, hint=f"leave out {sentence_list(flags)}")
    objective = Objective(name="gpu-hours")
    ranking = rank_offers(offers, objective, restrictions=plan.restrictions.read, budget=budget)
    return Ranked(ranking=ranking, restrictions=plan.restrictions.read).plot()


def _two_objectives(text: str | None) -> tuple[str, str]:
    """Split "time,memory" into two words."""
    words = ("time,memory" if text is None else text).split(",")
    if len(words) != 2:
        reason = f"a frontier lies between two objectives, not {len(words)}"
        raise InputError(reason, hint="write it like --between time,cost")
    return words[0].strip(), words[1].strip()


def _points(text: str | None) -> int | None:
    """A number of points; None: all of them."""
    if text is None:
        return POINTS
    if text == "all":
        return None
    if not text.isdecimal() or not 2 <= int(text) <= MOST_POINTS:
        raise InputError(f"--points: `{text}` is neither `all` nor a number from 2 to {MOST_POINTS}")
    return int(text)


def _scaling(request: PictureRequest) -> Drawing:
    question = request.only("scaling", Plan).question
    counts = None if request.options.gpus is None else parse_sizes(request.options.gpus, question)
    kinds = scaling_kinds(request.options, STACKED)
    if STACKED in kinds:
        return draw_stacked_scaling(question, counts, request.budget)
    return draw_scaling(question, counts, kinds, request.budget)


def _time(request: PictureRequest) -> Drawing:
    read = request.all(Plan)
    plans = [(plan.question, priced_again(plan)) for plan in read]
    if changes := differences([question for question, _ in plans]):
        words = "; ".join(f"{one.what} {' / '.join(one.values)}" for one in changes)
        request.notes.append(f"the plans answer different questions: {words}")
    if len(plans) == 1:
        request.budget.tell("searching for rivals")
        question, prediction = plans[0]
        rivals = search_rivals(read[0], PlanCache(read[0]))
        plans += [(question, rival) for rival in rivals if rival.layout != prediction.layout][: RIVALS - 1]
    return draw_time([question for question, _ in plans], [estimate for _, estimate in plans])


def _of_its_layout(
    kind: str, draw: Callable[[Question, Estimate], Drawing], request: PictureRequest
) -> Drawing:
    plan = request.only(kind, Plan)
    return draw(plan.question, priced_again(plan))


def _ladder(request: PictureRequest) -> Drawing:
    plan = request.only("ladder", Plan)
    words = [word for text in request.options.allow for word in text.split(",")]
    return draw_ladder(plan.question, priced_again(plan), words)


def _far_links(request: PictureRequest) -> Drawing:
    plan = request.only("far-links", Plan)
    return draw_far_links(plan.question, plan.user_restrictions, request.budget)


def _heatmap(request: PictureRequest) -> Drawing:
    plan = request.only("heatmap", Plan)
    return draw_heatmap(plan.question, priced_again(plan), plan.user_restrictions, request.budget)


def _tornado(request: PictureRequest) -> Drawing:
    plan = request.only("tornado", Plan)
    return draw_tornado(plan.question, priced_again(plan), plan.restrictions.read, request.budget)


PICTURES: Mapping[str, Callable[[PictureRequest], Drawing]] = {
    "frontier": _frontier,
    "scaling": _scaling,
    "time": _time,
    "memory": partial(_of_its_layout, "memory", draw_memory),
    "timeline": partial(_of_its_layout, "timeline", draw_timeline),
    "window": partial(_of_its_layout, "window", draw_window),
    "far-links": _far_links,
    "ladder": _ladder,
    "heatmap": _heatmap,
    "tornado": _tornado,
}


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
    listed = [*_PICTURES, *([_WINDOW] if any(plan.layout.offload) else [])]
    if plan.question.has_pools:
        listed = [one for one in listed if one[1] in _OF_ANY_CLUSTER]
    yield from pictures(plan, request, listed, PICTURES)
    yield Chapter(title="How far to trust it", blocks=[*_trust(plan, estimate)])


def reasons(plan: Plan, explained: Explained) -> Iterator[Chapter]:
    """Why the layout is the plan's, and what would change it."""
    yield Chapter(title="Why this layout", blocks=[*_reasons(plan, explained)])
    yield from _changes(explained)


def answer_blocks(plan: Plan, estimate: Estimate) -> Iterator[Block]:
    """The question, the layout's figures with the proof and the runner-up, and how it was proved."""
    yield (*facts_of_file(plan, estimate),)
    yield question_header(plan.question, estimate.trust)


def _reasons(plan: Plan, explained: Explained) -> Iterator[str | Table]:
    """Sentences on the parts of step and memory, the bottleneck, and the plan's advantages."""
    estimate = explained.explanation.estimate
    yield explanation_text(replace(explained.explanation, sensitivities=()))  # those have a chapter
    yield crossing_sentence(crossing(plan.question, estimate))
    yield from host_sentences(plan.question, estimate)
    yield from placed_on_pools(plan.question, estimate)


def _changes(explained: Explained) -> Iterator[Chapter]:
    """Table of changes of the hardware: step of this layout and of a new plan."""
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
