"""Specs of clusters: GPUs and their datasheet values, links, buildings, pools of different GPUs, and
operations.

GPUs reach one another by `Links`, one kind inside a node and one between nodes, or by `LinkLevels`, level by
level from the GPUs outwards. A cluster of several pools, each of one GPU with its network, is a file of the
same kind, with `pools:` in place of `gpu:`:

    pools:
      - {name: old, gpu: a100-sxm-80gb, gpus_per_node: 8, nodes: 64, links: {...}}
      - {name: new, gpu: h100-sxm, gpus_per_node: 8, nodes: 64, links: {...}}
    between: {kind: infiniband, bandwidth: 200 Gb/s, latency: 8 us}

Operations give the failure rate of a cluster, the time to restart a job, and the bandwidth of checkpoint
storage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, RootModel, Tag, model_validator

from cost_models.base import MAX_GPUS, POOL_NAME, CheckedSpec, GpuCount, Name, PositiveInt, Share, Spec
from cost_models.errors import first_few
from cost_models.specs.choices import LinkKind
from cost_models.specs.graph import MOST_LINES, device_kind, node_of, read_lines
from cost_models.units import (
    MIB,
    Bandwidth,
    Bytes,
    FlopRate,
    Seconds,
    counted,
    format_bandwidth,
    grouped,
    parse_bandwidth,
    parse_bytes,
    parse_flop_rate,
    parse_seconds,
    value_range,
)

Rate = Annotated[Bandwidth, value_range(parse_bandwidth, "1 KB/s", "100000 TB/s")]
Latency = Annotated[Seconds, value_range(parse_seconds, "0.001 ns", "10 s")]

MAX_LEVELS = 16
"""Maximum number of link levels in a cluster. 16 levels of two domains each already hold 65,536 GPUs."""


class LinkSpec(Spec):
    """One kind of link between GPUs, with bandwidth per GPU and latency."""

    kind: LinkKind
    bandwidth: Rate
    """Bandwidth per GPU, bytes/s, one direction."""
    latency: Latency
    """Seconds until the first byte arrives, over one hop."""
    mesh: bool = False
    """Whether each pair of a node's N GPUs has a direct link. A group of n GPUs then has only (n-1)/(N-1) of
    `bandwidth`: two of eight GPUs have a seventh."""

    def faster(self, factor: float) -> Self:
        """A copy of the link with `factor` times the bandwidth."""
        return self.model_copy(update={"bandwidth": self.bandwidth * factor})


class Links(Spec):
    """Links between GPUs, one kind inside a node and one between nodes."""

    intra_node: LinkSpec
    """Link between GPUs of one node."""
    inter_node: LinkSpec | None = None
    """Link between nodes, per GPU. Needed for more than one node."""

    @property
    def farthest(self) -> LinkSpec | None:
        """Link between the nodes that are farthest apart, `inter_node`."""
        return self.inter_node

    def with_intra_node(self, link: LinkSpec) -> Links:
        """A copy of the links in which `link` replaces the link inside a node."""
        return self.model_copy(update={"intra_node": link})

    def with_inter_node(self, link: LinkSpec) -> Links:
        """A copy of the links in which `link` replaces the link between nodes."""
        return self.model_copy(update={"inter_node": link})

    def faster(self, *, intra_node: float = 1.0, inter_node: float = 1.0) -> Links:
        """A copy of the links with bandwidths multiplied by `intra_node` inside a node and by `inter_node`
        between nodes."""
        inside, outer = self.intra_node.faster(intra_node), self.inter_node
        return Links(intra_node=inside, inter_node=outer and outer.faster(inter_node))


class BuildingsSpec(Spec):
    """Data-centre buildings of equal size, each with a network inside, and the link between buildings."""

    nodes: GpuCount
    """Number of nodes in one building."""
    link: LinkSpec
    """Link between buildings: bandwidth per GPU while all GPUs of a building send to other buildings."""


class LevelSpec(LinkSpec):
    """One level of a hierarchy of links, which joins domains of the next smaller level (or GPUs, at the
    innermost level) into larger domains."""

    name: Name
    """Name of the level: pair, socket, tray, node, rack, leaf, spine, building ..."""
    gpus: GpuCount | None = None
    """Number of GPUs in one domain of the level, for levels inside a node. None for network levels."""
    nodes: GpuCount | None = None
    """Number of nodes in one domain of the level. 1 for the level that is the node. The last level joins all
    nodes and may leave it out."""
    sharers: GpuCount | None = None
    """Number of GPUs that share one network adapter, at levels whose medium (NVLink, PCIe, network) is not
    the inner level's. Default: one adapter per GPU."""

    @property
    def link(self) -> LinkSpec:
        """Kind, bandwidth and latency of the level as a `LinkSpec`, without name and sizes."""
        return LinkSpec.model_construct(**{name: getattr(self, name) for name in LinkSpec.model_fields})


