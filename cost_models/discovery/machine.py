"""Host of a machine: memory, cores and drives, and what a scheduler leaves a job of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from cost_models.base import MAX_GPUS
from cost_models.files.local import Machine
from cost_models.units import GIB, MIB

_LIMIT = "/sys/fs/cgroup/memory.max"
_LISTING = ("lsblk", "--json", "--bytes", "--nodeps", "--output", "NAME,TYPE,SIZE,ROTA,TRAN,MODEL")


@dataclass(frozen=True, slots=True)
class Host:
    """CPU, memory and solid-state drives of one host; 0 for values that no source reports."""

    memory: float
    """Bytes."""
    memory_source: str
    cores: int
    numa_nodes: int
    processor: str
    drives: tuple[tuple[str, float], ...]
    """Solid-state drives: model and bytes."""


def read_host(machine: Machine) -> Host:
    """Read cores, memory and drives of a host from the kernel, with memory limited to the job's allocation."""
    memory, source = _memory(machine)
    lines = (line.partition(":") for line in (machine.run("lscpu") or "").splitlines())
    cpu = {name.strip(): value.strip() for name, colon, value in lines if colon}
    sockets, per_socket, clusters, per_cluster, numa_nodes = (
        _positive_integer(cpu.get(name, ""))
        for name in ("Socket(s)", "Core(s) per socket", "Cluster(s)", "Core(s) per cluster", "NUMA node(s)")
    )
    cores, processor = sockets * per_socket or clusters * per_cluster, cpu.get("Model name", "")
    return Host(memory, source, cores, numa_nodes, processor, drives=_drives(machine))


def job_nodes(machine: Machine) -> int:
    """Number of nodes of the SLURM job that this process is part of; 0 outside a job."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if text := machine.environment.get(name, ""):
            if 0 < (nodes := _positive_integer(text)) <= MAX_GPUS:
                return nodes
            machine.unsaid.append(f"{name} is no number of nodes")
    return 0


def job_gpus(machine: Machine) -> int:
    """Number of GPUs that SLURM allocates to the job on this node; 0 if SLURM does not say."""
    return _positive_integer(machine.environment.get("SLURM_GPUS_ON_NODE", ""))


def _memory(machine: Machine) -> tuple[float, str]:
    """Usable host memory in bytes (the least of physical memory, container limit and SLURM allocation, in whole
    GiB), and the source of that limit."""
    limits: list[tuple[float, str]] = []
    if match := re.search(r"^MemTotal:\s+(\d{1,15}) kB", machine.read("/proc/meminfo") or "", re.M | re.A):
        limits.append((float(match[1]) * 1024, "/proc/meminfo"))
    else:
        machine.unsaid.append("/proc/meminfo does not say how much memory there is")
    if limit := _positive_integer((machine.read(_LIMIT) or "").strip(), max_digits=18):
        limits.append((float(limit), _LIMIT))
    if slurm_mib := _positive_integer(machine.environment.get("SLURM_MEM_PER_NODE", "")):
        limits.append((slurm_mib * MIB, "SLURM_MEM_PER_NODE"))
    smallest, source = min(limits, default=(0.0, ""))
    return max(1.0, smallest // GIB) * GIB if limits else 0.0, source


def _drives(machine: Machine) -> tuple[tuple[str, float], ...]:
    """Model and size in bytes of each NVMe drive."""
    try:
        listed = json.loads(machine.run(*_LISTING) or "{}").get("blockdevices", [])
        return tuple(
            (str(one["model"] or one["name"]).strip(), float(one["size"]))
            for one in listed
            if one["type"] == "disk" and str(one["rota"]).lower() in ("false", "0") and one["tran"] == "nvme"
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        machine.unsaid.append("`lsblk` prints no list of drives that could be read")
        return ()


def _positive_integer(text: str, max_digits: int = 9) -> int:
    """Parse a positive integer of at most `max_digits` digits; 0 for any other text."""
    return int(text) if re.fullmatch(rf"[1-9]\d{{0,{max_digits - 1}}}", text, re.ASCII) else 0
