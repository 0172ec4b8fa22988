"""The fit recovers the constants a synthetic machine was built from, through noise and outliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cost_models.defaults import measured_cluster
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.measured.calibration.microbenchmarks import (
    OPTIMIZER_BYTES,
    Kind,
    Measurement,
    fit_microbenchmarks,
    quietest,
    relative_least_squares,
)
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile, attention_head_seconds, curve_seconds

PEAK, START_UP = 1e11, 4e-6
EFFICIENCY, OPERANDS, BANDWIDTH, OPTIMIZER_EFFICIENCY = 0.85, 1.5e10, 2e10, 0.6
HOST, SPLIT, ENDS, UPDATE, ACTION = 2e-4, 3e-3, 7e-4, 8e-4, 6e-4

Disturb = Callable[[float], float]


def quiet(seconds: float) -> float:
    return seconds


def noisy(seed: int, outliers: float) -> Disturb:
    """2 % of noise, and a share of repetitions that a neighbour made three times as slow."""
    generator = np.random.default_rng(seed)

    def disturb(seconds: float) -> float:
        slow = 3.0 if generator.random() < outliers else 1.0
        return seconds * slow * float(np.exp(0.02 * generator.standard_normal()))

    return disturb


def timed(
    kind: Kind, name: str, size: float, seconds: float, shape: tuple[int, ...] = (), *, fastest: float = 1.0
) -> Measurement:
    """A measurement whose fastest repetition took so much of the typical one's seconds."""
    return Measurement(
        kind=kind, name=name, shape=shape, size=size, seconds=seconds, quiet_seconds=fastest * seconds
    )


def machine(disturb: Disturb) -> list[Measurement]:
    """What microbenchmarks would read on a CPU with the constants above."""
    rows = []

    def add(kind: Kind, name: str, size: float, seconds: float, shape: tuple[int, ...] = ()) -> None:
        rows.append(timed(kind, name, size, disturb(seconds), shape, fastest=0.9))

    # One copy and one product at exactly the peak, so that the measured peaks are known.
    rows.append(timed("memory", "copy", 2.0**28, 2.0**28 / BANDWIDTH))
    rows.append(timed("matrix", "forward.fp32", PEAK, 1.0, (4096, 4096, 4096)))
    for m in (64, 128, 256, 512, 1024):
        for n, k in ((64, 16), (192, 64), (64, 256), (256, 1024), (1024, 256), (512, 512)):
            flops = 2.0 * m * n * k
            ideal = flops / PEAK / EFFICIENCY + 4.0 * (m * k + k * n + m * n) / OPERANDS
            add("matrix", "forward.fp32", flops, START_UP + ideal, (m, n, k))
    for head_dim in (32, 64):
        for sequence in (64, 128, 256):
            flops = 2.0 * sequence**2 * head_dim
            add("attention", "forward", flops, flops / (0.3 * PEAK), (sequence, head_dim))
            add("attention", "backward", 2.5 * flops, 2.5 * flops / (0.4 * PEAK), (sequence, head_dim))
    for elements in (2**12, 2**16, 2**20):
        for operator, tensors in (("add", 3), ("multiply", 3), ("copy", 2), ("layernorm", 2), ("gelu", 2)):
            seconds = START_UP + 4.0 * tensors * elements / (0.9 * BANDWIDTH)
            add("operator", operator, elements, seconds)
            if operator in ("layernorm", "gelu"):
                add("operator", f"{operator}.backward", elements, 2 * seconds)
    for tensors, parameters in ((32, 2**15), (4, 2**20), (4, 2**22), (8, 2**21)):
        moved = OPTIMIZER_BYTES * parameters / (OPTIMIZER_EFFICIENCY * BANDWIDTH)
        add("optimizer", "adamw", parameters, tensors * 2e-5 + moved, (tensors,))
    kinds = {"": 0.0, ".tensor-parallel": SPLIT, ".sequence-parallel": 2 * SPLIT, ".sharded": 3 * SPLIT}
    for kind, longer in kinds.items():
        for blocks in (2, 3, 4, 6):
            add("host", f"block{kind}", blocks, ENDS + 2 * blocks * (HOST + 5e-5 + longer), (16, 32, 2))
    add("host", "block.pipelined", 2, 2 * ACTION + 2 * 1.5 * (HOST + 5e-5), (16, 32, 2))
    add("host", "update", 2, UPDATE, (16, 32, 2))
    for size in (2**10, 2**16, 2**22):
        add("collective", "p2p", size, 1e-4 + size / 2e9, (2,))
        add("collective", "all_reduce", size, 3e-4 + size / 1e9, (2,))
    return rows


