"""Hardware profiles: constants of one GPU under one software stack, and their provenance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field

from cost_models.arrays import Array
from cost_models.base import (
    MAX_GPUS,
    CheckedSpec,
    Efficiency,
    GpuCount,
    Name,
    Overhead,
    PositiveInt,
    Share,
    Spec,
)
from cost_models.specs.cluster import AttentionKernel, Peak, Rate
from cost_models.specs.recommender.constants import TableRates
from cost_models.specs.transformer import Norm


class CurvePoint(Spec):
    """One measured point of a curve of seconds against size (FLOPs, bytes, elements or tokens)."""

    size: float = Field(ge=1e-3, le=1e21, allow_inf_nan=False)
    seconds: float = Field(ge=1e-12, le=1e6, allow_inf_nan=False)


class CollectiveCurve(Spec):
    """Measured seconds of a collective operation of a group, by message bytes, interpolated in log-log."""

    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "p2p"]
    group_size: int = Field(ge=2, le=MAX_GPUS)
    nodes: GpuCount = 1
    """Number of nodes that the measured group spanned. 2 for `p2p` between nodes."""
    behind_compute: bool = False
    """Whether the collective was timed while compute ran, as in a step. False: timed one after another on an
    idle device."""
    points: tuple[CurvePoint, ...] = Field(min_length=2)
    """Measured points, whose `size` is the full (unsharded) tensor in bytes."""


class GemmTile(Spec):
    """One shape of a GEMM kernel's output tile, in elements, with its relative efficiency."""

    rows: PositiveInt
    columns: PositiveInt
    efficiency: float = Efficiency
    """Rate relative to the best tile shape's, when every multiprocessor has a tile."""


TimedActivation = Literal["gelu", "silu", "relu", "squared-relu"]
PlainOperator = Literal["multiply", "add", "dropout", "rotary", "copy", "bias-gradient", "embedding"]
ElementwiseOperator = Literal[Norm, TimedActivation, PlainOperator, "cross-entropy"]
"""Element-wise operators, named as in the model spec where the name exists there."""


class OperatorCurve(Spec):
    """Measured seconds of an element-wise operator by elements of its input (`size`), interpolated in log-log.

    Where arithmetic rather than bytes sets the time (tanh or random numbers on a CPU) no bandwidth fits.
    """

    operator: ElementwiseOperator
    forward: tuple[CurvePoint, ...] = Field(min_length=2)
    backward: tuple[CurvePoint, ...] = ()
    """Measured points of the backward pass. Empty if the backward pass launches no separate kernel."""


class AttentionCurve(Spec):
    """Measured seconds of a causal attention core, for one head of one sequence, by sequence length (`size`)."""

    head_dim: PositiveInt
    forward: tuple[CurvePoint, ...] = Field(min_length=2)
    backward: tuple[CurvePoint, ...] = Field(min_length=2)

    def faster(self, factor: float) -> Self:
        """A copy of the curve with all seconds divided by `factor`."""

        def scaled(points: tuple[CurvePoint, ...]) -> tuple[CurvePoint, ...]:
            """Curve points with seconds divided by `factor`."""
            return tuple(point.model_copy(update={"seconds": point.seconds / factor}) for point in points)

        return self.model_copy(update={"forward": scaled(self.forward), "backward": scaled(self.backward)})


def curve_seconds(points: Sequence[CurvePoint], size: Array) -> Array:
    """Seconds on a measured curve at each `size` (any shape); 0 without points or for size 0.

    Between points the curve is straight in log-log. Below the smallest size it keeps that point's seconds
    (start-up); above the largest it keeps that point's rate (seconds grow with size).
    """
    sizes = np.asarray(size, dtype=np.float64)
    if not points:
        return np.zeros(sizes.shape)
    ordered = sorted(points, key=lambda point: point.size)
    known_sizes = np.array([point.size for point in ordered])
    known_seconds = np.array([point.seconds for point in ordered])
    positive = np.maximum(sizes, np.finfo(np.float64).tiny)
    seconds = np.exp(np.interp(np.log(positive), np.log(known_sizes), np.log(known_seconds)))
    return np.where(sizes > 0, seconds * np.maximum(positive / known_sizes[-1], 1.0), 0.0)


