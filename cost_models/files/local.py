"""The `local` cluster: this machine's GPUs, or its CPU shared by processes, each standing for one device."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import psutil

from cost_models.errors import InputError
from cost_models.specs.cluster import LEAST_MEMORY, ClusterSpec, GpuSpec, Links
from cost_models.units import format_bytes

LOCAL = "local"
"""Catalogue name of the machine the program runs on."""
_DRIVER_SECONDS = 10.0
"""Seconds that the driver may take to answer."""
_PCIE_LATENCY = "5 us"
"""Latency of a transfer between two GPUs through the host; a documented placeholder."""


def this_machine(one_core: ClusterSpec, processes: int | None = None) -> ClusterSpec:
    """Describe the computer's CPU as a cluster whose GPUs are `processes` equal shares of its cores, with rates
    scaled from the catalogue's entry for one core.

    Default: one process on each physical core. Rates of the entry are placeholders for one core, not
    measurements: calibrate before believing a time. Memory is all the machine has, divided evenly.

    Raises:
        InputError: that is too little for so many.
    """
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    processes = processes or cores
    share = cores / processes
    memory = float(psutil.virtual_memory().total)
    if memory / processes < LEAST_MEMORY:
        raise InputError(
            f"{processes:,} processes leave each less than {format_bytes(LEAST_MEMORY)} of this machine's memory"
        )
    core = one_core.gpu
    cpu = core.model_copy(
        update={
            "memory": memory / processes,
            "memory_bandwidth": core.memory_bandwidth * share,
            "peak": {precision: rate * share for precision, rate in core.peak.items()},
            "vector_rate": core.vector_rate * share if core.vector_rate else None,
        }
    )
    return one_core.model_copy(
        update={"gpu": cpu, "gpus_per_node": processes, "host_memory": memory, "host_cores": cores}
    )


def processor_name() -> str:
    """Model name of the computer's CPU, as in /proc/cpuinfo; empty where the system reports none."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    model_names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(model_names, "") or platform.processor()


@cache
def installed_gpus() -> tuple[str, ...]:
    """Names of the computer's NVIDIA GPUs as reported by `nvidia-smi`; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return ()
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_DRIVER_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def gpu_machine(gpu: GpuSpec, node: ClusterSpec | None, count: int) -> ClusterSpec:
    """Describe the computer as one node of `count` GPUs, with the links of the catalogue's `node`, else PCIe
    through the host."""
    through_host = {"kind": "pcie", "bandwidth": f"{gpu.host_bandwidth or 0!r} B/s", "latency": _PCIE_LATENCY}
    links = node.links if node else Links.model_validate({"intra_node": through_host})
    machine = ClusterSpec(name=LOCAL, gpu=gpu, gpus_per_node=count, links=links, host_cores=os.cpu_count())
    memory = float(psutil.virtual_memory().total)
    return machine.model_copy(
        update={"host_memory": memory, "source": "this machine, as its driver reports it"}
    )