class LinkLevels(RootModel[tuple[LevelSpec, ...]]):
    """Links of a cluster as a list of levels, from the GPUs outwards.

    Levels of one medium are a tree: traffic to an outer level also passes the inner ones. Where the medium
    changes (NVLink pairs on PCIe, a node's NVSwitch and its network) a GPU has a separate way out.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    root: Annotated[tuple[LevelSpec, ...], Field(strict=False, min_length=1, max_length=MAX_LEVELS)]

    @model_validator(mode="after")
    def _check_levels(self) -> LinkLevels:
        """Raise ValueError for levels with contradictory sizes or names."""
        if problems := list(dict.fromkeys(self._errors())):
            raise ValueError("; ".join(problems))
        return self

    @property
    def inside(self) -> tuple[LevelSpec, ...]:
        """Link levels inside a node, including the level of the node itself."""
        return tuple(level for level in self.root if level.gpus is not None or level.nodes == 1)

    @property
    def network(self) -> tuple[LevelSpec, ...]:
        """Link levels between nodes, from the inside out."""
        return self.root[len(self.inside) :]

    @property
    def intra_node(self) -> LinkSpec:
        """Link of the node's level, between GPUs of one node that share no smaller level."""
        return self.inside[-1].link

    @property
    def inter_node(self) -> LinkSpec | None:
        """Link of the innermost network level, between the nearest nodes. None on a single node."""
        return self.network[0].link if self.network else None

    @property
    def farthest(self) -> LinkSpec | None:
        """Link of the outermost network level, between the nodes that are farthest apart. None on a single
        node."""
        return self.network[-1].link if self.network else None

    def with_intra_node(self, link: LinkSpec) -> LinkLevels:
        """A copy in which one link between all GPUs of a node replaces the levels inside the node."""
        node = self.inside[-1].model_copy(update=dict(link) | {"sharers": None})
        return LinkLevels((node, *self.network))

    def with_inter_node(self, link: LinkSpec) -> LinkLevels:
        """A copy in which one link between all nodes replaces the network levels."""
        return LinkLevels((*self.inside, LevelSpec.model_construct(**dict(link), name="network")))

    def faster(self, *, intra_node: float = 1.0, inter_node: float = 1.0) -> LinkLevels:
        """A copy with bandwidths inside a node multiplied by `intra_node`, and between nodes by `inter_node`."""
        inside = [level.faster(intra_node) for level in self.inside]
        return LinkLevels.model_construct((*inside, *(level.faster(inter_node) for level in self.network)))

    def levels_for(self, nodes: int) -> LinkLevels:
        """Copy with only the link levels that `nodes` nodes use, at least one network level if there is any;
        the outermost of these levels then joins all nodes."""
        too_small = sum(nodes > (level.nodes or nodes) for level in self.network[:-1])
        *inner, last = (*self.inside, *self.network[: too_small + 1])
        return LinkLevels((*inner, last.model_copy(update={"nodes": None} if self.network else {})))

    def opens(self, at: int) -> bool:
        """Whether GPUs attach directly to level `at`, instead of through switches of the level inside it."""
        return at == 0 or self._medium(at) != self._medium(at - 1)

    def _medium(self, at: int) -> str:
        """Medium of level `at`: the network, NVLink, or the kind of another link inside the node."""
        kind = self.root[at].kind
        return "network" if at >= len(self.inside) else "nvlink" if kind in ("nvlink", "nvswitch") else kind

    def _errors(self) -> Iterator[str]:
        """Yield an error message for each contradiction between link levels."""
        names = [level.name for level in self.root]
        yield from (f"two levels are called `{name}`" for name in names if names.count(name) > 1)
        if [level.nodes for level in self.root].count(1) != 1:
            yield "one level is the node: it has `nodes: 1`"
            return
        for level in self.root:
            if level.gpus and level.nodes:
                yield f"level `{level.name}` has `gpus` and `nodes`: inside a node it has `gpus`, else `nodes`"
        for at, (inner, outer) in enumerate(pairwise(self.root)):
            yield from _size_errors(inner, outer)
            if not self.opens(at + 1) and outer.bandwidth > inner.bandwidth:
                rates = f"{format_bandwidth(outer.bandwidth)}, than `{inner.name}`, {format_bandwidth(inner.bandwidth)}"
                yield f"level `{outer.name}` has more bandwidth a GPU, {rates}, which its bytes pass"
        for at, level in enumerate(self.root):
            inner = self.root[at - 1]
            if level.sharers and not (at and self.opens(at)):
                shared = "all GPUs below share the links of switches"
                reason = shared if at else "every GPU has a link of its own"
                yield f"level `{level.name}` has `sharers`, and {reason}: leave it out"
            elif level.sharers and inner.gpus and inner.gpus % level.sharers:
                domain = f"a `{inner.name}` of {inner.gpus} GPUs"
                yield f"`sharers` {level.sharers} of level `{level.name}` do not divide {domain}"


