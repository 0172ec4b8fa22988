"""Links that each axis of a layout uses in a step, and how full they are.

A link is full for the seconds that the step's bytes over it take at its nominal bandwidth. These come from the prices
themselves: of a cluster on which every other link is free, without latency or start-up, at full efficiency.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.communication.levels import Level, levels_of, met_levels, only
from cost_models.communication.stage import boundary_seconds
from cost_models.communication.topology import axis_groups
from cost_models.estimate import Estimate
from cost_models.pipeline.placed import price_ranks
from cost_models.question import MixedQuestion, Question

AXES = ("tp", "cp", "ep", "pp", "dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Bytes of an axis over the links of one level in a step, on the pipeline rank that sends most."""

    level: Level
    axis: str
    share: float
    """Bytes over capacity × step: 1 is a link that is never idle."""
    gpu_bytes: float
    """Bytes of one GPU's share of the link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Which axes of a layout go over the farthest links of a network of several levels, and which stay inside."""

    level: Level
    inside: str
    """Name of the level that they leave."""
    uses: tuple[LinkUse, ...]
    """The fullest first."""
    stay: tuple[str, ...]
    """Axes of more than one rank that do not cross."""


def link_use(question: Question, estimate: Estimate) -> tuple[LinkUse, ...]:
    """Every level from the inside out with every axis that uses it; `question` is of one kind of GPU."""
    return tuple(
        one for at in range(len(levels_of(question.cluster))) for one in _use_of(question, estimate, at)
    )


def crossing(question: Question, estimate: Estimate) -> Crossing | None:
    """Traffic over the farthest links; None where one network joins all nodes, or the GPUs are of several kinds."""
    if isinstance(question, MixedQuestion):
        return None
    levels = met_levels(question.cluster)
    if sum(level.network for level in levels) < 2:
        return None
    uses = _use_of(question, estimate, len(levels) - 1)
    across = {one.axis for one in uses}
    columns = LayoutColumns.of([estimate.layout])
    degrees = {axis: int(getattr(columns, axis)[0]) for axis in AXES} | {"dp": int(columns.replicas[0])}
    return Crossing(
        level=levels[-1],
        inside=levels[-2].name,
        uses=tuple(sorted(uses, key=lambda one: -one.share)),
        stay=tuple(axis for axis in AXES if degrees[axis] > 1 and axis not in across),
    )


def _use_of(question: Question, estimate: Estimate, at: int) -> tuple[LinkUse, ...]:
    """Axes that use the links of one level."""
    level, layout = levels_of(question.cluster)[at], estimate.layout
    # the question where only the links of the level take time, and no more than their bytes take
    update = {"link_efficiency": 1.0, "network_efficiency": 1.0, "collective_seconds": 0.0, "collectives": ()}
    hardware = question.hardware.model_copy(update=update)
    one_level = replace(question, cluster=only(question.cluster, at), hardware=hardware)
    of_rank, columns = price_ranks(one_level, layout).seconds, LayoutColumns.of([layout])
    groups = axis_groups(one_level.cluster, columns)
    # out of a domain go activations to the next stage and gradients to the one before, unless it is at an end
    ways = 2 if layout.vpp > 1 or groups.pp.reach[at].domains[0] > 2 else 1
    transfers = ways * estimate.microbatches * layout.vpp
    uses: list[LinkUse] = []
    for axis in AXES:
        if axis == "pp":
            seconds = transfers * float(boundary_seconds(one_level, columns, groups)[0])
        else:
            seconds = float(np.max(of_rank[f"{axis}_comm"] + of_rank[f"{axis}_hidden"]))
        if seconds > 0:
            share, gpu_bytes = seconds / estimate.step_seconds, seconds * level.bandwidth
            uses.append(LinkUse(level=level, axis=axis, share=share, gpu_bytes=gpu_bytes))
    return tuple(uses)
