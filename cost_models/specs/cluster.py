"""Specs of GPUs, links and clusters: the hardware as its datasheet has it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cost_models.base import GpuCount, Name, PositiveInt, Spec
from cost_models.errors import first_of
from cost_models.specs.graph import MOST_LINES, device_kind, node_of, read_lines
from cost_models.specs.links import AnyLinks, BuildingsSpec, LinkLevels, Links, LinkSpec, Rate
from cost_models.units import (
    MIB,
    Bytes,
    FlopRate,
    counted,
    format_bandwidth,
    grouped,
    parse_bytes,
    parse_flop_rate,
    within,
)

Precision = Literal["bf16", "fp16", "fp32", "tf32", "fp8", "fp4"]
NARROW: tuple[Precision, ...] = ("fp8", "fp4")
"""Precisions to which the operands of a block's products are cast; everything else of a step stays in 16 bits."""
FULL: tuple[Precision, ...] = ("fp32", "tf32")
"""Precisions that keep everything in 32 bits; tensor cores round what they multiply to 19 bits (TF32)."""


AttentionKernel = Literal["unfused", "fused-softmax", "flash1", "flash2", "flash3", "cudnn"]
"""Attention kernels: `flash…` and `cudnn` never store the s × s scores; `fused-softmax` reads and writes them once,
`unfused` several times."""


LEAST_MEMORY = MIB
"""Least memory of a device that is accepted: with less somebody forgot a letter."""
DeviceMemory = Annotated[Bytes, within(parse_bytes, "1 MiB", "1000 TB")]
Peak = Annotated[FlopRate, within(parse_flop_rate, "1 MFLOP/s", "100000 PFLOP/s")]
"""A rate between the slowest that anybody would compute with and more than there will be for long."""
_Reached: Any = Field(ge=1e-3, le=1, allow_inf_nan=False)
"""Share of its peak that a device is known to reach."""


class KernelShare(Spec):
    """Shares of peak, forward and backward, that an attention kernel reaches on its unmasked work."""

    forward: float = _Reached
    backward: float = _Reached


_USUAL_SHARE = KernelShare(forward=0.5, backward=0.42)


class GpuSpec(Spec):
    """One accelerator, or one CPU process of the `local` cluster; rates are dense, without sparsity."""

    name: Name
    memory: DeviceMemory
    """Usable device memory, bytes: what the runtime reports, not the label."""
    memory_bandwidth: Rate
    """Peak device-memory bandwidth, bytes/s."""
    peak: Annotated[dict[Precision, Peak], Field(min_length=1)]
    """Peak dense matrix rate by precision, FLOP/s; fp32 is without TF32, which is a precision of its own."""
    sustained: dict[Precision, Annotated[float, _Reached]] = Field(default_factory=dict)
    """Share of the peak that the best-shaped large product reaches at the board's full clocks, or as measured where
    nobody knows what its products cost in power; 1 where nobody measured. Profiles' shares are shares of this."""
    rate_per_watt: dict[Precision, Peak] = Field(default_factory=dict)
    """FLOP/s of products that fill all tile slots for each watt of the power limit, with random operands: multiplying
    costs energy, and a GPU lowers its clocks until it may (He 2024). Empty: power is not known to limit it."""
    rated_watts: PositiveInt | None = None
    """Power limit, W, at which `rate_per_watt` was measured; with less the GPU also lowers its voltage, and the rate
    falls with the square root of its watts. None: in proportion."""
    vector_rate: Peak | None = None
    """Peak rate of element-wise fp32 arithmetic, FLOP/s."""
    sm_count: PositiveInt = 1
    """Streaming multiprocessors; GEMMs come in waves of as many tiles. 1 for a CPU."""
    l2_cache: Bytes | None = None
    """Last-level cache, bytes."""
    library_workspace: Bytes = 8.125 * MIB
    """Bytes that the matrix library takes from the allocator for each thread that calls it (PyTorch's default for the
    GPU)."""
    host_bandwidth: Rate | None = None
    """Bandwidth of the link to host memory (PCIe, C2C), bytes/s, one direction."""
    tdp_watts: PositiveInt | None = None
    """Power limit of the GPU, W."""
    kind: Literal["cuda", "rocm", "cpu"] = "cuda"
    attention_kernels: dict[AttentionKernel, KernelShare] = Field(default_factory=dict)
    """Shares of peak that published benchmarks show for flash kernels on this GPU."""
    attention_tokens: PositiveInt = 4096
    """Length of the causal sequences at which they were measured."""
    prefers_cudnn: bool = False
    """Whether Transformer Engine takes cuDNN's attention kernel where FlashAttention's runs too (it does on Hopper)."""
    reported_as: tuple[str, ...] = ()
    """Names that the driver gives this GPU."""
    source: str = ""
    """Datasheet and its date."""

    def power_rate(self, precision: Precision, watts: float | None = None) -> float:
        """FLOP/s of products that the power limit, or `watts` where a machine sets less, pays for; else infinite."""
        limit = watts or self.tdp_watts
        each = self.rate_per_watt.get(precision)
        if limit is None or each is None:
            return math.inf
        return each * math.sqrt(limit * max(limit, self.rated_watts or limit))

    def attention_share(self, kernel: AttentionKernel) -> KernelShare:
        """Shares of peak of a kernel: those published for this GPU, or the usual ones where none are."""
        return self.attention_kernels.get(kernel, _USUAL_SHARE)