def _size_errors(inner: LevelSpec, outer: LevelSpec) -> Iterator[str]:
    """Yield an error message for each missing, misplaced or indivisible size of two neighbouring link levels."""
    if inner.gpus is None and inner.nodes is None:
        yield f"level `{inner.name}` has no size; only the last, which joins all, may leave it out"
    elif outer.gpus is not None and inner.gpus is None:
        yield f"level `{outer.name}` is inside the node and stands after `{inner.name}`: begin at the GPUs"
    else:
        for unit, size, part in (("GPUs", outer.gpus, inner.gpus), ("nodes", outer.nodes, inner.nodes)):
            if size and part and (size <= part or size % part):
                sizes = f"of {size} {unit} does not hold several whole levels `{inner.name}` of {part}"
                yield f"level `{outer.name}` {sizes}"


def _links_tag(value: Any) -> str:
    """Tag that tells a list of link levels from links given as `intra_node` and `inter_node`."""
    return "[levels]" if isinstance(value, list | tuple | LinkLevels) else "[links]"


_PlainLinks = Annotated[Links, Tag("[links]")]
AnyLinks = Annotated[_PlainLinks | Annotated[LinkLevels, Tag("[levels]")], Discriminator(_links_tag)]
"""Links as `intra_node` and `inter_node`, or as a list of levels."""


Precision = Literal["bf16", "fp16", "fp32", "tf32", "fp8", "fp4"]
NARROW: tuple[Precision, ...] = ("fp8", "fp4")
"""Precisions to which only the operands of a block's matrix products are cast. The rest of a step stays in 16
bits."""
FULL: tuple[Precision, ...] = ("fp32", "tf32")
"""Precisions in which every tensor has 32 bits. With TF32, tensor cores round operands of products to 19
bits."""


AttentionKernel = Literal["unfused", "fused-softmax", "flash1", "flash2", "flash3", "cudnn"]
"""Attention kernels by name. `flash…` and `cudnn` never store the s × s scores; `fused-softmax` reads and
writes them once, `unfused` several times."""


MIN_DEVICE_MEMORY = MIB
"""Minimum accepted device memory, bytes. A smaller value most likely lacks its unit."""
DeviceMemory = Annotated[Bytes, value_range(parse_bytes, "1 MiB", "1000 TB")]
Peak = Annotated[FlopRate, value_range(parse_flop_rate, "1 MFLOP/s", "100000 PFLOP/s")]
"""A rate in FLOP/s, within limits that catch a wrong unit."""
_PeakShare: Any = Field(ge=1e-3, le=1, allow_inf_nan=False)
"""Share of peak FLOP/s that a device reaches."""


