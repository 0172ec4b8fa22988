"""What can be drawn of a question and one layout: each kind as a figure with the data it shows."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.errors import InputError
from cost_models.estimate import Estimate, fullest_pool
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.pricing import link_use
from cost_models.question import Question
from cost_models.reliability.forecast import Forecast
from cost_models.specs.cluster import ClusterSpec, MixedCluster
from cost_models.units import counted, format_seconds
from meshwright.plots.drawn import Drawing
from meshwright.plots.subjects import require_one_kind, several_kinds, subject_of
from meshwright.records import frames
from meshwright.render.goals import gpus_in_words


def draw_time(questions: Sequence[Question], estimates: Sequence[Estimate]) -> Drawing:
    """Where the time of each layout goes; where they answer different questions each is named with its own."""
    from meshwright.plots.step_time import time_breakdown

    frame = frames.time_frame(estimates)
    subjects = [subject_of(question) for question in questions]
    same = len(set(subjects)) == 1
    if not same:
        frame.insert(0, "name", subjects)
    subject = subjects[0] if same else f"{len(set(subjects))} different questions, each named with its layout"
    return Drawing(frame=frame, figure=time_breakdown(frame, subject))


def draw_memory(question: Question, estimate: Estimate) -> Drawing:
    """What fills each pipeline rank."""
    from meshwright.plots.memory import memory_by_rank
    from meshwright.plots.parts.pools import pool_spans

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
    from meshwright.plots.parts.pools import pool_spans
    from meshwright.plots.timeline import timeline

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
    from meshwright.plots.window import window

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


def draw_forecast(question: Question, found: Forecast) -> Drawing:
    """The end of a job against the interval between checkpoints, and its goodput against the GPUs."""
    from meshwright.plots.curves.forecast import forecast, forecast_frame

    frame = forecast_frame(found)
    subject = f"{question.model.name} on {gpus_in_words(question)}, operations {found.operations.name}"
    return Drawing(frame=frame, figure=forecast(frame, found, subject))


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
