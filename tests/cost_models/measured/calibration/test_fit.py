"""Fits of rates to measured steps, tables and hosts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.axes.offload.channels import channel_seconds, exposed_seconds
from cost_models.compute.gemm import device_of, gemm_seconds
from cost_models.defaults import complete_question, measured_cluster
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.catalog import load_profile, load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.measured.calibration.microbenchmarks import (
    OPTIMIZER_BYTES,
    Kind,
    Measurement,
    fit_microbenchmarks,
    host_constants,
    moved_bytes,
    quietest,
    relative_least_squares,
    table_rates,
)
from cost_models.operators.parameters import parameters
from cost_models.question import Question
from cost_models.recommender.options import option_columns
from cost_models.recommender.prices import efficiency, lookup_seconds, update_seconds
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.cluster import AttentionKernel, ClusterSpec
from cost_models.specs.hardware import HardwareProfile, attention_head_seconds, curve_seconds
from cost_models.specs.recommender.constants import TablePoint, TableRates
from cost_models.specs.recommender.sharding import Option
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.training import TrainingSpec
from executor.microbenchmarks.kernels import tables
from executor.microbenchmarks.stopwatch import Stopwatch, scale_of

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
    for tensors, count in ((32, 2**15), (4, 2**20), (4, 2**22), (8, 2**21)):
        moved = OPTIMIZER_BYTES * count / (OPTIMIZER_EFFICIENCY * BANDWIDTH)
        add("optimizer", "adamw", count, tensors * 2e-5 + moved, (tensors,))
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


@pytest.mark.parametrize("disturbed", [2.0, 3.0, 4.0, 6.0])
def test_one_disturbed_model_does_not_move_the_host_time_of_a_block(disturbed: float) -> None:
    rows = [
        replace(row, seconds=3 * row.seconds) if row.kind == "host" and row.size == disturbed else row
        for row in machine(quiet)
    ]
    expected = fitted(machine(quiet)).host_layer_seconds
    assert fitted(rows).host_layer_seconds == pytest.approx(expected, rel=1e-3)


def product(name: str, slower: float) -> Measurement:
    """A product of 2048 each way, so much slower than the machine's burst."""
    side = 2048
    seconds = START_UP + 2.0 * side**3 / PEAK / EFFICIENCY + 4.0 * 3 * side**2 / OPERANDS
    return timed(
        "matrix", f"{name}.fp32", 2.0 * side**3, 1.02 * slower * seconds, (side,) * 3, fastest=1 / 1.02
    )


def test_products_are_priced_at_the_rate_of_a_long_run() -> None:
    """A GPU at its power limit is slower than in the bursts of which its efficiency is; none is faster."""
    rows = [*machine(quiet), product("forward", 1.0)]
    burst, hot, cool = (
        fitted([*rows, *more]) for more in ([], [product("sustained", 1.25)], [product("sustained", 0.98)])
    )
    assert (burst.gemm_settled, cool.gemm_settled) == (None, 1.0)
    assert hot.gemm_settled == pytest.approx(0.8, rel=0.03)
    assert (hot.gemm_efficiency, hot.measured_peak) == (burst.gemm_efficiency, burst.measured_peak)
    training = TrainingSpec(global_batch=1, sequence_length=8, precision="fp32")
    asked = catalog.load_model("gpt2-tiny"), catalog.local_cluster(1), training
    sides = np.full((3, 1), 1e6)  # so large that operands do not count
    seconds = [
        float(gemm_seconds(*sides, device_of(complete_question(*asked, profile=one)))[0])
        for one in (burst, hot)
    ]
    assert seconds[0] / seconds[1] == pytest.approx(hot.gemm_settled, rel=1e-3)


@pytest.mark.parametrize("kernel", ["cudnn", "unfused"])
def test_the_attention_kernel_that_ran_is_priced(kernel: AttentionKernel) -> None:
    """In the profile, and so in our own stack; other stacks bring their own."""
    rows = [replace(row, kernel=kernel) if row.kind == "attention" else row for row in machine(quiet)]
    profile = fitted(rows)
    training = TrainingSpec(global_batch=1, sequence_length=8, precision="fp32")
    asked = catalog.load_model("gpt2-tiny"), catalog.local_cluster(1), training
    assert complete_question(*asked, profile=profile).stack.attention == kernel
    assert complete_question(*asked, profile=profile, stack="torchtitan").stack.attention == "flash2"
    assert complete_question(*asked, profile=fitted(machine(quiet))).stack.attention == "flash2"


MODEL = catalog.load_model("gpt2-tiny")
TRAINING = TrainingSpec(global_batch=8, sequence_length=64, precision="fp32")