class KernelShare(Spec):
    """Shares of peak FLOP/s that an attention kernel reaches, forward and backward, counting unmasked scores
    only."""

    forward: float = _PeakShare
    backward: float = _PeakShare


_DEFAULT_KERNEL_SHARE = KernelShare(forward=0.5, backward=0.42)


class GpuSpec(Spec):
    """One accelerator, or one CPU process of the `local` cluster. Rates are dense, without sparsity."""

    name: Name
    memory: DeviceMemory
    """Usable device memory in bytes, as the runtime reports it. It is less than the advertised size."""
    memory_bandwidth: Rate
    """Peak device-memory bandwidth, bytes/s."""
    peak: Annotated[dict[Precision, Peak], Field(min_length=1)]
    """Peak dense matrix rate by precision, FLOP/s. `fp32` excludes TF32, which is a separate precision."""
    sustained: dict[Precision, Annotated[float, _PeakShare]] = Field(default_factory=dict)
    """Precision → share of peak that the best-shaped large matrix product reaches at full clocks. Where the
    power that products draw is unknown it is the measured share; 1 where nobody measured. Efficiencies of
    profiles are relative to this rate."""
    rate_per_watt: dict[Precision, Peak] = Field(default_factory=dict)
    """Precision → FLOP/s per watt of the power limit, for products of random operands that fill all tile
    slots. Multiplying costs energy, and a GPU lowers its clocks to stay within its limit (He 2024). Empty:
    power is not known to limit the rate."""
    rated_watts: PositiveInt | None = None
    """Power limit, W, at which `rate_per_watt` was measured. Below it the GPU also lowers its voltage, so the
    rate falls only with the square root of the watts. None: the rate is proportional to the watts."""
    vector_rate: Peak | None = None
    """Peak rate of element-wise fp32 arithmetic, FLOP/s."""
    sm_count: PositiveInt = 1
    """Number of streaming multiprocessors, which compute one GEMM tile each at a time. 1 for a CPU."""
    l2_cache: Bytes | None = None
    """Size of the last-level cache, bytes."""
    library_workspace: Bytes = 8.125 * MIB
    """Bytes of workspace that the matrix library (cuBLAS) takes from the allocator for each thread that calls
    it (PyTorch's default for the GPU)."""
    host_bandwidth: Rate | None = None
    """Bandwidth of the link to host memory (PCIe, C2C), bytes/s, one direction."""
    tdp_watts: PositiveInt | None = None
    """Power limit of the GPU, W."""
    kind: Literal["cuda", "rocm", "cpu"] = "cuda"
    attention_kernels: dict[AttentionKernel, KernelShare] = Field(default_factory=dict)
    """Attention kernel → shares of peak that it reaches, from published benchmarks on this GPU."""
    attention_tokens: PositiveInt = 4096
    """Tokens per causal sequence in the benchmarks of `attention_kernels`."""
    prefers_cudnn: bool = False
    """Whether Transformer Engine uses cuDNN's attention kernel where FlashAttention is available too (it does
    on Hopper)."""
    reported_as: tuple[str, ...] = ()
    """Names that the driver gives this GPU."""
    source: str = ""
    """Datasheet that gives these values, and its date."""

    def power_rate(self, precision: Precision, watts: float | None = None) -> float:
        """FLOP/s of matrix products that a power limit of `watts` (by default `tdp_watts`) allows; infinite
        if power is not known to limit the rate.

        With rate r per watt, limit w and rated power w0: r * sqrt(w * max(w, w0)).
        """
        limit, rate = watts or self.tdp_watts, self.rate_per_watt.get(precision)
        if limit is None or rate is None:
            return math.inf
        return rate * math.sqrt(limit * max(limit, self.rated_watts or limit))

    def attention_share(self, kernel: AttentionKernel) -> KernelShare:
        """Shares of peak that an attention kernel reaches, published for this GPU or else typical values."""
        return self.attention_kernels.get(kernel, _DEFAULT_KERNEL_SHARE)


class DriveSpec(Spec):
    """Storage drives of one host, counted as one device (for example a RAID 0 of NVMe)."""

    capacity: Bytes
    """Capacity of all drives together, bytes."""
    read: Rate
    """Bandwidth of long sequential reads, bytes/s."""
    write: Rate
    """Bandwidth of long sequential writes, bytes/s."""


