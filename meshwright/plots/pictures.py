"""Pictures of transformers' plans and jobs: a function for each kind returns the figure with the data it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.communication.topology import used_levels
from cost_models.errors import InfeasibleError, InputError, UnknownNameError
from cost_models.estimate import Estimate, fullest_pool
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.pricing import link_use
from cost_models.question import Question, parts_of
from cost_models.reliability import Forecast
from cost_models.specs.cluster import ClusterSpec, MixedCluster
from cost_models.units import counted, format_seconds
from meshwright.plots.drawing import Drawing
from meshwright.records import frames
from meshwright.render.goals import gpus_in_words, sizes_text
from planner.answers.frontier import exact_frontier, frontier_frame, pareto_frame, scaling_frame
from planner.answers.optimum import POINTS
from planner.objectives import Objective
from planner.search.search import KINDS, Budget, doublings
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    from meshwright.plots.style import Frame  # which imports matplotlib


def require_one_kind(question: Question, kind: str) -> None:
    """Raises InputError for a question on several pools."""
    if question.has_pools:
        raise several_kinds(kind, question.cluster.name)


def several_kinds(kind: str, cluster: str) -> InputError:
    """Error for a kind of picture that is not drawn for several pools."""
    return InputError(
        f"`{kind}` is drawn for one kind of GPU, and `{cluster}` has several pools",
        hint="time, memory and timeline are drawn for any plan",
    )


def subject_of(question: Question, estimate: Estimate | None = None, *, sized: bool = True) -> str:
    """Subtitle of a picture: model, GPUs, batch, sequence length, layout."""
    training = question.training
    gpus = gpus_in_words(question) if sized else question.cluster.gpu.name
    words = (
        f"{question.model.name} on {gpus}, "
        f"global batch {training.global_batch}, sequence {training.sequence_length}"
    )
    return words if estimate is None else f"{words}: {estimate.layout.brief}"


def draw_time(questions: Sequence[Question], estimates: Sequence[Estimate]) -> Drawing:
    """Step time of each layout by part; layouts of different questions are named with theirs."""
    from meshwright.plots.layouts import time_breakdown

    frame = frames.time_frame(estimates)
    subjects = [subject_of(question) for question in questions]
    same = len(set(subjects)) == 1
    if not same:
        frame.insert(0, "name", subjects)
    subject = subjects[0] if same else f"{len(set(subjects))} different questions, each named with its layout"
    return Drawing(frame=frame, figure=time_breakdown(frame, subject))


def draw_memory(question: Question, estimate: Estimate) -> Drawing:
    """Memory of each pipeline rank by part."""
    from meshwright.plots.layouts import memory_by_rank, pool_spans

    frame = frames.memory_frame(estimate)
    subject = subject_of(question, estimate)
    if estimate.replicas:
        subject += f"; in {fullest_pool(estimate.replicas).pool}, where devices are fullest"
    figure = memory_by_rank(
        frame,
        estimate.memory_limit,
        subject,
        rank_limits=estimate.rank_limits,
        pools=pool_spans(estimate.layout.pools),
    )
    return Drawing(frame=frame, figure=figure)


def draw_timeline(question: Question, estimate: Estimate) -> Drawing:
    """Every action of the schedule on every pipeline rank."""
    from meshwright.plots.layouts import pool_spans, timeline

    layout = estimate.layout
    frame = frames.timeline_frame(question, layout)
    subject = subject_of(question, estimate)
    if estimate.replicas:
        slowest = max(estimate.replicas, key=lambda own: own.step_seconds)
        subject += f"; a replica in {slowest.pool}, which ends last"
    figure = timeline(frame, layout.pp, subject, pools=pool_spans(layout.pools))
    return Drawing(frame=frame, figure=figure)


def draw_window(question: Question, estimate: Estimate) -> Drawing:
    """A layout with more and more of a rank's blocks in host memory.

    Raises:
        InputError: a cluster of several pools, or a stack that keeps nothing there.
    """
    from meshwright.plots.layouts import window

    require_one_kind(question, "window")
    frame = frames.window_frame(question, estimate)
    if frame.empty:
        raise InputError(
            f"`window` has nothing to draw: stack `{question.stack.name}` keeps no states of blocks in host memory",
            hint="plan with another --stack, like meshwright or deepspeed",
        )
    usable = usable_host_memory(question.cluster) or None
    figure = window(frame, estimate.memory_limit, usable, subject_of(question, estimate))
    return Drawing(frame=frame, figure=figure)


def draw_forecast(question: Question, outlook: Forecast) -> Drawing:
    """The end of a job against the interval between checkpoints, and its goodput against the GPUs."""
    from meshwright.plots.sensitivity import forecast, forecast_frame

    frame = forecast_frame(outlook)
    subject = f"{question.model.name} on {gpus_in_words(question)}, operations {outlook.operations.name}"
    return Drawing(frame=frame, figure=forecast(frame, outlook, subject))


def draw_topology(
    cluster: ClusterSpec | MixedCluster, question: Question | None = None, estimate: Estimate | None = None
) -> Drawing:
    """The links of a cluster, and with an estimate how full each axis makes them.

    Raises:
        InputError: a cluster of several pools.
    """
    from meshwright.plots.topology import topology
    from meshwright.render.links import links_finding, links_frame, links_table

    if isinstance(cluster, MixedCluster):
        raise several_kinds("topology", cluster.name)
    use = None
    subject = f"{cluster.name}: {counted(cluster.num_gpus, 'GPU')}, {counted(cluster.nodes, 'node')}"
    if question is not None and estimate is not None:
        use = link_use(question, estimate)
        step = format_seconds(estimate.step_seconds)
        subject = f"{subject_of(question, estimate)}; bars: share of {step}"
    return Drawing(
        frame=links_frame(cluster, use),
        figure=topology(cluster, links_finding(cluster, use), subject, use),
        table=links_table(cluster, use),
    )


_MOST_NAMED = 2000
"""Layouts of a cloud that are named where it is to be drawn at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """Two objectives of a frontier, and the layouts it covers."""

    objectives: tuple[Objective, Objective] = (Objective(name="time"), Objective(name="memory"))
    sizes: tuple[int, ...] = ()
    """Numbers of GPUs; empty: the plan's own."""
    points: int | None = POINTS
    exact: bool = True
    """Over layouts: proved for as many points; else the best of all layouts with even stages, at once."""
    restrictions: Restrictions | None = None
    named: bool = True
    """Whether the data are also read, so that every layout of the cloud needs its name."""

    @property
    def over_layouts(self) -> bool:
        """Time against memory on the plan's own GPUs, drawn over the cloud of all layouts."""
        return {one.name for one in self.objectives} == {"time", "memory"} and not self.sizes


