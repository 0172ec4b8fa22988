"""Measure this machine: processes time the microbenchmarks side by side, a fit makes a profile of it."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from cost_models.errors import HostError, Problem, RunError
from cost_models.evidence.calibration.measurements import Measurement
from cost_models.evidence.calibration.microbenchmark_fit import MicrobenchmarkFit, fit_microbenchmarks
from cost_models.evidence.calibration.saving import save_profile
from cost_models.files import catalog
from cost_models.files.leftovers import temporary_folder
from cost_models.specs.cluster import ClusterSpec, Precision
from cost_models.specs.hardware import HardwareProfile
from executor.launch.environment import on_this_machine, worker_environment
from executor.microbenchmarks.announce import FAMILY_MARK

Progress = Callable[[str], None]
_POLL_SECONDS = 0.05
_LONGEST_SECONDS = 600.0
_LAST_LINES = 5


def calibrate(
    processes: int,
    *,
    quick: bool = False,
    out: Path | None = None,
    on_progress: Progress | None = None,
    cluster: ClusterSpec | None = None,
    precision: Precision | None = None,
) -> HardwareProfile:
    """Measure the profile of one process among `processes` running at once; saved as YAML at `out` if given.

    `cluster` (default: `local`) says what the device is: on a CPU `processes` share it over gloo, else each
    takes one CUDA device with NCCL. `precision` defaults to fp32 on a CPU and bf16 on a GPU. Takes under 25 s
    with `quick` and under a minute without, on two cores.

    Raises:
        HostError: fewer CUDA devices than processes.
        RunError: a process failed; the last lines it wrote are the problems.
    """
    cluster = cluster or catalog.local_cluster(processes)
    on_cpu = cluster.gpu.kind == "cpu"
    precision = precision or ("fp32" if on_cpu else "bf16")
    measurements = measure(
        processes,
        device="cpu" if on_cpu else "cuda",
        precision=precision,
        quick=quick,
        on_progress=on_progress,
    )
    fit = fit_measurements(measurements, cluster, precision)
    if out is not None:
        save_profile(fit.profile, out)
    return fit.profile


def fit_measurements(
    measurements: list[Measurement], cluster: ClusterSpec, precision: Precision
) -> MicrobenchmarkFit:
    """The fit with today's provenance, on top of the datasheet defaults of the device's kind."""
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
    on_progress: Progress | None = None,
) -> list[Measurement]:
    """Run the processes and return all their rows. Raises HostError and RunError as `calibrate` does."""
    if device == "cuda":
        _require_devices(processes)
    with temporary_folder("meshwright-calibrate-") as folder:
        logs = [folder / f"rank-{rank}.log" for rank in range(processes)]
        command = [sys.executable, "-m", "executor.microbenchmarks.worker", "--world", str(processes)]
        command += ["--folder", str(folder), "--device", device, "--precision", precision] + [
            "--quick"
        ] * quick
        workers = []
        for rank, log in enumerate(logs):
            with log.open("wb") as stream:
                workers.append(
                    subprocess.Popen(
                        [*command, "--rank", str(rank)],
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                        env=on_this_machine(worker_environment()),
                    )
                )
        try:
            _wait(workers, logs, on_progress or (lambda family: None))
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        rows = [json.loads((folder / f"rank-{rank}.json").read_text("utf-8")) for rank in range(processes)]
    return [Measurement.from_dict(row) for of_rank in rows for row in of_rank]


def _wait(workers: list[subprocess.Popen[bytes]], logs: list[Path], on_progress: Progress) -> None:
    """Wait until all have ended; report each family that rank 0 begins."""
    reported = 0
    deadline = time.monotonic() + _LONGEST_SECONDS
    while True:
        codes = [worker.poll() for worker in workers]
        families = [line for line in _lines(logs[0]) if line.startswith(FAMILY_MARK)]
        for family in families[reported:]:
            on_progress(family.removeprefix(FAMILY_MARK))
        reported = len(families)
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            _raise_failure(failed[0], logs[failed[0]])
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise RunError(f"calibration did not end within {_LONGEST_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _lines(log: Path) -> list[str]:
    return log.read_text("utf-8", errors="replace").splitlines()


def _raise_failure(rank: int, log: Path) -> NoReturn:
    last = [line for line in _lines(log) if not line.startswith(FAMILY_MARK)][-_LAST_LINES:]
    raise RunError(
        f"calibration failed on process {rank}", problems=[Problem("", line.strip()) for line in last]
    )


def _require_devices(processes: int) -> None:
    import torch

    if torch.cuda.device_count() < processes:
        raise HostError(
            f"calibrating {processes} processes needs as many CUDA devices; this host has"
            f" {torch.cuda.device_count()}"
        )
