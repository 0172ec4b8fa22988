"""Specs of GPUs, links and clusters: the hardware as its datasheet has it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cost_models.base import GpuCount, Name, PositiveInt, Spec
from cost_models.units import (
    MIB,
    Bandwidth,
    Bytes,
    FlopRate,
    Seconds,
    parse_bandwidth,
    parse_bytes,
    parse_flop_rate,
    parse_seconds,
    within,
)

Precision = Literal["bf16", "fp16", "fp32", "fp8"]


AttentionKernel = Literal["unfused", "fused-softmax", "flash1", "flash2", "flash3", "cudnn"]
"""Attention kernels: `flash…` and `cudnn` never store the s × s scores; `fused-softmax` reads and writes them once,
`unfused` several times."""


LEAST_MEMORY = MIB
"""Least memory of a device that is accepted: with less somebody forgot a letter."""
DeviceMemory = Annotated[Bytes, within(parse_bytes, "1 MiB", "1000 TB")]
Rate = Annotated[Bandwidth, within(parse_bandwidth, "1 KB/s", "100000 TB/s")]
Latency = Annotated[Seconds, within(parse_seconds, "0.001 ns", "10 s")]
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
    peak: dict[Precision, Peak]
    """Peak dense matrix rate by precision, FLOP/s; fp32 is without TF32."""
    sustained: dict[Precision, Annotated[float, _Reached]] = Field(default_factory=dict)
    """Share of the peak that the best-shaped large product was measured to reach under the board's power limit; 1 where
    nobody measured. Profiles' shares are shares of this."""
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
    """Board power limit, W."""
    kind: Literal["cuda", "rocm", "cpu"] = "cuda"
    attention_kernels: dict[AttentionKernel, KernelShare] = Field(default_factory=dict)
    """Shares of peak that published benchmarks show for flash kernels on this GPU."""
    prefers_cudnn: bool = False
    """Whether Transformer Engine takes cuDNN's attention kernel where FlashAttention's runs too (it does on Hopper)."""
    reported_as: tuple[str, ...] = ()
    """Names that the driver gives this GPU."""
    source: str = ""
    """Datasheet and its date."""

    def attention_share(self, kernel: AttentionKernel) -> KernelShare:
        """Shares of peak of a kernel: those published for this GPU, or the usual ones where none are."""
        return self.attention_kernels.get(kernel, _USUAL_SHARE)


class LinkSpec(Spec):
    """One kind of link."""

    kind: Literal["nvlink", "nvswitch", "pcie", "infiniband", "roce", "ethernet", "xgmi", "shared-memory"]
    bandwidth: Rate
    """Bandwidth per GPU, bytes/s, one direction."""
    latency: Latency
    """Seconds until the first byte arrives, over one hop."""


class Links(Spec):
    """The links between GPUs."""

    intra_node: LinkSpec
    """Link between GPUs of one node."""
    inter_node: LinkSpec | None = None
    """Link between nodes, per GPU. Needed for more than one node."""


class ClusterSpec(Spec):
    """A homogeneous cluster: `nodes` × `gpus_per_node` of one GPU."""

    kind: Literal["cluster"] = "cluster"
    name: Name = "custom"
    gpu: GpuSpec
    """The GPU: a catalogue name or inline."""
    gpus_per_node: GpuCount
    nodes: GpuCount = 1
    links: Links
    rails: PositiveInt | None = None
    """Network adapters per node, which its GPUs share evenly. Default: one per GPU."""
    oversubscription: float = Field(default=1.0, ge=1.0, le=1000.0, allow_inf_nan=False)
    """Oversubscription of leaf to spine: 2.0 means half the bandwidth for a group that leaves its leaf switch."""
    nodes_per_leaf: PositiveInt | None = None
    """Nodes under one leaf switch; a group within it does not use the spine."""
    host_memory: Bytes | None = None
    """Memory of one host, bytes."""
    host_cores: PositiveInt | None = None
    """CPU cores of one host."""
    memory_reserve: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    """Share of device memory never given to the model (context, fragmentation); default from the stack."""
    profile: str | None = None
    """Path or name of a measured hardware profile; default: the catalogue's best match."""
    source: str = ""

    @model_validator(mode="after")
    def _nodes_reach_one_another(self) -> ClusterSpec:
        if self.nodes > 1 and self.links.inter_node is None:
            raise ValueError(f"{self.nodes} nodes need `links.inter_node`")
        return self

    @property
    def num_gpus(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node
