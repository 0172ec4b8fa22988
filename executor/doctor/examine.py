"""Examination of a machine, and the times that a plan assumes of it.

It starts a process for each device here, or, inside torchrun, is one of those of all nodes.
"""

from __future__ import annotations

import os

import numpy as np

from cost_models.communication.collectives import point_to_point_seconds
from cost_models.communication.topology import group_of
from cost_models.compute.gemm import device_of, gemm_seconds
from cost_models.errors import HostError
from cost_models.files.whole import temporary_folder
from executor.doctor.readings import BETWEEN_NODES, LATENCY, LINK, MATMUL, MEMORY, Assumptions, Examination
from executor.launch.workers import among_workers, require_devices, result_of, run_workers
from planner.plan import Plan

_LONGEST_SECONDS = 300.0


def examine(processes: int, *, device: str) -> Examination:
    """Measure `processes` processes of this machine, or those of the job if the environment has RANK.

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
        worker, options = "executor.doctor.measuring", ["--device", device]
        run_workers(
            worker, processes, folder, options, task="the examination", longest_seconds=_LONGEST_SECONDS
        )
        return Examination.model_validate_json(result_of(folder, 0).read_text("utf-8"))


def _as_rank(processes: int, kind: str) -> Examination:
    from executor.doctor.measuring import examine_here

    ranks = int(os.environ["WORLD_SIZE"])
    if ranks != processes:
        raise HostError(
            f"{processes} processes were asked for, and torchrun has started {ranks}",
            hint="leave out --processes, or start as many",
        )
    with among_workers(kind) as device:
        return examine_here(device)


_PAIR = 2


def assumptions_of(plan: Plan) -> Assumptions:
    """Seconds of products, copies and messages as the plan's profile has them, and the memory of its fullest rank.

    A plan over several pools of GPUs, each with a profile of its own, says only what memory it needs.
    """
    from executor.doctor.measuring import sizes_of  # imports torch

    needed = max(sum(parts.values()) for parts in plan.prediction.rank_memory)
    question = plan.question
    if question.has_pools:
        return Assumptions(seconds={}, bytes_needed=needed, known=False)
    sizes, device = (
        sizes_of("cpu" if question.cluster.gpu.kind == "cpu" else "cuda"),
        device_of(question, uncast=True),
    )
    side = np.array([float(sizes.side)])
    seconds = {
        MATMUL: float(gemm_seconds(side, side, side, device)[0]),
        MEMORY: 2.0 * sizes.copied_bytes / device.memory_rate,
    }
    cluster = question.cluster
    pairs = {"": 1, BETWEEN_NODES: cluster.gpus_per_node}
    for level, stride in pairs.items():
        if _PAIR * stride > cluster.num_gpus or (not level and cluster.gpus_per_node < _PAIR):
            continue
        group = group_of(cluster, _PAIR, stride)
        for check, size in ((LINK, sizes.large_bytes), (LATENCY, sizes.small_bytes)):
            seconds[check + level] = float(point_to_point_seconds(float(size), group, question.hardware)[0])
    return Assumptions(seconds=seconds, bytes_needed=needed, known=question.hardware.tier != "datasheet")