def draw_frontier(
    question: Question, chosen: Estimate, tradeoff: Tradeoff | None = None, budget: Budget | None = None
) -> Drawing:
    """Exact frontier of two objectives; time and memory are drawn over the cloud of all legal layouts.

    Raises:
        InputError: an objective lacks what it needs.
        InfeasibleError: nothing fits.
    """
    require_one_kind(question, "frontier")
    tradeoff, budget = tradeoff or Tradeoff(), budget or Budget()
    if tradeoff.over_layouts:
        from meshwright.plots.frontiers import frontier

        frame = frontier_frame(
            question,
            chosen,
            tradeoff.restrictions or Restrictions(),
            budget,
            exact=tradeoff.exact,
            points=tradeoff.points,
            max_named=None if tradeoff.exact and tradeoff.named else _MOST_NAMED,
        )
        return Drawing(frame=frame, figure=frontier(frame, chosen.memory_limit, subject_of(question)))
    from meshwright.plots.frontiers import pareto

    answer = exact_frontier(
        question,
        tradeoff.objectives,
        sizes=tradeoff.sizes,
        points=tradeoff.points,
        restrictions=tradeoff.restrictions,
        budget=budget,
    )
    frame = pareto_frame(answer)
    first, second = (one.measure for one in tradeoff.objectives)
    names = (tradeoff.objectives[0].name, tradeoff.objectives[1].name)
    sizes = {point.question.cluster.num_gpus for point in answer.points}
    subject = subject_of(answer.points[0].question, sized=len(sizes) == 1)
    figure = pareto(frame, names, (first, second), subject, complete=answer.complete)
    return Drawing(frame=frame, figure=figure)


def draw_scaling(
    question: Question,
    gpu_counts: Sequence[int] | None,
    kinds: Sequence[str] = KINDS,
    budget: Budget | None = None,
) -> Drawing:
    """Best layout for each number of GPUs, with a constant batch and with a batch that grows.

    Raises:
        InfeasibleError: nothing fits on any of them.
    """
    from meshwright.plots.scaling import scaling

    frame = _scaled(question, gpu_counts, kinds, budget)
    gpu, sequence = question.cluster.gpu.name, question.training.sequence_length
    subject = f"{question.model.name} on {gpu}, sequence {sequence}; the best layout at each point"
    return Drawing(frame=frame, figure=scaling(frame, subject))


