"""The levels of a cluster's links as rows, with what a plan sends over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cost_models.communication.levels import met_levels
from cost_models.pipeline.link_use import LinkUse
from cost_models.specs.cluster import ClusterSpec

if TYPE_CHECKING:
    import pandas as pd


def links_frame(cluster: ClusterSpec, use: Sequence[LinkUse] | None = None) -> pd.DataFrame:
    """A row per level from the inside out: `level`, `kind`, `gpus` of one domain, `domains`, `bandwidth` of one GPU
    (bytes/s), `latency` (s); with a plan a row per level and `axis`, with `gpu_bytes` of a step and their `share` of
    what the link could carry in it."""
    import pandas as pd

    rows = []
    for level in met_levels(cluster):
        gpus = min(level.gpus or cluster.num_gpus, cluster.num_gpus)
        row = {
            "level": level.name,
            "kind": level.kind,
            "gpus": gpus,
            "domains": -(-cluster.num_gpus // gpus),
            "bandwidth": level.bandwidth,
            "latency": level.latency,
        }
        own = [one for one in use or () if one.level.name == level.name]
        if use is None:
            rows.append(row)
        elif own:
            rows += [row | {"axis": one.axis, "gpu_bytes": one.gpu_bytes, "share": one.share} for one in own]
        else:
            rows.append(row | {"axis": "", "gpu_bytes": 0.0, "share": 0.0})
    return pd.DataFrame(rows)