class DriveSpec(Spec):
    """The drives of one host that hold what a run writes, all together (a RAID 0 of NVMe, say)."""

    capacity: Bytes
    """Bytes."""
    read: Rate
    """Bandwidth of long reads, bytes/s."""
    write: Rate
    """Bandwidth of long writes, bytes/s."""


class ClusterSpec(Spec):
    """A homogeneous cluster: `nodes` × `gpus_per_node` of one GPU."""

    kind: Literal["cluster"] = "cluster"
    name: Name = "custom"
    gpu: GpuSpec
    """The GPU: a catalogue name or inline."""
    gpus_per_node: GpuCount
    nodes: GpuCount = 1
    links: AnyLinks
    """`intra_node` and `inter_node`, or a list of levels."""
    rails: PositiveInt | None = None
    """Network adapters per node, which its GPUs share evenly. Default: one per GPU."""
    oversubscription: float = Field(default=1.0, ge=1.0, le=1000.0, allow_inf_nan=False)
    """Oversubscription of leaf to spine: 2.0 means half the bandwidth for a group that leaves its leaf switch."""
    nodes_per_leaf: PositiveInt | None = None
    """Nodes under one leaf switch; a group within it does not use the spine."""
    graph: tuple[str, ...] = Field(default=(), max_length=MOST_LINES, exclude_if=lambda lines: not lines)
    """Every link, a line for one or several alike, as `meshwright cluster --from-links` writes them: groups that meet
    odd ones get that share of `links`. Empty: all links of a level are alike."""
    buildings: BuildingsSpec | None = None
    """Buildings that the nodes stand in, in order; None: all in one."""
    host_memory: Bytes | None = None
    """Memory of one host, bytes."""
    host_cores: PositiveInt | None = None
    """CPU cores of one host."""
    host_memory_bandwidth: Rate | None = None
    """Bandwidth of one host's memory, all sockets together, bytes/s."""
    gpus_per_host_link: PositiveInt = 1
    """GPUs that share one link to host memory."""
    drive: DriveSpec | None = None
    """Drives of one host; None: nobody says that there are any."""
    memory_reserve: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    """Share of device memory never given to the model (context, fragmentation); default from the stack."""
    gpu_watts: PositiveInt | None = None
    """Power limit of each GPU, W, where this machine sets another than the board's own."""
    profile: str | None = None
    """Path or name of a measured hardware profile; default: the catalogue's best match."""
    source: str = ""

    @model_validator(mode="after")
    def _nodes_reach_one_another(self) -> ClusterSpec:
        if self.graph and (problems := list(self._unlike_graph())):
            raise ValueError("; ".join(problems))
        if isinstance(self.links, LinkLevels):
            if problems := list(self._unlike(self.links)):
                raise ValueError("; ".join(problems))
        elif self.nodes > 1 and self.links.inter_node is None:
            raise ValueError(f"{self.nodes} nodes need `links.inter_node`")
        elif problems := list(self._unlike_buildings(self.buildings, self.links)):
            raise ValueError("; ".join(problems))
        return self

    def _unlike_buildings(self, buildings: BuildingsSpec | None, links: Links) -> Iterator[str]:
        """Contradictions between buildings and the rest of the cluster."""
        if buildings is None:
            return
        if odd := self.odd_buildings(self.nodes):
            yield odd
        if links.inter_node is None:
            yield "`buildings` need `links.inter_node`, the network of one building"
            return
        if buildings.nodes % (self.nodes_per_leaf or 1):
            yield f"`nodes_per_leaf` {self.nodes_per_leaf} does not divide a building of {buildings.nodes} nodes"
        inside = links.inter_node.bandwidth / self.oversubscription
        if buildings.link.bandwidth > inside:
            yield (
                f"`buildings.link` has more bandwidth a GPU, {format_bandwidth(buildings.link.bandwidth)}, than the "
                f"network of a building, {format_bandwidth(inside)}, which its bytes pass"
            )

    def _unlike_graph(self) -> Iterator[str]:
        """What the graph of links contradicts in the rest of the cluster, or cannot be read."""
        links, problems = read_lines(self.graph)
        yield from map(str, first_of(problems))
        if self.buildings is not None:
            yield "`buildings` and `graph` do not go together: a graph has a level for the links between buildings"
        gpus = {name for link in links for name in link[:2] if device_kind(name) == "gpu"}
        nodes = len({node_of(name) for name in gpus})
        if not problems and (nodes, len(gpus)) != (self.nodes, self.num_gpus):
            yield (
                f"`graph` has {counted(nodes, 'node')} and {counted(len(gpus), 'GPU')}, `nodes` x `gpus_per_node` says "
                f"{grouped(self.nodes)} and {grouped(self.num_gpus)}"
            )

    def odd_buildings(self, nodes: int) -> str:
        """Why so many nodes do not fill whole buildings; empty where they do, or stand in one."""
        each = nodes if self.buildings is None else self.buildings.nodes
        whole, rest = divmod(nodes, each)
        if not whole or not rest:
            return ""
        return (
            f"{grouped(nodes)} nodes are no whole number of buildings of {grouped(each)}; {grouped(whole * each)} or "
            f"{grouped((whole + 1) * each)} would be"
        )

    def _unlike(self, links: LinkLevels) -> Iterator[str]:
        """Contradictions between levels of links and the rest of the cluster."""
        if self.buildings is not None:
            yield "`buildings` go with `intra_node` and `inter_node`; a list of levels has a level for them"
        for name in ("rails", "nodes_per_leaf", "oversubscription"):
            if getattr(self, name) not in (None, 1.0):
                yield f"`{name}` goes with `intra_node` and `inter_node`; levels have `sharers`, `nodes`, `bandwidth`"
        if self.nodes == 1:
            return
        if not links.network:
            yield f"{self.nodes} nodes need a level of `links` beyond `{links.root[-1].name}`"
        elif links.root[-1].nodes is not None and links.root[-1].nodes < self.nodes:
            last = links.root[-1]
            yield f"level `{last.name}` joins {last.nodes} of {self.nodes} nodes; a last one without `nodes` joins all"
        for level in links.root:
            for what in ("gpus", "sharers"):
                count = getattr(level, what)
                if count is not None and self.gpus_per_node % count:
                    yield f"`{what}` {count} of level `{level.name}` do not divide a node of {self.gpus_per_node} GPUs"

    @property
    def farthest_link(self) -> LinkSpec | None:
        """The link between the GPUs that are farthest apart; None on a single node."""
        return self.links.farthest if self.buildings is None else self.buildings.link

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node
