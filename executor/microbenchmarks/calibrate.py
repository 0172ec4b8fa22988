"""Calibration of this machine: worker processes that time microbenchmarks, and the profile fitted to them."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from cost_models.files import catalog
from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.microbenchmarks import Measurement, fit_microbenchmarks
from cost_models.specs.cluster import ClusterSpec, Precision
from cost_models.specs.hardware import HardwareProfile
from executor.launch.workers import Progress, run_workers
from executor.requirements import require_torch

_LONGEST_SECONDS = 600.0


def calibrate(
    processes: int,
    *,
    quick: bool = False,
    out: Path | None = None,
    on_progress: Progress = lambda family: None,
    cluster: ClusterSpec | None = None,
    precision: Precision | None = None,
) -> HardwareProfile:
    """Measure the hardware profile of one GPU, or of one process's share of the CPU, while `processes` run at
    once; the profile is saved as YAML at `out` if given.

    `cluster` (default: `local`) says what the device is: on a CPU `processes` share it over gloo, else each
    takes one CUDA device with NCCL. `precision` defaults to fp32 on a CPU and bf16 on a GPU. Takes under 25 s
    with `quick` and under a minute without, on two cores.

    Raises:
        HostError: no torch, or fewer CUDA devices than processes.
        RunError: a process failed; the last lines it wrote are the problems.
    """
    require_torch("calibrate")
    cluster = cluster or catalog.local_cluster(processes)
    on_cpu = cluster.gpu.kind == "cpu"
    precision = precision or ("fp32" if on_cpu else "bf16")
    device = "cpu" if on_cpu else "cuda"
    rows = measure(processes, device=device, precision=precision, quick=quick, on_progress=on_progress)
    profile = fit_measurements(rows, cluster, precision)
    if out is not None:
        save_spec(profile, out)
    return profile


def fit_measurements(
    measurements: list[Measurement], cluster: ClusterSpec, precision: Precision
) -> HardwareProfile:
    """Hardware profile fitted to measurements, with today's provenance, on top of datasheet defaults."""
    import torch

    base = catalog.load_profile("datasheet-cpu" if cluster.gpu.kind == "cpu" else "datasheet-gpu")
    processes = 1 + max(row.rank for row in measurements)
    return fit_microbenchmarks(
        measurements,
        cluster,
        base.model_copy(update={"stack": "meshwright"}),
        name=f"measured-{cluster.gpu.name}",
        precision=precision,
        source=f"measured {datetime.date.today():%Y-%m-%d}, {processes} at once, torch {torch.__version__}",
    )


def measure(
    processes: int,
    *,
    device: str = "cpu",
    precision: Precision = "fp32",
    quick: bool = False,
    on_progress: Progress = lambda family: None,
) -> list[Measurement]:
    """Run the worker processes of a calibration and return all their measurements. Raises HostError and RunError as
    `calibrate` does.
    """
    worker, options = "executor.microbenchmarks.worker", [precision, *["quick"] * quick]
    how: dict[str, Any] = {"longest_seconds": _LONGEST_SECONDS, "on_progress": on_progress}
    results = run_workers(worker, processes, device, options, task="calibration", **how)
    return [Measurement.from_dict(row) for result in results for row in json.loads(result)]