def fitted(
    rows: list[Measurement],
    cluster: ClusterSpec | None = None,
    base: str = "datasheet-cpu",
    precision: str = "fp32",
) -> HardwareProfile:
    cluster, start = cluster or catalog.local_cluster(2), catalog.load_profile(base)
    return fit_microbenchmarks(rows, cluster, start, name="planted", precision=precision, source="planted")


def test_recovers_planted_constants_exactly_without_noise() -> None:
    profile = fitted(machine(quiet))
    assert profile.gemm_efficiency == pytest.approx(EFFICIENCY, rel=0.01)
    assert profile.gemm_operand_bandwidth == pytest.approx(OPERANDS, rel=0.02)
    assert profile.optimizer_efficiency == pytest.approx(OPTIMIZER_EFFICIENCY, rel=1e-3)
    assert profile.attention_forward_efficiency == pytest.approx(0.3 / 0.5, rel=1e-3)  # of what is usual
    assert profile.attention_backward_efficiency == pytest.approx(0.4 / 0.42, rel=1e-3)
    assert profile.memory_efficiency == pytest.approx(0.9, rel=0.05)
    assert profile.tensor_parallel_host_seconds == pytest.approx(SPLIT, rel=1e-3)
    assert profile.sequence_parallel_host_seconds == pytest.approx(SPLIT, rel=1e-3)
    assert profile.sharded_host_seconds == pytest.approx(3 * SPLIT, rel=1e-3)
    assert profile.action_host_seconds == pytest.approx(ACTION, rel=1e-3)
    assert profile.step_seconds == pytest.approx(UPDATE, rel=1e-3)
    assert 0 < profile.host_layer_seconds < HOST + 5e-5  # operators account for something, not for everything
    assert profile.tier == "measured"


def shares(profile: HardwareProfile) -> dict[str, float]:
    """Everything that is a share of something."""
    return {name: value for name, value in profile if name.endswith("efficiency") and value is not None}


@pytest.mark.parametrize("seed", range(3))
def test_no_share_exceeds_what_it_is_of(seed: int) -> None:
    """Neither on a machine whose caches are faster than its memory, nor where noise made the peak look low."""
    rows = machine(noisy(seed, outliers=0.3))
    quick = [
        replace(row, seconds=row.seconds / 4) if row.kind in ("operator", "optimizer") else row
        for row in rows
    ]
    slow_peak = [row for row in rows if row.size != PEAK]
    for found in (fitted(quick), fitted(slow_peak)):
        assert max(shares(found).values()) <= 1.0
    assert fitted(slow_peak).gemm_efficiency > 0.8


def test_updates_that_only_start_are_no_faster_than_memory() -> None:
    """Where seconds do not grow with bytes the fit of a rate is endless."""
    rows = [replace(row, seconds=1e-3) if row.kind == "optimizer" else row for row in machine(quiet)]
    profile = fitted(rows)
    assert profile.measured_bandwidth < 1e13
    assert profile.optimizer_efficiency == pytest.approx(1.0)


def test_the_peak_is_the_fastest_product_even_if_no_model_runs_it() -> None:
    """Products on operands that stay in the cache set the peak and take no part in the fit of the others."""
    rows = machine(quiet)
    flops = 2.0 * 512**3
    repeated = timed("matrix", "repeated.fp32", flops, 1.0, (512,) * 3, fastest=flops / (1.25 * PEAK))
    profile = fitted([*rows, repeated])
    assert profile.measured_peak == pytest.approx(1.25 * PEAK, rel=1e-3)
    assert profile.gemm_efficiency == pytest.approx(EFFICIENCY / 1.25, rel=0.01)


