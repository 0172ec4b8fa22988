"""Measuring for real, tiny: rows fit, the file replays, failures are errors, collectives are timed as in a step."""

from __future__ import annotations

import time
from dataclasses import asdict, replace

import pytest
import torch
import torch.distributed as dist

from cost_models.errors import HostError
from cost_models.files import catalog
from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.microbenchmarks import Measurement, collective_curves
from executor.launch.environment import worker_environment
from executor.measure.memory import StorageTracker
from executor.microbenchmarks import worker
from executor.microbenchmarks.calibrate import fit_measurements, measure
from executor.microbenchmarks.kernels import optimizer
from executor.microbenchmarks.links import collectives
from executor.microbenchmarks.stopwatch import Stopwatch, scale_of

TINY = replace(
    scale_of("cpu", quick=True),
    products=((64, 64, 64), (128, 64, 128), (128, 128, 64)),
    head_dims=(16,),
    sequences=(32, 64),
    attention_tokens=64,
    elements=(2**10, 2**12),
    repeated_products=((64, 64, 64),),
    cold_bytes=2**16,
    memory_bytes=(2**16, 2**20),
    optimizer_shapes=((4, 2**8), (4, 2**12)),
    block_parameters=2**10,
    copied_bytes=2**12,
    overlapped_side=16,
    sustained_seconds=1e-3,
    rounds=2,
)


@pytest.fixture(scope="module")
def rows() -> list[Measurement]:
    watch = Stopwatch(device=torch.device("cpu"), budget_seconds=1e-3)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return worker.measure(watch, TINY, on_progress=lambda family: None)
    finally:
        dist.destroy_process_group()


def test_one_process_measures_every_family_and_they_fit(rows) -> None:
    assert all(row.seconds > 0 and row.quiet_seconds > 0 for row in rows)
    profile = fit_measurements(rows, catalog.local_cluster(1), "fp32")
    assert profile.tier == "measured"
    assert profile.measured_peak
    assert max(value for name, value in profile if name.endswith("_efficiency") and value is not None) <= 1.0
    assert {curve.operator for curve in profile.operators} >= {
        "layernorm",
        "rmsnorm",
        "gelu",
        "cross-entropy",
    }
    assert profile.attention[0].head_dim == 16
    assert not profile.collectives
    assert profile.host_rates is not None
    assert profile.host_update_seconds == profile.host_rates.updates[0].seconds
    assert [one.ranks for one in profile.host_rates.copies] == [1]
    assert 0 <= profile.host_overlap <= 1
    assert profile.gemm_settled is not None
    assert 0.1 < profile.gemm_settled <= 1
    assert profile.attention_kernel == "flash2"
    assert len({row.size for row in rows if (row.kind, row.name) == ("host", "block")}) > 2


def test_a_profile_reads_back_as_it_was_written(rows, tmp_path) -> None:
    profile = fit_measurements(rows, catalog.local_cluster(1), "fp32")
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    save_spec(profile, first)
    save_spec(profile, first)
    assert catalog.load_profile(str(first)) == profile
    save_spec(catalog.load_profile(str(first)), second)
    assert first.read_bytes() == second.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.yaml", "second.yaml"]


def test_the_norm_of_gradients_makes_no_copies_of_them() -> None:
    """Weight, gradient and two moments in fp32 are all that the timed update holds, as in the executor."""
    parameters, watch = 2**16, Stopwatch(device=torch.device("cpu"), budget_seconds=1e-3)
    with StorageTracker() as tracker:
        (row,) = optimizer(watch, replace(TINY, optimizer_shapes=((1, parameters),)))
    assert row.size == parameters
    assert 16 * parameters <= sum(tracker.peak.values()) < 17 * parameters


def test_measurements_survive_json(rows) -> None:
    assert [Measurement.from_dict(asdict(row)) for row in rows] == rows


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has CUDA devices")
def test_cuda_without_devices_is_an_error_about_the_host() -> None:
    with pytest.raises(HostError, match="CUDA devices"):
        measure(2, device="cuda")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, {}),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}),
    ],
)
def test_allocators_of_gpus_grow_their_segments_unless_told_otherwise(said, expected) -> None:
    found = worker_environment(said)
    assert {name: found[name] for name in found if name == "PYTORCH_ALLOC_CONF"} == expected


def test_workers_keep_what_the_user_decided() -> None:
    environment = worker_environment({"OMP_NUM_THREADS": "4", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"})
    assert environment["OMP_NUM_THREADS"] == "4"
    settings = environment["GLIBC_TUNABLES"].split(":")
    assert "glibc.malloc.hugetlb=0" in settings
    assert "glibc.malloc.mmap_threshold=8388608" in settings
    assert len([setting for setting in settings if "hugetlb" in setting]) == 1


LATE = 0.2


def timed() -> tuple[float, int]:
    """Seconds of a barrier for which the second process always comes late, and how often it was."""
    import torch.distributed as dist

    came: list[int] = []

    def aside() -> None:
        came.append(1)
        time.sleep(LATE * dist.get_rank())

    watch = Stopwatch(device=torch.device("cpu"), budget_seconds=1e-3)
    timing = watch.elapsed(dist.barrier, 3, aside=aside, group=dist.group.WORLD)
    return timing.seconds, len(came)


def measured() -> list[tuple[str, float]]:
    """What each process measures of small messages."""
    watch = Stopwatch(device=torch.device("cpu"), budget_seconds=1e-3)
    scale = replace(scale_of("cpu", quick=True), messages=(2**10, 2**12))
    rows = list(collectives(watch, scale))
    assert all(curve.behind_compute for curve in collective_curves(rows, behind_compute=True))
    return [(row.name, row.seconds) for row in rows]


def test_a_wait_for_the_last_is_no_part_of_a_collective(processes) -> None:
    first, second = processes.run(2, timed)
    assert first == second
    assert first[0] < LATE / 2
    assert first[1] == 3


def test_processes_measure_one_time_of_each_collective(processes) -> None:
    """That of the one that came last, behind products."""
    first, second = processes.run(2, measured)
    assert first == second
    assert {name for name, _ in first} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
