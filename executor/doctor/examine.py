"""Examines the machine: starts a process for each device here, or, inside torchrun, is one of those of all nodes."""

from __future__ import annotations

import os

from cost_models.errors import HostError
from cost_models.files.whole import temporary_folder
from executor.doctor.readings import Examination
from executor.microbenchmarks.workers import require_devices, result_of, run_workers

_LONGEST_SECONDS = 300.0
WORKER = "executor.doctor.worker"


def examine(processes: int, *, device: str, worker: str = WORKER) -> Examination:
    """Measure so many processes of this machine, or, where the environment has RANK, those of its job.

    `device`: `cpu` or `cuda`. Started by torchrun or in a SLURM job that sets RANK, this process is that rank, and
    every one of them gets what all found.

    Raises:
        HostError: fewer CUDA devices than processes, or another number of processes than the job has.
        RunError: a process failed; the last lines it wrote are the problems.
    """
    if "RANK" in os.environ:
        return _as_rank(processes, device)
    if device == "cuda":
        require_devices(processes)
    with temporary_folder("meshwright-doctor-") as folder:
        run_workers(
            worker,
            processes,
            folder,
            ["--device", device],
            what="the examination",
            longest_seconds=_LONGEST_SECONDS,
        )
        return Examination.model_validate_json(result_of(folder, 0).read_text("utf-8"))


def _as_rank(processes: int, kind: str) -> Examination:
    import torch
    import torch.distributed as dist

    from executor.doctor.measuring import examine_here
    from executor.launch.loopback import store_here

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if ranks != processes:
        raise HostError(
            f"{processes} processes were asked for, and torchrun has started {ranks}",
            hint="leave out --processes, or start as many",
        )
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    backend, store = ("nccl" if kind == "cuda" else "gloo"), store_here(rank, ranks)
    if store is None:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    try:
        return examine_here(device)
    finally:
        dist.destroy_process_group()
