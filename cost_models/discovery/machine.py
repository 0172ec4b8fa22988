"""The machine that is asked: its commands, files of its kernel, its environment; what is missing is said. And its host:
memory, cores and drives, and what a scheduler leaves a job of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cost_models.base import MAX_GPUS
from cost_models.units import GIB, MIB

_SECONDS = 20.0
"""Seconds that a command may take; a driver that initialises eight GPUs needs some."""
_MAX_BYTES = 4 * 2**20
"""Bytes of a file that are read."""


class Machine(Protocol):
    """Source of system information, either this computer or a recording of another one."""

    environment: Mapping[str, str]
    unsaid: list[str]
    """Commands that failed, each with its reason."""

    def run(self, *command: str) -> str | None:
        """Standard output of a command; None if the command fails, with the reason added to `unsaid`."""

    def read(self, path: str) -> str | None:
        """Text of a file; None if the file does not exist."""

    def names(self, path: str) -> Sequence[str]:
        """Sorted names of a folder's entries; empty if the folder does not exist."""


class ThisMachine:
    """System information of the computer that the program runs on."""

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self.unsaid: list[str] = []

    def run(self, *command: str) -> str | None:
        """Standard output of a command run without a shell, with a time limit and English messages; None if the
        command fails."""
        command_words = f"`{' '.join(command[:2])}`"
        if shutil.which(command[0]) is None:
            self._miss(f"`{command[0]}` is not installed")
            return None
        try:
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
                env={**self.environment, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            self._miss(f"{command_words} said nothing in {_SECONDS:.0f} s")
            return None
        except OSError as error:
            self._miss(f"{command_words} does not start: {(error.strerror or str(error)).lower()}")
            return None
        if result.returncode:
            first_line = (result.stdout + result.stderr).strip().partition("\n")[0]
            self._miss(
                f"{command_words} ended with {result.returncode}" + (f": {first_line}" if first_line else "")
            )
            return None
        return result.stdout

    def read(self, path: str) -> str | None:
        """Text of the first 4 MiB of a file; None if the file cannot be read."""
        try:
            with Path(path).open("rb") as file:
                return file.read(_MAX_BYTES).decode("utf-8", errors="replace")
        except OSError:
            return None

    def names(self, path: str) -> Sequence[str]:
        """Sorted names of a folder's entries; empty if the folder cannot be read."""
        try:
            return sorted(entry.name for entry in Path(path).iterdir())
        except OSError:
            return ()

    def _miss(self, reason: str) -> None:
        if reason not in self.unsaid:
            self.unsaid.append(reason)


_LIMIT = "/sys/fs/cgroup/memory.max"
_LISTING = ("lsblk", "--json", "--bytes", "--nodeps", "--output", "NAME,TYPE,SIZE,ROTA,TRAN,MODEL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """CPU, memory and solid-state drives of one host; None for values that no source reports."""

    memory: float | None = None
    memory_said: str = ""
    """Who says so."""
    cores: int | None = None
    numa_nodes: int | None = None
    processor: str = ""
    drives: tuple[tuple[str, float], ...] = ()
    """Solid-state drives: model and bytes."""


def read_host(machine: Machine) -> Host:
    """Read cores, memory and drives of a host from the kernel, with memory limited to the job's allocation."""
    memory, witness = _memory(machine)
    cpu = _cpu(machine)
    sockets, cores_per_socket = (
        _positive_integer(cpu.get("Socket(s)", "")),
        _positive_integer(cpu.get("Core(s) per socket", "")),
    )
    clusters = (
        _positive_integer(cpu.get("Core(s) per cluster", "")),
        _positive_integer(cpu.get("Cluster(s)", "")),
    )
    cores = (
        sockets * cores_per_socket
        if sockets and cores_per_socket
        else (clusters[0] or 0) * (clusters[1] or 0) or None
    )
    return Host(
        memory=memory,
        memory_said=witness,
        cores=cores,
        numa_nodes=_positive_integer(cpu.get("NUMA node(s)", "")),
        processor=cpu.get("Model name", ""),
        drives=_drives(machine),
    )


def job_nodes(machine: Machine) -> int | None:
    """Number of nodes of the SLURM job that this process is part of; None outside a job."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if text := machine.environment.get(name, ""):
            if (nodes := _positive_integer(text)) and nodes <= MAX_GPUS:
                return nodes
            machine.unsaid.append(f"{name} is no number of nodes")
    return None


def job_gpus(machine: Machine) -> int | None:
    """Number of GPUs that SLURM allocates to the job on this node; None if SLURM does not say."""
    return _positive_integer(machine.environment.get("SLURM_GPUS_ON_NODE", ""))


def _memory(machine: Machine) -> tuple[float | None, str]:
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
    if not limits:
        return None, ""
    smallest, witness = min(limits)
    return max(1.0, smallest // GIB) * GIB, witness


def _cpu(machine: Machine) -> Mapping[str, str]:
    lines = (line.partition(":") for line in (machine.run("lscpu") or "").splitlines())
    return {name.strip(): value.strip() for name, colon, value in lines if colon}


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


def _positive_integer(text: str, max_digits: int = 9) -> int | None:
    """Parse a positive integer of at most `max_digits` digits; None for any other text."""
    return int(text) if re.fullmatch(rf"[1-9]\d{{0,{max_digits - 1}}}", text, re.ASCII) else None
