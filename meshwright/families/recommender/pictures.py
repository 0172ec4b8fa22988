"""Pictures of recommenders' plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from cost_models.errors import InfeasibleError, UnknownNameError
from cost_models.recommender.prices import estimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.sharding import Sharding
from cost_models.units import grouped
from meshwright.families.recommender.explained import explain
from meshwright.families.recommender.text import precise
from meshwright.pages.chapters import Chapter
from meshwright.plots.drawing import Drawing
from meshwright.records.shardings import shards_frame, stages_frame, tiers_frame
from meshwright.render.goals import sizes_text
from meshwright.verbs.plot.drawing import PictureRequest, scaling_kinds
from meshwright.verbs.report.writing import PageRequest, pictures
from planner.recommender.plan import RecommenderPlan
from planner.search.search import doublings
from planner.space.sizes import on_whole_nodes, parse_sizes, possible


def draw(kind: str, question: RecommenderQuestion, sharding: Sharding) -> Drawing:
    """One kind of picture of a sharding. Raises UnknownNameError where there is no such kind."""
    if kind not in _DRAWINGS:
        raise UnknownNameError("plot", kind, tuple(_DRAWINGS), hint=f"there are {', '.join(_DRAWINGS)}")
    return _DRAWINGS[kind](question, sharding)


def _subject(question: RecommenderQuestion, step_seconds: float) -> str:
    cluster, training = question.cluster, question.training
    return (
        f"{question.model.name} on {grouped(cluster.num_gpus)} x {cluster.gpu.name},"
        f" {grouped(training.global_batch)} samples/step ({training.precision}); step {precise(step_seconds)}"
    )


def _time(question: RecommenderQuestion, sharding: Sharding) -> Drawing:
    from meshwright.plots.shardings import stages

    priced = estimate(question, sharding)
    frame = stages_frame(priced)
    return Drawing(frame=frame, figure=stages(frame, _subject(question, priced.step_seconds)))


def _memory(question: RecommenderQuestion, sharding: Sharding) -> Drawing:
    from meshwright.plots.shardings import tiers

    priced = estimate(question, sharding)
    frame = tiers_frame(priced)
    return Drawing(frame=frame, figure=tiers(frame, _subject(question, priced.step_seconds)))


def _sharding(question: RecommenderQuestion, sharding: Sharding) -> Drawing:
    from meshwright.plots.shardings import places

    frame = shards_frame(question, sharding)
    step = estimate(question, sharding).step_seconds
    return Drawing(frame=frame, figure=places(frame, _subject(question, step)))


def _of_one_plan(kind: str, request: PictureRequest) -> Drawing:
    plan = request.only(kind, RecommenderPlan)
    return _DRAWINGS[kind](plan.question, plan.sharding)


def _scaling(request: PictureRequest) -> Drawing:
    from meshwright.plots.shardings import sharding_scaling
    from planner.recommender.search import sharding_scaling_frame

    question = request.only("scaling", RecommenderPlan).question
    options, kinds = request.options, scaling_kinds(request.options)
    rounded = on_whole_nodes(question)
    counts: Sequence[int] = [one for one in doublings(question) if possible(one, rounded.cluster)]
    if options.gpus is not None:
        counts = parse_sizes(options.gpus, rounded)
    frame = sharding_scaling_frame(question, counts, kinds, request.budget)
    if frame.empty:
        raise InfeasibleError(f"nothing fits on {sizes_text(tuple(counts))}, or the batch does not divide")
    subject = f"{question.model.name} on {question.cluster.gpu.name}; the best sharding at each point"
    return Drawing(frame=frame, figure=sharding_scaling(frame, subject))


_DRAWINGS: Mapping[str, Callable[[RecommenderQuestion, Sharding], Drawing]] = {
    "time": _time,
    "memory": _memory,
    "sharding": _sharding,
}
PICTURES: Mapping[str, Callable[[PictureRequest], Drawing]] = {
    **{kind: partial(_of_one_plan, kind) for kind in _DRAWINGS},
    "scaling": _scaling,
}


_PICTURES = (("Stages of a step", "time"), ("Memory", "memory"), ("Where tables lie", "sharding"))


def chapters(plan: RecommenderPlan, request: PageRequest) -> Iterator[Chapter]:
    """The chapters in their order."""
    yield Chapter(title="The answer, and what binds it", blocks=explain(plan).text)
    yield from pictures(plan, request, _PICTURES, PICTURES)