def test_measured_rates_replace_the_placeholders_of_a_cpu() -> None:
    rates = {"tier": "measured", "measured_peak": 1.2e11, "measured_bandwidth": 3e10}
    profile = catalog.load_profile("datasheet-cpu").model_copy(update={**rates, "gpu": "cpu"})
    asked = complete_question(MODEL, catalog.local_cluster(2), TRAINING, profile=profile)
    assert asked.cluster.gpu.peak["fp32"] == pytest.approx(1.2e11)
    assert asked.cluster.gpu.memory_bandwidth == pytest.approx(3e10)
    again = complete_question(MODEL, asked.cluster, TRAINING, profile=profile)
    assert again == asked


def test_datasheets_stay() -> None:
    cluster = catalog.load_cluster("dgx-a100-80gb")
    training = TRAINING.model_copy(update={"precision": "bf16"})
    assert complete_question(MODEL, cluster, training).cluster == cluster


def test_a_profile_of_a_cpu_prices_no_products_on_a_gpu() -> None:
    with pytest.raises(InputError, match=r"`gemm_tiles`.* 108 multiprocessors of `a100-sxm-80gb`"):
        complete_question(MODEL, catalog.load_cluster("dgx-a100-80gb"), TRAINING, profile="datasheet-cpu")


def test_stacks_of_one_family_share_a_profile() -> None:
    node = catalog.load_cluster("dgx-a100-80gb")
    training = TRAINING.model_copy(update={"precision": "bf16"})
    for stack in ("fsdp", "torchtitan", "llm-foundry"):
        assert complete_question(MODEL, node, training, stack=stack).hardware.stack == "fsdp"


RANKS = 2


def row(name: str, of: int, size: float, seconds: float) -> Measurement:
    return Measurement(
        kind="offload", name=name, shape=(of,), size=size, seconds=seconds, quiet_seconds=seconds
    )


ROWS = [
    row("update", 1, 1e6, 2e-3),
    row("update", 4, 1e6, 6e-4),
    row("call", 1, 16, 4e-4),
    *(
        row(way, ranks, 1e6, 1e-4 * ranks * times)
        for ranks in (1, 2)
        for way, times in (("down", 1), ("up", 1), ("both", 2))
    ),
    row("passes", 4, 8, 0.10),
    row("updates", 4, 8, 0.20),
    row("together", 4, 8, 0.25),
]
"""Two ranks that share a bus; half of the passes hide as much of the updates."""


def profile(base: str, *, is_cpu: bool) -> HardwareProfile:
    return catalog.load_profile(base).model_copy(update=host_constants(ROWS, ranks=RANKS, is_cpu=is_cpu))


def asked(layout: str, hardware: HardwareProfile, cluster: str = "local") -> tuple[Question, LayoutColumns]:
    parsed = parse_layout(layout)
    model = catalog.load_model("gpt2-tiny")
    training = TrainingSpec(global_batch=8, sequence_length=256, precision="fp32")
    question = complete_question(model, resolve_cluster(cluster, parsed.num_gpus), training)
    question = replace(question, hardware=hardware, stack=catalog.load_stack("meshwright"))
    return question, LayoutColumns.of([parsed])


