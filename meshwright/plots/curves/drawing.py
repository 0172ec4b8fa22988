"""What is drawn of what a search finds: each kind as a figure with the data it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.communication.topology import used_levels
from cost_models.errors import InfeasibleError, InputError, UnknownNameError
from cost_models.estimate import Estimate
from cost_models.question import Question, parts_of
from cost_models.units import counted
from meshwright.plots.drawing import draw_memory, draw_time, draw_timeline, draw_topology, draw_window
from meshwright.plots.drawn import Drawing
from meshwright.plots.subjects import require_one_kind, subject_of
from meshwright.render.goals import sizes_text
from planner.answers.frontier import exact_frontier, frontier_frame, pareto_frame, scaling_frame
from planner.answers.optimum import POINTS
from planner.objectives import Objective
from planner.search.search import KINDS, Budget, doublings
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    from meshwright.plots.parts.style import Frame  # which imports matplotlib

_MOST_NAMED = 2000
"""Layouts of a cloud that are named where it is to be drawn at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tradeoff:
    """What a frontier is drawn between."""

    objectives: tuple[Objective, Objective] = (Objective(name="time"), Objective(name="memory"))
    sizes: tuple[int, ...] = ()
    """Numbers of GPUs; empty: the plan's own."""
    points: int | None = POINTS
    exact: bool = True
    """Over layouts: proved for as many points; else the best of all layouts with even stages, at once."""
    restrictions: Restrictions | None = None
    named: bool = True
    """Whether its data are read besides, so that every layout of the cloud needs its name."""

    @property
    def over_layouts(self) -> bool:
        """Time against memory on the plan's own GPUs, drawn over the cloud of all layouts."""
        return {one.name for one in self.objectives} == {"time", "memory"} and not self.sizes


def draw_frontier(
    question: Question, chosen: Estimate, tradeoff: Tradeoff | None = None, budget: Budget | None = None
) -> Drawing:
    """The exact frontier of two objectives; that of time and memory over the cloud of every legal layout.

    Raises:
        InputError: an objective lacks what it needs.
        InfeasibleError: nothing fits.
    """
    require_one_kind(question, "frontier")
    what, spending = tradeoff or Tradeoff(), budget or Budget()
    if what.over_layouts:
        from meshwright.plots.curves.tradeoff import frontier

        frame = frontier_frame(
            question,
            chosen,
            what.restrictions or Restrictions(),
            spending,
            exact=what.exact,
            points=what.points,
            max_named=None if what.exact and what.named else _MOST_NAMED,
        )
        return Drawing(frame=frame, figure=frontier(frame, chosen.memory_limit, subject_of(question)))
    from meshwright.plots.curves.pareto import pareto

    found = exact_frontier(
        question,
        what.objectives,
        sizes=what.sizes,
        points=what.points,
        restrictions=what.restrictions,
        budget=spending,
    )
    frame = pareto_frame(found)
    first, second = (one.measure for one in what.objectives)
    names = (what.objectives[0].name, what.objectives[1].name)
    sizes = {point.question.cluster.num_gpus for point in found.points}
    subject = subject_of(found.points[0].question, sized=len(sizes) == 1)
    figure = pareto(frame, names, (first, second), subject, complete=found.complete)
    return Drawing(frame=frame, figure=figure)


def draw_scaling(
    question: Question,
    gpu_counts: Sequence[int] | None,
    kinds: Sequence[str] = KINDS,
    budget: Budget | None = None,
) -> Drawing:
    """The best layout at each number of GPUs, with the same batch and with one that grows.

    Raises:
        InfeasibleError: nothing fits on any of them.
    """
    from meshwright.plots.curves.scaling import scaling

    frame = _scaled(question, gpu_counts, kinds, budget)
    gpu, sequence = question.cluster.gpu.name, question.training.sequence_length
    subject = f"{question.model.name} on {gpu}, sequence {sequence}; the best layout at each point"
    return Drawing(frame=frame, figure=scaling(frame, subject))


def draw_stacked_scaling(
    question: Question, gpu_counts: Sequence[int] | None, budget: Budget | None = None
) -> Drawing:
    """What GPU time of a step more GPUs waste, and on what, the batch the same.

    Raises:
        InfeasibleError: nothing fits on any of them.
    """
    from meshwright.plots.curves.stacked_scaling import stacked_scaling

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
    """What each technique adds to a plan's MFU, from a bare trainer up.

    Raises:
        InputError: a cluster of several pools, or words of `allow` that mean nothing here.
    """
    from meshwright.plots.curves.ladder import ladder
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
    from meshwright.plots.curves.heatmap import heatmap
    from planner.answers.frontier import heatmap_frame

    require_one_kind(question, "heatmap")
    frame = heatmap_frame(question, estimate.layout, restrictions, budget)
    return Drawing(frame=frame, figure=heatmap(frame, subject_of(question)))


def draw_tornado(
    question: Question, estimate: Estimate, restrictions: Restrictions, budget: Budget
) -> Drawing:
    """How far the step moves with a quarter more or less of each thing, the plan held and planned again."""
    from meshwright.plots.curves.tornado import tornado
    from planner.explain.reasons import tornado_frame

    frame = tornado_frame(question, estimate, restrictions, budget)
    return Drawing(frame=frame, figure=tornado(frame, subject_of(question, estimate)))


def draw_far_links(question: Question, restrictions: Restrictions, budget: Budget) -> Drawing:
    """The best layout over the bandwidth of the farthest links, with the axes that cross them.

    Raises:
        InputError: a cluster of several pools, or one whose nodes are all on one network.
        InfeasibleError: nothing fits.
    """
    from meshwright.plots.curves.far_links import far_links
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