def test_of_rounds_the_fastest_quarter_counts() -> None:
    row = timed("memory", "copy", 1, 1)
    rounds = [
        [replace(row, seconds=s, quiet_seconds=s / 2)] for s in (8.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0, 7.0)
    ]
    assert quietest(rounds) == [replace(row, seconds=2.5, quiet_seconds=1.0)]
    assert quietest(rounds[:1]) == rounds[0]


@pytest.mark.parametrize("seed", range(5))
def test_outliers_do_not_move_the_constants(seed: int) -> None:
    profile = fitted(machine(noisy(seed, outliers=0.08)))
    assert profile.gemm_efficiency == pytest.approx(EFFICIENCY, rel=0.05)
    assert profile.gemm_operand_bandwidth == pytest.approx(OPERANDS, rel=0.15)


@pytest.mark.parametrize("slower", [1.0, 100.0])
def test_host_time_of_a_gpu_is_what_launching_takes(slower: float) -> None:
    """Kernels run beside the host, so it says nothing of it how long they take."""
    rows = [
        replace(row, seconds=slower * row.seconds) if row.kind == "operator" else row
        for row in machine(quiet)
    ]
    rows = [replace(row, name="forward.bf16") if row.kind == "matrix" else row for row in rows]
    fit = fitted(rows, resolve_cluster("dgx-h100", 1), "datasheet-gpu", "bf16")
    assert fit.host_layer_seconds == pytest.approx(HOST + 5e-5)


def test_coefficients_below_the_least_are_fixed_at_it() -> None:
    size = np.array([1.0, 2.0, 3.0, 4.0])
    terms = np.stack([size, np.ones(4)], axis=1)
    assert relative_least_squares(terms, 2 * size - 0.5)[0] == pytest.approx([1.8, 0.0], rel=0.1)
    assert relative_least_squares(terms, 2 * size + 1, np.array([2.2, 0.0]))[0][0] == 2.2
    assert relative_least_squares(terms, 2 * size + 1, np.array([1.0, 0.5]))[0] == pytest.approx([2.0, 1.0])


def test_measured_cluster_takes_peak_bandwidth_and_links_from_the_profile() -> None:
    cluster = measured_cluster(fitted(machine(quiet)), catalog.local_cluster(2))
    assert cluster.gpu.peak["fp32"] == pytest.approx(PEAK)
    assert cluster.gpu.memory_bandwidth == pytest.approx(BANDWIDTH)
    assert cluster.links.intra_node.bandwidth == pytest.approx(2**22 / (1e-4 + 2**22 / 2e9), rel=1e-3)
    assert "best matrix rate seen" in cluster.gpu.source


def test_curves_pass_through_their_points_and_scale_beyond_them() -> None:
    profile = fitted(machine(quiet))
    add = next(curve for curve in profile.operators if curve.operator == "add")
    sizes = np.array([point.size for point in add.forward])
    assert curve_seconds(add.forward, sizes) == pytest.approx([point.seconds for point in add.forward])
    assert curve_seconds(add.forward, 4 * sizes[-1:]) == pytest.approx(4 * add.forward[-1].seconds)
    assert curve_seconds(add.forward, np.array([0.0, 1.0])) == pytest.approx([0.0, add.forward[0].seconds])


def test_attention_between_widths_is_linear_and_beyond_lengths_quadratic() -> None:
    curves = fitted(machine(quiet)).attention
    forward, backward = attention_head_seconds(curves, np.array([128.0, 512.0]), 48)
    flops = 2.0 * np.array([128.0, 512.0]) ** 2 * 48
    assert forward == pytest.approx(flops / (0.3 * PEAK), rel=1e-3)
    assert backward == pytest.approx(2.5 * flops / (0.4 * PEAK), rel=1e-3)


def test_no_curve_falls_whatever_the_noise() -> None:
    profile = fitted(machine(noisy(1, outliers=0.3)))
    for points in [curve.points for curve in profile.collectives] + [
        points for curve in profile.operators for points in (curve.forward, curve.backward)
    ]:
        seconds = [point.seconds for point in points]
        assert seconds == sorted(seconds)