def attention_head_seconds(curves: Sequence[AttentionCurve], sequence: Array, head_dim: int) -> Array:
    """Seconds of attention for one head of one sequence, forward and backward, at each sequence length, (2,
    ...).

    Sequence lengths outside the measured ones scale with their square. Between measured head widths seconds
    are interpolated linearly; outside them they scale with the width.
    """
    ordered = sorted(curves, key=lambda curve: curve.head_dim)
    lengths = np.asarray(sequence, dtype=np.float64)
    passes = [curve.forward for curve in ordered], [curve.backward for curve in ordered]
    widths = np.array([curve.head_dim for curve in ordered], dtype=np.float64)
    inside = float(np.clip(head_dim, widths[0], widths[-1]))
    weights = np.array([np.interp(inside, widths, row) for row in np.eye(len(widths))])
    seconds = [np.stack([_seconds_at_lengths(points, lengths) for points in one]) for one in passes]
    return np.stack([head_dim / inside * np.tensordot(weights, one, axes=1) for one in seconds])


def _seconds_at_lengths(points: Sequence[CurvePoint], lengths: Array) -> Array:
    """Seconds at each sequence length, interpolated between measured points and scaled with the length
    squared outside them."""
    sizes = [point.size for point in points]
    inside = np.clip(lengths, min(sizes), max(sizes))
    return curve_seconds(points, inside) * (lengths / inside) ** 2


_FittedFactor = Field(gt=0, default=1.0, allow_inf_nan=False)


class FittedFactors(Spec):
    """Factors between hardware constants fitted to timed runs and constants measured by microbenchmarks. 1
    means equal."""

    compute: float = _FittedFactor
    """Factor on device seconds of operators: GEMMs, attention, element-wise."""
    host: float = _FittedFactor
    """Factor on the host seconds of launching a block."""
    action_host: float = _FittedFactor
    tensor_parallel_host: float = _FittedFactor
    sequence_parallel_host: float = _FittedFactor
    sharded_host: float = _FittedFactor
    step: float = _FittedFactor
    """Factor on the fixed host seconds of a step."""
    optimizer: float = _FittedFactor
    collectives: float = _FittedFactor


class TimedRuns(Spec):
    """Summary of the timed runs of one source, on one GPU and stack, to which a hardware profile was fitted."""

    source: str
    gpu: Name
    stack: Name
    runs: int = Field(ge=1, le=10**9)
    median_error: float = Field(ge=0, allow_inf_nan=False)
    """Median relative error of the profile's predicted step times for these runs."""
    fewest_gpus: GpuCount
    most_gpus: GpuCount
    axes: dict[str, str] = Field(default_factory=dict)
    """Layout axis → values that the runs cover, separated by spaces, such as "1 2 8". Axes that no run sets
    are left out."""

    def values_of(self, axis: str) -> tuple[str, ...]:
        """Values of a layout axis (such as "tp") in the timed runs; empty if no run sets the axis."""
        return tuple(self.axes.get(axis, "").split())


class Scenarios(CheckedSpec):
    """Sets of hardware constants that are plausible for a cluster without timed runs, given the timed runs of
    other clusters.

    Their logarithms have mean zero and the covariance by which constants differ between sources.
    """

    factors: dict[str, str]
    """Name of a hardware constant → its factor in each scenario, separated by spaces, such as "0.912
    1.031"."""
    unexplained: float = Field(ge=0, allow_inf_nan=False)
    """Standard deviation of the logarithm of a step time that no constant explains."""
    faster: float = Field(ge=0, le=100, default=1.0, allow_inf_nan=False)
    """Factor on `unexplained` for steps that are faster than predicted, from sources left out of every
    fit."""
    slower: float = Field(ge=0, le=100, default=1.0, allow_inf_nan=False)
    """Factor on `unexplained` for steps that are slower than predicted. A cluster has many ways to be slower
    than its model, and few to be faster."""

    @property
    def by_constant(self) -> dict[str, tuple[float, ...]]:
        """Name of each hardware constant → factor on the constant in each scenario."""
        return {name: tuple(map(float, words.split())) for name, words in self.factors.items()}

    @property
    def count(self) -> int:
        """Number of scenarios."""
        return max(len(factors) for factors in self.by_constant.values())

    def contradictions(self) -> dict[str, object]:
        """Error messages about the factors of scenarios, each mapped to a value that is true if the message
        applies."""
        strange = [name for name in self.factors if name not in HardwareProfile.model_fields]
        unusable = [name for name, words in self.factors.items() if not _are_positive(words)]
        counts = {len(words.split()) for words in self.factors.values()}
        return {
            "`factors` names no constant; leave out `scenarios`": not self.factors,
            f"`{''.join(strange[:1])}` is no constant of a profile": strange,
            f"`{''.join(unusable[:1])}` needs a factor above zero for each scenario": unusable,
            "every constant needs a factor for each scenario": len(counts) > 1,
        }