class ClusterSpec(CheckedSpec):
    """A homogeneous cluster of `nodes` × `gpus_per_node` GPUs of one type."""

    kind: Literal["cluster"] = "cluster"
    name: Name = "custom"
    gpu: GpuSpec
    """GPU of every node, as a catalogue name or as fields."""
    gpus_per_node: GpuCount
    nodes: GpuCount = 1
    links: AnyLinks
    """Links between GPUs, as `intra_node` and `inter_node` or as a list of levels."""
    rails: PositiveInt | None = None
    """Number of network adapters per node, which its GPUs share evenly. Default: one per GPU."""
    oversubscription: float = Field(default=1.0, ge=1.0, le=1000.0, allow_inf_nan=False)
    """Ratio of leaf to spine bandwidth. 2.0 means half the bandwidth for a group that leaves its leaf
    switch."""
    nodes_per_leaf: PositiveInt | None = None
    """Number of nodes under one leaf switch. Traffic between these nodes does not cross the spine."""
    graph: tuple[str, ...] = Field(default=(), max_length=MOST_LINES, exclude_if=lambda lines: not lines)
    """Individual links as text, one line per link or group of equal links, as `meshwright cluster
    --from-links` writes them. Groups that meet slower links than the level's usual ones get that share of
    `links`. Empty: all links of a level are alike."""
    buildings: BuildingsSpec | None = None
    """Buildings, filled with nodes in order. None: all nodes are in one building."""
    host_memory: Bytes | None = None
    """Memory of one host, bytes. None: unknown."""
    host_cores: PositiveInt | None = None
    """Number of CPU cores of one host."""
    host_memory_bandwidth: Rate | None = None
    """Bandwidth of one host's memory, all sockets together, bytes/s."""
    gpus_per_host_link: PositiveInt = 1
    """Number of GPUs that share one link (such as PCIe) to host memory."""
    drive: DriveSpec | None = None
    """Storage drives of one host. None: unknown, so plans store nothing on drives."""
    memory_reserve: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    """Share of device memory that plans may not use (context, fragmentation). None: derived from the
    stack."""
    gpu_watts: PositiveInt | None = None
    """Power limit of each GPU, watts. None: the board's default limit."""
    profile: str | None = None
    """Path or name of a measured hardware profile. Default: the catalogue's best match."""
    source: str = ""

    def contradictions(self) -> dict[str, object]:
        """Error messages about links that contradict the rest of the cluster, each mapped to itself. An empty
        text stands for no error."""
        links = self.links
        errors = self._level_errors(links) if isinstance(links, LinkLevels) else self._network_errors(links)
        graph_errors = self._graph_errors() if self.graph else ()
        return {sentence: sentence for sentence in ("; ".join(graph_errors), "; ".join(errors))}

    def _network_errors(self, links: Links) -> Iterator[str]:
        """Yield an error message for each contradiction between links, buildings and the rest of the cluster."""
        buildings, network = self.buildings, links.inter_node
        if network is None and self.nodes > 1:
            yield f"{self.nodes} nodes need `links.inter_node`"
        elif network is None and buildings is not None:
            yield "`buildings` need `links.inter_node`, the network of one building"
        elif network is not None and buildings is not None:
            if odd := self.building_problem(self.nodes):
                yield odd
            if buildings.nodes % (leaf := self.nodes_per_leaf or 1):
                yield f"`nodes_per_leaf` {leaf} does not divide a building of {buildings.nodes} nodes"
            outer, inner = buildings.link.bandwidth, network.bandwidth / self.oversubscription
            if outer > inner:
                inside = f"the network of a building, {format_bandwidth(inner)}"
                text = f"`buildings.link` has more bandwidth a GPU, {format_bandwidth(outer)}, than {inside}"
                yield f"{text}, which its bytes pass"

    def _graph_errors(self) -> Iterator[str]:
        """Yield an error message for each contradiction between the link graph and the rest of the cluster,
        and for lines that cannot be read."""
        links, problems = read_lines(self.graph)
        yield from map(str, first_few(problems))
        if self.buildings is not None:
            yield "`buildings` and `graph` do not go together: a graph has a level for the links between buildings"
        gpus = {name for link in links for name in link[:2] if device_kind(name) == "gpu"}
        nodes = len({node_of(name) for name in gpus})
        if not problems and (nodes, len(gpus)) != (self.nodes, self.num_gpus):
            size, stated = f"{counted(nodes, 'node')} and {counted(len(gpus), 'GPU')}", grouped(self.num_gpus)
            yield f"`graph` has {size}, `nodes` x `gpus_per_node` says {grouped(self.nodes)} and {stated}"

    def building_problem(self, nodes: int) -> str:
        """Error message if `nodes` nodes neither fill complete buildings nor fit into one; else empty. Else
        empty."""
        size = self.buildings.nodes if self.buildings else nodes
        count, extra_nodes = divmod(nodes, size)
        sizes = f"{grouped(count * size)} or {grouped((count + 1) * size)}"
        text = f"{grouped(nodes)} nodes are no whole number of buildings of {grouped(size)}; {sizes} would be"
        return text if count and extra_nodes else ""

    def _level_errors(self, links: LinkLevels) -> Iterator[str]:
        """Yield an error message for each contradiction between link levels and the rest of the cluster."""
        if self.buildings is not None:
            yield "`buildings` go with `intra_node` and `inter_node`; a list of levels has a level for them"
        for name in ("rails", "nodes_per_leaf", "oversubscription"):
            if getattr(self, name) not in (None, 1.0):
                yield f"`{name}` goes with `intra_node` and `inter_node`; levels have `sharers`, `nodes`, `bandwidth`"
        if self.nodes == 1:
            return
        if not links.network:
            yield f"{self.nodes} nodes need a level of `links` beyond `{links.root[-1].name}`"
        elif (last := links.root[-1]).nodes and last.nodes < self.nodes:
            yield f"level `{last.name}` joins {last.nodes} of {self.nodes} nodes; a last one without `nodes` joins all"
        for level in links.root:
            for field in ("gpus", "sharers"):
                count = getattr(level, field)
                if count is not None and self.gpus_per_node % count:
                    yield f"`{field}` {count} of level `{level.name}` do not divide a node of {self.gpus_per_node} GPUs"

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of the cluster, `nodes` × `gpus_per_node`."""
        return self.nodes * self.gpus_per_node


MAX_POOLS = 4
"""Maximum number of pools in a cluster. A pipeline may pass through four pools in 24 orders."""


class MixedCluster(CheckedSpec):
    """Pools of different GPUs that train one model together."""

    kind: Literal["cluster"] = "cluster"
    name: Name = "custom"
    pools: tuple[ClusterSpec, ...]
    """Pools: clusters of one GPU type, each with a unique `name` that layouts use (letters, digits and
    `._-`)."""
    between: LinkSpec | None = None
    """Link between GPUs of different pools, per GPU. Default: the slowest of the pools' `links.inter_node`."""
    source: str = ""

    def contradictions(self) -> dict[str, object]:
        """Error messages about pools that contradict one another, each mapped to a value that is true if the
        message applies."""
        names, count, cap = [pool.name for pool in self.pools], len(self.pools), f"{MAX_GPUS:,} are the most"
        repeated = min((name for name in names if names.count(name) > 1), default="")
        odd = [name for name in names if not re.fullmatch(POOL_NAME, name)]
        with_graph = [pool.name for pool in self.pools if pool.graph]
        unlinked = self.between is None and any(pool.links.inter_node is None for pool in self.pools)
        return {
            f"`pools` lists {count}; a cluster of several has 2 to {MAX_POOLS}": not 2 <= count <= MAX_POOLS,
            f"two pools are called `{repeated}`; give each a `name` of its own": repeated,
            f"`{''.join(odd[:1])}` is no name of a pool: letters, digits and `._-`, 50 at most": odd,
            f"pool `{''.join(with_graph[:1])}` has a `graph`; links of pools are levels, so leave it out": with_graph,
            f"{self.num_gpus:,} GPUs are more than there are; {cap}": self.num_gpus > MAX_GPUS,
            "not every pool has `links.inter_node`, so `between` must say how pools are linked": unlinked,
        }

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all pools together."""
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def link(self) -> LinkSpec:
        """Link between GPUs of different pools: `between` or, by default, a link with the lowest bandwidth
        and the highest latency of the pools' networks."""
        if self.between is not None:
            return self.between
        farthest = (pool.buildings.link if pool.buildings else pool.links.farthest for pool in self.pools)
        networks = [link for link in farthest if link is not None]
        narrow = min(networks, key=lambda link: link.bandwidth)
        return narrow.model_copy(update={"latency": max(link.latency for link in networks)})

    @property
    def common_limits(self) -> ClusterSpec:
        """Homogeneous cluster with the strictest limits of all pools, only for checking whether layouts are
        legal, never for costs.

        Its node size is the largest that divides the node sizes of all pools; its GPU is the one with the least memory.
        """
        per_node = math.gcd(*(pool.gpus_per_node for pool in self.pools))
        smallest = min(self.pools, key=lambda pool: pool.gpu.memory)
        links = Links(intra_node=smallest.links.intra_node, inter_node=self.link)
        return ClusterSpec(
            name=self.name,
            source=self.source,
            gpu=smallest.gpu,
            gpus_per_node=per_node,
            nodes=self.num_gpus // per_node,
            links=links,
            memory_reserve=smallest.memory_reserve,
        )