def test_a_gpus_host_is_shared_and_a_cpu_is_its_own() -> None:
    """0.6 ns with four threads a rank, two ranks at once; 2 ns with the one thread that a CPU has for it."""
    gpu, cpu = profile("datasheet-gpu", is_cpu=False), profile("datasheet-cpu", is_cpu=True)
    assert gpu.host_update_seconds == pytest.approx(3e-10)
    assert cpu.host_update_seconds == pytest.approx(2e-9)
    assert gpu.host_call_seconds == cpu.host_call_seconds == pytest.approx(4e-4)
    assert gpu.host_overlap == cpu.host_overlap == pytest.approx(0.5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_are_cpus_update_apart_and_copy_as_measured(ranks: int) -> None:
    question, columns = asked(f"dp{ranks} mbs4 offload=streamed", profile("datasheet-cpu", is_cpu=True))
    blocks = question.model.num_layers * parameters(question.model, columns.tp).block[0]
    seconds = channel_seconds(question, columns)
    micro = 8 // ranks // 4
    added = (micro - 1) * 12 / 28
    calls = question.model.num_layers * 4e-4  # one for each block
    norms = 4 / 28  # of gradients, in the bytes of an update
    assert seconds.update[0] == pytest.approx((1 + norms + added) * blocks * 2e-9 + calls, rel=1e-6)
    assert seconds.down[0] == pytest.approx(micro * 4 * blocks / (1e10 / ranks), rel=1e-6)


def test_a_cpu_waits_for_its_own_copies() -> None:
    question, columns = asked("dp1 mbs4 offload=streamed", profile("datasheet-cpu", is_cpu=True))
    seconds = channel_seconds(question, columns)
    copies = seconds.copies
    assert exposed_seconds(question, columns, np.array([1e9])) == pytest.approx(copies)
    assert exposed_seconds(question, columns, np.zeros(1)) == pytest.approx(copies + seconds.update)


def test_nothing_measured_of_a_host_leaves_it_as_it_was() -> None:
    assert host_constants([], ranks=1, is_cpu=True) == {}


LINK_RATE = 1e10


def test_every_row_size_is_measured_the_same_in_every_round() -> None:
    """Pooling and optimizer, too: rounds are of one thing, and the fit has a full grid of each."""
    scale = replace(scale_of("cpu", quick=True), table_bytes=2**20, table_widths=(4, 16), table_ids=64)
    watch = Stopwatch(device=torch.device("cpu"), budget_seconds=1e-4)
    first, second = (list(tables(watch, scale)) for _ in range(2))
    assert [(one.name, one.shape, one.size) for one in first] == [
        (one.name, one.shape, one.size) for one in second
    ]
    rates = table_rates(first, LINK_RATE, "here")
    assert {(one.row_bytes, one.pooling) for one in rates.lookup} == {
        (size, pool) for size in (16.0, 64.0) for pool in (0.125, 1.0, 16.0)
    }
    assert {len(points) for points in (rates.sums, *rates.changes.values())} == {2}
    assert set(rates.changes) == {"sgd", "adagrad", "rowwise-adagrad", "adam"}
    assert rates.source == "here"
    assert {name: [one.row_bytes for one in points] for name, points in rates.served.items()} == {
        policy: [16.0, 64.0] for policy in ("hottest", "lru")
    }
    assert all(one.launch_seconds > 0 for points in rates.served.values() for one in points)


def test_what_is_measured_is_what_the_price_moves() -> None:
    """1,000 ids of rows of 64 B in 100 bags, 900 of them rows of their own, worked by hand."""
    shape = (64, 1000, 100, 900)
    assert moved_bytes("lookup", shape) == 1000 * (64 + 8) + 100 * 64
    assert moved_bytes("sums", shape) == 1000 * (64 + 8) + 900 * 64
    assert moved_bytes("change.sgd", shape) == 900 * 2 * 64
    assert moved_bytes("change.rowwise-adagrad", shape) == 900 * 2 * (64 + 4)
    assert moved_bytes("change.adam", shape) == 900 * 2 * 64 * 3
    row = Measurement(
        kind="table",
        name="sums",
        shape=shape,
        size=moved_bytes("sums", shape),
        seconds=1e-4,
        quiet_seconds=1e-4,
    )
    assert table_rates([], LINK_RATE, "") is None
    rates = table_rates([row, replace(row, name="lookup")], LINK_RATE, "")
    assert rates.sums[0].efficiency == pytest.approx(129600 / 1e-4 / LINK_RATE)


def test_between_measured_points_and_beyond_them() -> None:
    points = [
        TablePoint(row_bytes=size, pooling=pool, efficiency=share)
        for size, pool, share in ((16, 1, 0.1), (64, 1, 0.4), (16, 4, 0.2), (64, 4, 0.8))
    ]
    found = efficiency(points, np.array([16.0, 32.0, 64.0, 1024.0, 4.0]), np.array([1.0, 1.0, 2.0, 9.0, 0.1]))
    assert found == pytest.approx([0.1, 0.2, 0.4 * 2**0.5, 0.8, 0.1])
    assert efficiency(points[:1], np.array([1.0, 1e6])) == pytest.approx([0.1, 0.1])
    with pytest.raises(InputError, match="a point for every row size and pooling"):
        TableRates(lookup=tuple(points[:3]), sums=tuple(points[:1]), changes={})


def test_the_price_reads_them_where_a_profile_has_them() -> None:
    """Half of the efficiency takes twice as long, for lookups, sums and optimizers; without them as before."""

    def asked(share: float | None) -> RecommenderQuestion:
        points = (TablePoint(row_bytes=64, efficiency=share or 1.0),)
        rates = TableRates(lookup=points, sums=points, changes={"sgd": points})
        profile = load_profile("datasheet-cpu").model_copy(update={"tables": rates if share else None})
        training = RecommenderTraining(global_batch=4096, precision="fp32")
        return complete_recommender(
            load_recommender("dlrm-tiny"), resolve_cluster("local", 2), training, profile=profile
        )

    def seconds(question: RecommenderQuestion) -> list[float]:
        x = option_columns(question, [(0, Option("whole")), (0, Option("copy"))])
        parts = (*lookup_seconds(question, x), *update_seconds(question, x))
        return [float(part.sum()) for part in parts]

    fast, slow, before = seconds(asked(0.5)), seconds(asked(0.25)), seconds(asked(None))
    assert slow == pytest.approx([2 * each for each in fast])
    assert before != pytest.approx(fast, rel=0.1)
    question = asked(0.5)
    x = option_columns(question, [(0, Option("whole"))])
    moved = x.ids * (64 + 8) + x.bags * 64
    bandwidth = question.cluster.gpu.memory_bandwidth
    assert lookup_seconds(question, x)[0] == pytest.approx(moved / (0.5 * bandwidth))