def _are_positive(words: str) -> bool:
    """Whether a text consists of finite numbers above zero, at least one."""
    try:
        return all(0 < float(word) < math.inf for word in words.split()) and bool(words.split())
    except ValueError:
        return False


class HostUpdate(Spec):
    """Measured seconds per parameter of an optimizer update by one rank's host threads. All ranks of the host
    update at the same time, with `threads` threads each."""

    threads: PositiveInt
    seconds: float = Field(gt=0, le=1e-3, allow_inf_nan=False)


class HostCopies(Spec):
    """Measured bytes/s of copies between host memory and each of `ranks` devices that copy at the same
    time."""

    ranks: GpuCount
    down: Rate
    up: Rate
    both: Rate
    """Bytes/s in each direction while both are busy. A CPU copies one way after the other."""


class HostRates(Spec):
    """Measured update times and copy rates of a host that holds offloaded states or weights of blocks."""

    updates: tuple[HostUpdate, ...] = Field(min_length=1)
    copies: tuple[HostCopies, ...] = Field(min_length=1)
    """Copy rates, fewest ranks first: from pinned memory on a GPU's host, within memory on a CPU."""


class HardwareProfile(Spec):
    """Constants of one GPU under one stack that a datasheet does not give. Profiles of the datasheet tier
    hold documented defaults."""

    kind: Literal["profile"] = "profile"
    name: Name
    tier: Literal["datasheet", "profile", "measured"]
    gpu: Name
    also_for: tuple[Name, ...] = ()
    """Other GPUs with the same die, to which the shares of peak apply too."""
    borrowed_from: Name | None = None
    """Another GPU from which the constants are taken, each scaled by the ratio of both GPUs' published
    results. None: measured or fitted on this GPU."""
    stack: Name
    gemm_efficiency: float = Efficiency
    """Rate of large, well-shaped GEMMs in training, as a share of the rate that the GPU sustains
    (`GpuSpec.sustained`)."""
    fp8_gemm_efficiency: Annotated[float, Efficiency] | None = None
    """Rate of large fp8 GEMMs, as a share of the rate that the GPU sustains. None: `gemm_efficiency`."""
    gemm_settled: Annotated[float, Efficiency] | None = None
    """Rate of a large matrix product after seconds of running, as a share of its rate in short bursts
    (measured). `gemm_efficiency` is then a rate in bursts. None: efficiencies are those of training
    already."""
    gemm_k_half: float = Field(ge=0, le=1e6, allow_inf_nan=False, default=0.0)
    """Inner dimension k at which a GEMM reaches half of its full rate. The rate grows as k / (k +
    gemm_k_half)."""
    gemm_operand_bandwidth: Rate | None = None
    """Bandwidth, bytes/s, of moving a GEMM's operands and result, if that time adds to its arithmetic. None:
    it overlaps."""
    gemm_tiles: tuple[GemmTile, ...] = ()
    """Tile shapes that the matrix library chooses from. Needed if the GPU has more than one
    multiprocessor."""
    attention_kernel: AttentionKernel | None = None
    """Attention kernel that torch was measured to use on this machine. None: the stack's."""
    attention_forward_efficiency: float = Efficiency
    """Forward rate of the attention kernel, as a share of its published rate on the GPU."""
    attention_backward_efficiency: float = Efficiency
    """Backward rate of the attention kernel, as a share of its published rate on the GPU."""
    memory_efficiency: float = Efficiency
    """Share of memory bandwidth that element-wise kernels reach."""
    kernel_seconds: Overhead
    """Minimum seconds of any kernel, including its launch."""
    host_layer_seconds: Overhead = 0.0
    """Host seconds to launch a block's forward pass. Steps cannot run faster than their launches."""
    tensor_parallel_host_seconds: Overhead = 0.0
    """Extra host seconds per block and pass where tensor parallelism goes through DTensor."""
    sequence_parallel_host_seconds: Overhead = 0.0
    """Extra host seconds per block and pass that sequence parallelism adds to tensor parallelism."""
    sharded_host_seconds: Overhead = 0.0
    """Extra host seconds per block and pass where PyTorch's `fully_shard` gathers its parameters (ZeRO-2 and 3)."""
    action_host_seconds: Overhead = 0.0
    """Host seconds that one pipeline action (a pass of one microbatch through a stage) takes in addition to
    its blocks' host seconds."""
    link_efficiency: float = Efficiency
    """Share of the intra-node bandwidth that large collectives reach."""
    network_efficiency: float = Efficiency
    """Share of the inter-node bandwidth that large collectives reach."""
    collective_seconds: Overhead = 0.0
    """Start-up seconds of a collective beyond link latency."""
    overlap_slowdown: Share = 0.0
    """Slowdown of overlapped work, as a share of the time in which compute and communication overlap. Both
    end later by this share, as collectives take multiprocessors, memory bandwidth and power from compute."""
    optimizer_efficiency: float = Efficiency
    """Share of memory bandwidth that the optimizer step reaches."""
    host_overlap: Share = 0.47
    """Share of forward and backward passes, without recomputation, that hides host updates and copies of
    offloaded blocks. Default: fitted as one constant to 17 runs of STRONGHOLD's artifact
    (strongh2/sc22-ae)."""
    host_update_seconds: float | None = Field(default=None, ge=0.0, le=1e-3, allow_inf_nan=False)
    """Seconds per parameter of an optimizer update by an entire host. None: from the bandwidth of host
    memory. On a CPU the host is one rank."""
    host_call_seconds: Overhead = 0.0
    """Fixed host seconds per update of a block, which the framework spends before its kernel starts."""
    host_rates: HostRates | None = None
    """Measured update times and copy rates of the host. None: copies are as fast as the link to host
    memory."""
    step_seconds: Overhead = 0.0
    """Fixed host seconds of a step, such as data, logging and loss."""
    jitter_per_doubling: Share = 0.0
    """Relative slowdown for each doubling of the number of nodes, by stragglers and network noise."""
    contention: float = Field(ge=0, default=0.0, allow_inf_nan=False)
    """Relative slowdown of CPU processes by other work on their cores during the runs."""
    moved: FittedFactors | None = None
    """Factors between constants fitted to runs and constants of microbenchmarks. None: constants are as
    measured."""
    collectives: tuple[CollectiveCurve, ...] = ()
    """Measured collectives. A curve that matches a group replaces the formula."""
    operators: tuple[OperatorCurve, ...] = ()
    """Measured element-wise operators. A curve replaces bytes / bandwidth for its operator."""
    attention: tuple[AttentionCurve, ...] = ()
    """Measured attention cores. If there are any, they replace the two attention efficiencies."""
    tables: TableRates | None = None
    """Measured lookups and updates of embedding rows. If there are any, they replace the efficiencies of the
    embedding profile."""
    measured_peak: Peak | None = None
    """Best matrix rate measured on one device, FLOP/s. It replaces the peak where there is no datasheet (a
    CPU)."""
    measured_bandwidth: Rate | None = None
    """Measured memory copy rate of one device, read + write, bytes/s, with all devices copying at once."""
    median_error: float | None = Field(ge=0, allow_inf_nan=False, default=None)
    """Median relative error of step time on `validated_runs` runs. None where none were compared."""
    validated_runs: int = Field(ge=0, le=10**9, default=0)
    unseen_error: float | None = Field(ge=0, allow_inf_nan=False, default=None)
    """Median relative error of step time on sources left out of every fit. None without cross-validation."""
    pair_error: float | None = Field(ge=0, allow_inf_nan=False, default=None)
    """Median relative error of the predicted ratio of two layouts' step times, for layouts that differ on one
    axis. It comes from sweeps in the runs, and is √n times as much for n axes. None where too few pairs were
    timed."""
    scenarios: Scenarios | None = None
    """Alternative sets of constants that are consistent with the timed runs. None: unknown."""
    timed: tuple[TimedRuns, ...] = ()
    """Timed runs to which the profile was fitted. Empty: unknown."""
    source: str = ""
    """Origin of the constants, as measured on this machine or fitted to a number of rows."""