def _cluster_tag(value: Any) -> str:
    """Tag that tells a cluster of several pools from a cluster of one kind of GPU."""
    mixed = "pools" in value if isinstance(value, dict) else isinstance(value, MixedCluster)
    return "[pools]" if mixed else "[cluster]"


_OneCluster = Annotated[ClusterSpec, Tag("[cluster]")]
AnyCluster = Annotated[_OneCluster | Annotated[MixedCluster, Tag("[pools]")], Discriminator(_cluster_tag)]
"""A cluster of one GPU, or of several pools where it has the field `pools`."""


_Duration = Annotated[Seconds, value_range(parse_seconds, "1 ns", "1000 d")]
FailureInterval = Annotated[Seconds, value_range(parse_seconds, "1 s", "1000000000 h")]


class Maintenance(CheckedSpec):
    """Planned interruptions of a training job, with a checkpoint saved before each."""

    every: _Duration
    """Seconds from one planned interruption to the next."""
    takes: _Duration

    def contradictions(self) -> dict[str, object]:
        """One error message, mapped to whether an interruption takes at least as long as the time from one to
        the next."""
        return {"`takes` is not shorter than `every`: no time is left to train": self.takes >= self.every}


class OperationsSpec(Spec):
    """Failures, restarts, checkpoint storage, spare nodes and slow hosts of a cluster."""

    kind: Literal["operations"] = "operations"
    name: Name = "custom"
    mtbf: FailureInterval
    """Mean seconds of one GPU between failures that end the job; n GPUs fail n times as often."""
    detection: _Duration
    """Seconds from a failure until it is noticed."""
    restart: _Duration
    """Seconds from noticing a failure until the first step of the restarted job, without reading the
    checkpoint."""
    pause: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 0.0
    """Seconds for which a checkpoint stops training in addition to copying its bytes: planning,
    synchronisation."""
    storage_write: Rate
    """Bandwidth at which the whole job writes checkpoints, bytes/s."""
    storage_read: Rate | None = None
    """Bandwidth at which the whole job reads checkpoints, bytes/s. None: as `storage_write`."""
    host_copy: Rate | None = None
    """Bandwidth at which a GPU copies its share of a checkpoint to its host while training waits, bytes/s.
    None: the GPU's link to host memory."""
    asynchronous: bool = True
    """Whether training goes on while the host writes to storage."""
    spares: Annotated[int, Field(ge=0, le=10**6)] | None = None
    """Number of spare nodes. None: one is always available."""
    repair: _Duration = 86400.0
    """Seconds until a failed node is available again."""
    maintenance: Maintenance | None = None
    slow_hosts: Share = 0.0
    """Share of nodes that are permanently slow. They are kept or replaced, whichever ends the job sooner."""
    slowness: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0
    """Relative increase of step time while the job uses a slow node."""
    source: str = ""
