"""What one host has: the GPUs that the driver lists and which of the catalogue's they are, memory, cores and drives,
and what a scheduler leaves a job of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NamedTuple

from cost_models.base import MAX_GPUS
from cost_models.documents import printable
from cost_models.errors import HostError, Problem
from cost_models.files.local import Machine
from cost_models.units import GIB, MIB

_FIELDS = ("index", "name", "memory.total", "power.limit", "pcie.link.gen.max", "pcie.link.width.max")
_MIG = "mig.mode.current"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LANE_BYTES = 0.25e9
"""Bytes/s of one lane of PCIe 1.0; each generation doubles it (with the usual rounding: 32 GB/s for 4.0 x16)."""
_LINE = re.compile(r"^\s*Link \d+:\s*([\d.]+) GB/s", re.ASCII)
_PAYLOAD = {26.562: 25.0, 25.781: 25.0, 53.125: 50.0}
"""GB/s of a link from the driver, which counts encoding bits → GB/s of datasheets, which do not:
NVLink 2 has 64 of 66 bits for data, NVLink 4 and 5 spend 1 of 17 on forward error correction."""


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """Properties of one GPU as reported by the NVIDIA driver; 0 for values that the driver does not report."""

    index: int
    name: str
    memory_mib: float
    watts: float
    pcie: float
    """Bandwidth of its PCIe link, bytes/s, one direction: the lower of GPU and slot."""
    nvlinks: tuple[float, ...] = ()
    """Bandwidth of each NVLink that is up, bytes/s, one direction."""


def read_gpus(machine: Machine) -> tuple[SeenGpu, ...]:
    """Read the GPUs visible to a job from the NVIDIA driver. Raises HostError: there is none, they are sliced, or
    of several kinds."""
    rows = _rows(machine)
    if not rows:
        hint = "ask on a node that has some (`srun meshwright cluster --discover`)"
        hint += "; this CPU is cluster `local`"
        problems = [Problem("", what) for what in machine.unsaid]
        raise HostError("no GPU on this machine", problems=problems, hint=hint)
    if any(row[-1] == "Enabled" for row in rows):
        sliced = "the GPUs are split into MIG slices, between which there are no links to train over"
        raise HostError(sliced, hint="`nvidia-smi -mig 0` makes them whole again (needs an administrator)")
    links = _nvlinks(machine)
    gpus = tuple(_gpu(row, links) for row in _visible(machine, rows))
    if len(kinds := list(dict.fromkeys(gpu.name for gpu in gpus))) > 1:
        indices = ",".join(str(gpu.index) for gpu in gpus if gpu.name == kinds[0])
        hint = f"choose with {_VISIBLE}: `{_VISIBLE}={indices} meshwright cluster --discover`"
        raise HostError(f"a node has one kind of GPU, this one {len(kinds)}: {', '.join(kinds)}", hint=hint)
    return gpus


def _rows(machine: Machine) -> list[list[str]]:
    """Query `nvidia-smi` for a list of text cells per GPU; columns unknown to older drivers are empty."""
    for fields in ((*_FIELDS, _MIG), _FIELDS[:3]):
        output = machine.run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        rows = [[cell.strip() for cell in line.split(",")] for line in (output or "").splitlines()]
        if rows := [row for row in rows if len(row) == len(fields) and row[0].isdecimal()]:
            return [row + [""] * (len(_FIELDS) + 1 - len(row)) for row in rows]
    return []


def _visible(machine: Machine, rows: list[list[str]]) -> list[list[str]]:
    """Rows of the GPUs in `CUDA_VISIBLE_DEVICES`, in that order; all rows if the variable is unset or holds
    anything but GPU indices."""
    indices = machine.environment.get(_VISIBLE, "").replace(" ", "").split(",")
    by_index = {row[0]: row for row in rows}
    if indices == [""] or len(set(indices)) < len(indices):
        return rows
    if set(indices) <= set(by_index):
        return [by_index[index] for index in indices]
    given = printable(",".join(indices), limit=60)
    machine.unsaid.append(f"{_VISIBLE}=`{given}` does not number GPUs: all {len(rows)} count")
    return rows


def _gpu(row: list[str], links: dict[int, tuple[float, ...]]) -> SeenGpu:
    index, name = int(row[0]), printable(row[1], limit=80)
    memory, watts, generation, width = map(_number, row[2:6])
    pcie = width * 2 ** (generation - 1) * _LANE_BYTES if generation else 0.0
    return SeenGpu(index, name, memory, watts, pcie, links.get(index, ()))


def _number(text: str) -> float:
    """Parse a number printed by the driver; 0 for `[N/A]` and other text."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) else 0.0


