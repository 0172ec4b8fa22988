"""A hardware profile: the named constants of one device under one software stack, with their provenance."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cost_models.base import MAX_GPUS, GpuCount, Name, Overhead, PositiveInt, Share, Spec
from cost_models.specs.cluster import Peak, Rate

Efficiency = Field(ge=1e-6, le=1.5, allow_inf_nan=False)
"""Share of a rate: what a fit finds, from next to nothing to a datasheet that says too little."""


class CurvePoint(Spec):
    """One measured point: `size` (FLOPs or bytes) done in `seconds`."""

    size: float = Field(ge=1e-3, le=1e21, allow_inf_nan=False)
    seconds: float = Field(ge=1e-12, le=1e6, allow_inf_nan=False)


class CollectiveCurve(Spec):
    """Measured collective of one kind over a group: message bytes → seconds, interpolated in log-log."""

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]
    group_size: int = Field(ge=2, le=MAX_GPUS)
    nodes: GpuCount = 1
    """Nodes the group spanned; `p2p` between nodes spans 2."""
    points: tuple[CurvePoint, ...] = Field(min_length=2)
    """`size` is the full (unsharded) tensor in bytes."""


class GemmTile(Spec):
    """One output tile a matrix kernel may use."""

    rows: PositiveInt
    columns: PositiveInt
    efficiency: float = Efficiency
    """Rate relative to the best tile when all slots are full."""


ElementwiseOperator = Literal[
    "layernorm",
    "rmsnorm",
    "gelu",
    "silu",
    "relu",
    "squared-relu",
    "multiply",
    "add",
    "dropout",
    "rotary",
    "copy",
    "bias-gradient",
    "embedding",
    "cross-entropy",
]
"""Operators that are not matrix products, under the names the model spec uses where it has one."""


class OperatorCurve(Spec):
    """A measured element-wise operator: elements of its input (`size`) → seconds, interpolated in log-log.

    Where arithmetic rather than bytes sets the time (tanh or random numbers on a CPU) no bandwidth fits.
    """

    operator: ElementwiseOperator
    forward: tuple[CurvePoint, ...] = Field(min_length=2)
    backward: tuple[CurvePoint, ...] = ()
    """Empty where the backward pass launches nothing of its own."""


class AttentionCurve(Spec):
    """The measured causal attention core: sequence length (`size`) → seconds of one head of one sequence."""

    head_dim: PositiveInt
    forward: tuple[CurvePoint, ...] = Field(min_length=2)
    backward: tuple[CurvePoint, ...] = Field(min_length=2)


Factor = Field(gt=0, default=1.0, allow_inf_nan=False)


class Moved(Spec):
    """What runs moved the seconds of microbenchmarks by, as factors; 1: not at all."""

    compute: float = Factor
    """Operators: products, attention, element-wise."""
    host: float = Factor
    """What drives them, block by block."""
    action_host: float = Factor
    tensor_parallel_host: float = Factor
    sequence_parallel_host: float = Factor
    sharded_host: float = Factor
    step: float = Factor
    """What a step takes besides."""
    optimizer: float = Factor
    collectives: float = Factor


class HardwareProfile(Spec):
    """Constants the datasheet does not give. Datasheet-tier profiles hold documented defaults."""

    kind: Literal["profile"] = "profile"
    name: Name
    tier: Literal["datasheet", "profile", "measured"]
    gpu: Name
    also_for: tuple[Name, ...] = ()
    """GPUs of the same die, whose shares of peak are taken to be the same."""
    stack: Name
    gemm_efficiency: float = Efficiency
    """Rate of large, well-shaped matrix products in training, as a share of what the GPU sustains alone."""
    fp8_gemm_efficiency: Annotated[float, Efficiency] | None = None
    """The same for products in fp8; None: `gemm_efficiency`."""
    gemm_k_half: float = Field(ge=0, le=1e6, allow_inf_nan=False, default=0.0)
    """Inner dimension at which half of the pipeline-fill loss remains."""
    gemm_operand_bandwidth: Rate | None = None
    """Rate at which operands and result of a product come and go in addition to its arithmetic; None: behind it."""
    gemm_tiles: tuple[GemmTile, ...] = ()
    """Tile shapes the library chooses from; needed where the GPU has more than one multiprocessor."""
    attention_forward_efficiency: float = Efficiency
    """Rate of the flash attention kernel forward, as a share of what was published for it on the GPU."""
    attention_backward_efficiency: float = Efficiency
    """The same, backward."""
    memory_efficiency: float = Efficiency
    """Share of memory bandwidth that element-wise kernels reach."""
    kernel_seconds: Overhead
    """Least time of any kernel, launch included."""
    host_layer_seconds: Overhead = 0.0
    """Host time to launch one block's forward; steps cannot run faster than their launches."""
    tensor_parallel_host_seconds: Overhead = 0.0
    """Extra host time per block and pass when tensor parallelism goes through DTensor."""
    sequence_parallel_host_seconds: Overhead = 0.0
    """Host time per block and pass that sequence parallelism adds to that."""
    sharded_host_seconds: Overhead = 0.0
    """Extra host time per block and pass when PyTorch's `fully_shard` gathers its parameters (ZeRO-2 and 3)."""
    action_host_seconds: Overhead = 0.0
    """Host time of one action of a pipeline schedule beyond its blocks."""
    link_efficiency: float = Efficiency
    """Share of the intra-node bandwidth that large collectives reach."""
    network_efficiency: float = Efficiency
    """Share of the inter-node bandwidth that large collectives reach."""
    collective_seconds: Overhead = 0.0
    """Start-up of one collective beyond link latency."""
    optimizer_efficiency: float = Efficiency
    """Share of memory bandwidth the optimizer step reaches."""
    step_seconds: Overhead = 0.0
    """Fixed host time of a step: data, logging, loss."""
    jitter_per_doubling: Share = 0.0
    """Relative slowdown for each doubling of the number of nodes: stragglers, network noise."""
    contention: float = Field(ge=0, default=0.0, allow_inf_nan=False)
    """Relative slowdown of a CPU's processes by what else ran on their cores, as runs met it."""
    moved: Moved | None = None
    """How far runs moved the constants from what was measured apart; None: they are as they were measured."""
    collectives: tuple[CollectiveCurve, ...] = ()
    """Measured collectives; where one matches the group it replaces the formula."""
    operators: tuple[OperatorCurve, ...] = ()
    """Measured element-wise operators; where one is measured it replaces bytes / bandwidth."""
    attention: tuple[AttentionCurve, ...] = ()
    """Measured attention cores; where there are any they replace the two efficiencies."""
    measured_peak: Peak | None = None
    """Best matrix rate seen on one device: stands in for a datasheet peak where there is none (a CPU)."""
    measured_bandwidth: Rate | None = None
    """Copy rate from and to memory seen on one device, read + write, all devices at once."""
    median_error: float | None = Field(ge=0, allow_inf_nan=False, default=None)
    """Median relative error of step time shown on `validated_runs` runs."""
    validated_runs: int = Field(ge=0, le=10**9, default=0)
    unseen_error: float | None = Field(ge=0, allow_inf_nan=False, default=None)
    """Median relative error of step time on sources left out of every fit; None where nobody cross-validated."""
    source: str = ""
    """How the constants came to be: measured here, or fitted with how many rows."""
