"""Clusters of several pools: each of one GPU with a network of its own, and a link between any two of them.

The file is a cluster's (`kind: cluster`) with `pools:` in place of `gpu:`:

    pools:
      - {name: old, gpu: a100-sxm-80gb, gpus_per_node: 8, nodes: 64, links: {...}}
      - {name: new, gpu: h100-sxm, gpus_per_node: 8, nodes: 64, links: {...}}
    between: {kind: infiniband, bandwidth: 200 Gb/s, latency: 8 us}
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, model_validator

from cost_models.base import MAX_GPUS, POOL_NAME, Name, Spec
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.links import Links, LinkSpec

MAX_POOLS = 4
"""Most pools of a cluster: a pipeline may pass through them in any order, 24 for four."""


class MixedCluster(Spec):
    """Pools of different GPUs that train one model together."""

    kind: Literal["cluster"] = "cluster"
    name: Name = "custom"
    pools: tuple[ClusterSpec, ...]
    """The pools: clusters of one GPU, each with a `name` of its own that layouts use: letters, digits and `._-`."""
    between: LinkSpec | None = None
    """Link between GPUs of different pools, per GPU. Default: the slowest of the pools' `links.inter_node`."""
    source: str = ""

    @model_validator(mode="after")
    def _pools_are_told_apart(self) -> MixedCluster:
        names = [pool.name for pool in self.pools]
        if not 2 <= len(names) <= MAX_POOLS:
            raise ValueError(f"`pools` lists {len(names)}; a cluster of several has 2 to {MAX_POOLS}")
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two pools are called `{repeated[0]}`; give each a `name` of its own")
        if odd := [name for name in names if not re.fullmatch(POOL_NAME, name)]:
            raise ValueError(f"`{odd[0]}` is no name of a pool: letters, digits and `._-`, 50 at most")
        if drawn := [pool.name for pool in self.pools if pool.graph]:
            raise ValueError(f"pool `{drawn[0]}` has a `graph`; links of pools are levels, so leave it out")
        if self.num_gpus > MAX_GPUS:
            raise ValueError(f"{self.num_gpus:,} GPUs are more than there are; {MAX_GPUS:,} are the most")
        if self.between is None and any(pool.links.inter_node is None for pool in self.pools):
            raise ValueError(
                "not every pool has `links.inter_node`, so `between` must say how pools are linked"
            )
        return self

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all pools."""
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def link(self) -> LinkSpec:
        """The link between two pools: as given, else least bandwidth and greatest latency of their networks."""
        if self.between is not None:
            return self.between
        networks = [link for pool in self.pools if (link := pool.farthest_link) is not None]
        narrow = min(networks, key=lambda link: link.bandwidth)
        return narrow.model_copy(update={"latency": max(link.latency for link in networks)})

    @property
    def as_one(self) -> ClusterSpec:
        """A single cluster with the limits common to all pools: for legality rules only, never for prices.

        Its node size is the largest that divides the node sizes of all pools; its GPU is the one with the least memory.
        """
        together = math.gcd(*(pool.gpus_per_node for pool in self.pools))
        smallest = min(self.pools, key=lambda pool: pool.gpu.memory)
        return ClusterSpec(
            name=self.name,
            gpu=smallest.gpu,
            gpus_per_node=together,
            nodes=self.num_gpus // together,
            links=Links(intra_node=smallest.links.intra_node, inter_node=self.link),
            memory_reserve=smallest.memory_reserve,
            source=self.source,
        )


def _which(value: Any) -> str:
    mixed = "pools" in value if isinstance(value, dict) else isinstance(value, MixedCluster)
    return "[pools]" if mixed else "[cluster]"


AnyCluster = Annotated[
    Annotated[ClusterSpec, Tag("[cluster]")] | Annotated[MixedCluster, Tag("[pools]")], Discriminator(_which)
]
"""A cluster of one GPU, or of several pools where it has the field `pools`."""
