"""Calibration of this machine: worker processes that time microbenchmarks, and the profile fitted to them.

Processes measure side by side, and each writes its result to a file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cost_models.errors import HostError, Problem, RunError
from cost_models.files import catalog
from cost_models.files.catalog import save_spec
from cost_models.files.whole import temporary_folder
from cost_models.measured.calibration.microbenchmarks import Measurement, fit_microbenchmarks
from cost_models.specs.cluster import ClusterSpec, Precision
from cost_models.specs.hardware import HardwareProfile
from executor.launch.environment import end_with_parent, on_this_machine, worker_environment
from executor.requirements import require_torch

if TYPE_CHECKING:
    import torch


Progress = Callable[[str], None]
_POLL_SECONDS = 0.05
_LAST_LINES = 5


def run_workers(
    module: str,
    processes: int,
    folder: Path,
    options: Sequence[str],
    *,
    task: str,
    longest_seconds: float,
    on_progress: Progress | None = None,
) -> None:
    """Run `python -m MODULE --rank R --world N --folder DIR OPTIONS` for every rank until all have ended.

    `what` they do names them in errors; `on_progress` hears of each family of measurements that rank 0 begins.

    Raises:
        RunError: a process failed, or did not end; the last lines it wrote are the problems.
    """
    logs = [folder / f"rank-{rank}.log" for rank in range(processes)]
    command = [sys.executable, "-m", module, "--world", str(processes), "--folder", str(folder), *options]
    workers = []
    try:
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
        _wait(workers, logs, task, longest_seconds, on_progress or (lambda family: None))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def result_of(folder: Path, rank: int) -> Path:
    """The file of a process's result."""
    return folder / f"rank-{rank}.json"


def worker_arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that `run_workers` gives a process, and `--device`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser


@contextmanager
def among_workers(arguments: argparse.Namespace) -> Iterator[torch.device]:
    """Inside the block this process is one of the workers, in their process group, on one thread; its device."""
    import torch
    import torch.distributed as dist

    end_with_parent()
    torch.set_num_threads(1)
    device = torch.device(f"cuda:{arguments.rank}" if arguments.device == "cuda" else "cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=(arguments.folder / "rendezvous").as_uri(),
        rank=arguments.rank,
        world_size=arguments.world,
    )
    yield device
    dist.destroy_process_group()


def require_devices(processes: int) -> None:
    """Raise HostError where there are fewer CUDA devices than processes."""
    import torch

    if torch.cuda.device_count() < processes:
        raise HostError(
            f"measuring {processes} processes needs as many CUDA devices; this host has"
            f" {torch.cuda.device_count()}"
        )


def _wait(
    workers: list[subprocess.Popen[bytes]],
    logs: list[Path],
    task: str,
    longest_seconds: float,
    on_progress: Progress,
) -> None:
    """Wait until all have ended; report each family that rank 0 begins."""
    reported = 0
    deadline = time.monotonic() + longest_seconds
    while True:
        codes = [worker.poll() for worker in workers]
        families = [line for line in _lines(logs[0]) if line.startswith(FAMILY_MARK)]
        for family in families[reported:]:
            on_progress(family.removeprefix(FAMILY_MARK))
        reported = len(families)
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            _raise_failure(failed[0], logs[failed[0]], task)
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise RunError(f"{task} did not end within {longest_seconds:.0f} s")
        time.sleep(_POLL_SECONDS)


def _lines(log: Path) -> list[str]:
    return log.read_text("utf-8", errors="replace").splitlines()


def _raise_failure(rank: int, log: Path, task: str) -> NoReturn:
    last = [line for line in _lines(log) if not line.startswith(FAMILY_MARK)][-_LAST_LINES:]
    raise RunError(f"{task} failed on process {rank}", problems=[Problem("", line.strip()) for line in last])


FAMILY_MARK = "measuring: "
"""Start of the line; the family's name follows."""


def announce(family: str) -> None:
    """Write the line and flush it."""
    print(f"{FAMILY_MARK}{family}", flush=True)


_LONGEST_SECONDS = 600.0


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
        HostError: no torch, or fewer CUDA devices than processes.
        RunError: a process failed; the last lines it wrote are the problems.
    """
    require_torch("calibrate")
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
    profile = fit_measurements(measurements, cluster, precision)
    if out is not None:
        save_spec(profile, out)
    return profile


def fit_measurements(
    measurements: list[Measurement], cluster: ClusterSpec, precision: Precision
) -> HardwareProfile:
    """The profile with today's provenance, on top of the datasheet defaults of the device's kind."""
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
        require_devices(processes)
    with temporary_folder("meshwright-calibrate-") as folder:
        options = ["--device", device, "--precision", precision] + ["--quick"] * quick
        run_workers(
            "executor.microbenchmarks.worker",
            processes,
            folder,
            options,
            task="calibration",
            longest_seconds=_LONGEST_SECONDS,
            on_progress=on_progress,
        )
        rows = [json.loads(result_of(folder, rank).read_text("utf-8")) for rank in range(processes)]
    return [Measurement.from_dict(row) for of_rank in rows for row in of_rank]