def draw_stacked_scaling(
    question: Question, gpu_counts: Sequence[int] | None, budget: Budget | None = None
) -> Drawing:
    """GPU time of a step by part against the number of GPUs, with a constant batch.

    Raises:
        InfeasibleError: nothing fits on any of them.
    """
    from meshwright.plots.scaling import stacked_scaling

    frame = _scaled(question, gpu_counts, ("strong",), budget)
    return Drawing(frame=frame, figure=stacked_scaling(frame, subject_of(question, sized=False)))


def _scaled(
    question: Question, gpu_counts: Sequence[int] | None, kinds: Sequence[str], budget: Budget | None
) -> Frame:
    """The best layouts at these numbers of GPUs. Raises InfeasibleError."""
    require_one_kind(question, "scaling")
    counts = doublings(question) if gpu_counts is None else gpu_counts
    frame = scaling_frame(question, counts, kinds, budget or Budget())
    if frame.empty:
        raise InfeasibleError(f"nothing fits on {sizes_text(tuple(counts))}")
    return frame


def draw_ladder(question: Question, estimate: Estimate, allow: Sequence[str]) -> Drawing:
    """MFU that each technique adds, from a bare trainer to the plan.

    Raises:
        InputError: a cluster of several pools, or words of `allow` that mean nothing here.
    """
    from meshwright.plots.sensitivity import ladder
    from planner.answers.frontier import ladder_frame

    require_one_kind(question, "ladder")
    frame = ladder_frame(question, estimate.layout, allow)
    return Drawing(frame=frame, figure=ladder(frame, subject_of(question, estimate)))


def draw_heatmap(
    question: Question, estimate: Estimate, restrictions: Restrictions, budget: Budget
) -> Drawing:
    """The best layout for each tensor and pipeline degree, and why there is none.

    Raises:
        InputError: a cluster of several pools.
    """
    from meshwright.plots.sensitivity import heatmap
    from planner.answers.frontier import heatmap_frame

    require_one_kind(question, "heatmap")
    frame = heatmap_frame(question, estimate.layout, restrictions, budget)
    return Drawing(frame=frame, figure=heatmap(frame, subject_of(question)))


def draw_tornado(
    question: Question, estimate: Estimate, restrictions: Restrictions, budget: Budget
) -> Drawing:
    """Change of the step time with a quarter more or less of each quantity, for the plan and re-planned."""
    from meshwright.plots.sensitivity import tornado
    from planner.explain.reasons import tornado_frame

    frame = tornado_frame(question, estimate, restrictions, budget)
    return Drawing(frame=frame, figure=tornado(frame, subject_of(question, estimate)))


def draw_far_links(question: Question, restrictions: Restrictions, budget: Budget) -> Drawing:
    """The best layout over the bandwidth of the farthest links, with the axes that cross them.

    Raises:
        InputError: a cluster of several pools, or one whose nodes are all on one network.
        InfeasibleError: nothing fits.
    """
    from meshwright.plots.scaling import far_links
    from planner.answers.frontier import far_links_frame

    require_one_kind(question, "far-links")
    levels = used_levels(question.cluster)
    if sum(level.network for level in levels) < 2:
        raise InputError(
            f"`far-links` has nothing to draw: all nodes of `{question.cluster.name}` are on one network",
            hint="describe `buildings`, or links level by level, in the cluster's file",
        )
    frame = far_links_frame(question, restrictions, budget)
    if frame[frame["domains"] != 1].empty:
        raise InfeasibleError(f"nothing fits on {counted(question.cluster.num_gpus, 'GPU')}")
    figure = far_links(frame, levels[-1].bandwidth, levels[-2].name, subject_of(question))
    return Drawing(frame=frame, figure=figure)


def draw(
    kind: str,
    question: Question,
    estimates: Sequence[Estimate],
    gpu_counts: Sequence[int] | None = None,
    restrictions: Restrictions | None = None,
) -> Drawing:
    """One kind of picture of a question and its ranked layouts, best first; a frontier keeps to the restrictions.

    Raises:
        UnknownNameError: there is no such kind.
    """
    best = estimates[0]
    kinds: dict[str, Callable[[], Drawing]] = {
        "frontier": lambda: draw_frontier(
            question, best, Tradeoff(sizes=tuple(gpu_counts or ()), restrictions=restrictions)
        ),
        "scaling": lambda: draw_scaling(question, gpu_counts),
        "time": lambda: draw_time([question] * len(estimates), estimates),
        "memory": lambda: draw_memory(question, best),
        "timeline": lambda: draw_timeline(question, best),
        "window": lambda: draw_window(question, best),
        "topology": lambda: draw_topology(parts_of(question)[0], question, best),
    }
    if kind not in kinds:
        raise UnknownNameError("plot", kind, tuple(kinds))
    return kinds[kind]()
