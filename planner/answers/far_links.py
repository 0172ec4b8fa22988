"""The best layout over the bandwidth of a cluster's farthest links, in one building and in several, as a data frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from cost_models.communication.levels import met_levels
from cost_models.errors import InfeasibleError
from cost_models.pipeline.link_use import crossing
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.links import LinkLevels
from cost_models.units import counted, format_bandwidth
from planner.search.budget import Budget
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd

MOST_BUILDINGS = 4
NARROWEST, WIDEST = 2**-6, 2**3
"""Least and greatest bandwidth, as a share of the cluster's own."""


def far_links_frame(
    question: Question, restrictions: Restrictions | None = None, budget: Budget | None = None
) -> pd.DataFrame:
    """A row per bandwidth of the farthest links and number of domains that they join (buildings, or 0 where a list of
    levels says what is joined).

    Columns: `domains`, `bandwidth` (bytes/s of a GPU), `layout`, `step_seconds`, `mfu`, `crossing` (axes, the fullest
    first), `share` of the step that its fullest axis keeps the links busy, `gap`. One building has one row, with its
    network's bandwidth. Points that the budget's time did not reach are left out.
    """
    import pandas as pd

    spending, limits, rows = budget or Budget(), restrictions or Restrictions(), []
    points = list(_points(question))
    for number, (domains, bandwidth, asked) in enumerate(points, start=1):
        where = f"{counted(domains, 'building')}, " if domains else ""
        spending.tell(f"{where}{format_bandwidth(bandwidth)} ({number} of {len(points)})")
        try:
            found = spending.search(asked, limits, effort="bounds")
        except InfeasibleError:
            continue
        if found is None:
            continue
        best, far = found.best, crossing(asked, found.best)
        uses = () if far is None else far.uses
        rows.append(
            {
                "domains": domains,
                "bandwidth": bandwidth,
                "layout": best.layout.brief,
                "step_seconds": best.step_seconds,
                "mfu": best.mfu,
                "crossing": " ".join(one.axis for one in uses),
                "share": max((one.share for one in uses), default=0.0),
                "gap": found.certificate.gap,
            }
        )
    return pd.DataFrame(rows)


def _points(question: Question) -> Iterator[tuple[int, float, Question]]:
    """(domains, bandwidth, question): from one building to several, from narrow links to wide ones."""
    cluster = question.cluster
    if cluster.buildings is None:
        for rate in bandwidths(cluster):
            yield 0, rate, _on(question, with_farthest(cluster, rate))
        return
    alone = cluster.model_copy(update={"buildings": None})
    yield 1, met_levels(alone)[-1].bandwidth, _on(question, alone)
    own = cluster.nodes // cluster.buildings.nodes
    numbers = {own} | {few for few in range(2, MOST_BUILDINGS + 1) if cluster.nodes % few == 0}
    for domains in sorted(numbers - {1}):
        in_them = cluster.buildings.model_copy(update={"nodes": cluster.nodes // domains})
        placed = cluster.model_copy(update={"buildings": in_them})
        if not placed.nodes_per_leaf or in_them.nodes % placed.nodes_per_leaf == 0:
            for rate in bandwidths(placed):
                yield domains, rate, _on(question, with_farthest(placed, rate))


def bandwidths(cluster: ClusterSpec) -> list[float]:
    """Twice as wide each, through the cluster's own, up to that of the network inside."""
    levels = met_levels(cluster)
    own, most = levels[-1].bandwidth, levels[-2].bandwidth
    rates, rate = [], own * NARROWEST
    while rate < min(most, own * WIDEST * 1.001):
        rates.append(rate)
        rate *= 2
    return [*rates, most] if most <= own * WIDEST else rates


def with_farthest(cluster: ClusterSpec, bandwidth: float) -> ClusterSpec:
    """The cluster with another bandwidth between its buildings, or at the last of its levels that its nodes meet."""
    if cluster.buildings is not None:
        link = cluster.buildings.link.model_copy(update={"bandwidth": bandwidth})
        return cluster.model_copy(update={"buildings": cluster.buildings.model_copy(update={"link": link})})
    assert isinstance(cluster.links, LinkLevels)
    at = len(met_levels(cluster)) - 1
    changed = [
        level.model_copy(update={"bandwidth": bandwidth}) if index == at else level
        for index, level in enumerate(cluster.links.root)
    ]
    return cluster.model_copy(update={"links": LinkLevels.model_construct(tuple(changed))})


def _on(question: Question, cluster: ClusterSpec) -> Question:
    return replace(question, cluster=cluster)