def _nvlinks(machine: Machine) -> dict[int, tuple[float, ...]]:
    """Map each GPU index to the bandwidths of its active NVLinks, bytes/s; errors of boards without NVLink are
    ignored."""
    problem_count = len(machine.unsaid)
    output = machine.run("nvidia-smi", "nvlink", "--status") or ""
    del machine.unsaid[problem_count:]
    links: dict[int, tuple[float, ...]] = {}
    gpu = -1
    for line in output.splitlines():
        if heading := re.match(r"GPU (\d+):", line, re.ASCII):
            gpu = int(heading[1])
        elif link := _LINE.match(line):
            rate = float(link[1])
            links[gpu] = (*links.get(gpu, ()), _PAYLOAD.get(rate, rate) * 1e9)
    return links


_LIMIT, _ALLOCATED = "/sys/fs/cgroup/memory.max", "SLURM_MEM_PER_NODE"
_CPU_COUNTS = ("Socket(s)", "Core(s) per socket", "Cluster(s)", "Core(s) per cluster", "NUMA node(s)")
_LISTING = ("lsblk", "--json", "--bytes", "--nodeps", "--output", "NAME,TYPE,SIZE,ROTA,TRAN,MODEL")


class Host(NamedTuple):
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
    counts = [positive_integer(cpu.get(name, "")) for name in _CPU_COUNTS]
    sockets, per_socket, clusters, per_cluster, numa_nodes = counts
    cores, processor = sockets * per_socket or clusters * per_cluster, cpu.get("Model name", "")
    return Host(memory, source, cores, numa_nodes, processor, drives=_drives(machine))


def job_nodes(machine: Machine) -> int:
    """Number of nodes of the SLURM job that this process is part of; 0 outside a job."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if text := machine.environment.get(name, ""):
            if 0 < (nodes := positive_integer(text)) <= MAX_GPUS:
                return nodes
            machine.unsaid.append(f"{name} is no number of nodes")
    return 0


def _memory(machine: Machine) -> tuple[float, str]:
    """Usable host memory in bytes (the least of physical memory, container limit and SLURM allocation, in whole
    GiB), and the source of that limit."""
    physical = re.search(r"^MemTotal:\s+(\d{1,15}) kB", machine.read("/proc/meminfo") or "", re.M | re.A)
    if physical is None:
        machine.unsaid.append("/proc/meminfo does not say how much memory there is")
    limits = {"/proc/meminfo": float(physical[1]) * 1024 if physical else 0.0}
    limits[_LIMIT] = float(positive_integer((machine.read(_LIMIT) or "").strip(), max_digits=18))
    limits[_ALLOCATED] = positive_integer(machine.environment.get(_ALLOCATED, "")) * MIB
    smallest, source = min(((size, source) for source, size in limits.items() if size), default=(0.0, ""))
    return max(1.0, smallest // GIB) * GIB if source else 0.0, source


def _drives(machine: Machine) -> tuple[tuple[str, float], ...]:
    """Model and size in bytes of each NVMe drive."""
    try:
        listed = json.loads(machine.run(*_LISTING) or "{}").get("blockdevices", [])
        disks = (one for one in listed if one["type"] == "disk")
        solid_state = (one for one in disks if str(one["rota"]).lower() in ("false", "0"))
        drives = (one for one in solid_state if one["tran"] == "nvme")
        return tuple((str(one["model"] or one["name"]).strip(), float(one["size"])) for one in drives)
    except (ValueError, KeyError, TypeError, AttributeError):
        machine.unsaid.append("`lsblk` prints no list of drives that could be read")
        return ()


def positive_integer(text: str, max_digits: int = 9) -> int:
    """Parse a positive integer of at most `max_digits` digits; 0 for any other text."""
    return int(text) if re.fullmatch(rf"[1-9]\d{{0,{max_digits - 1}}}", text, re.ASCII) else 0
