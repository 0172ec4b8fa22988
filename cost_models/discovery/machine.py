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
    """Source of readings: this machine, or the record of another."""

    environment: Mapping[str, str]
    unsaid: list[str]
    """Commands that failed, each with its reason."""

    def run(self, *command: str) -> str | None:
        """Output of a command; None where it fails, with the reason in `unsaid`."""

    def read(self, path: str) -> str | None:
        """A file's text; None where there is none."""

    def names(self, path: str) -> Sequence[str]:
        """Names in a folder, sorted; none where there is no folder."""


class ThisMachine:
    """The machine the program runs on."""

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self.unsaid: list[str] = []

    def run(self, *command: str) -> str | None:
        """No shell, an end after some seconds, and words in English."""
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
        """The first megabytes of a file."""
        try:
            with Path(path).open("rb") as file:
                return file.read(_MAX_BYTES).decode("utf-8", errors="replace")
        except OSError:
            return None

    def names(self, path: str) -> Sequence[str]:
        """Names in a folder, sorted; the kernel lists devices so."""
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
    """One host; None where nobody says."""

    memory: float | None = None
    memory_said: str = ""
    """Who says so."""
    cores: int | None = None
    numa_nodes: int | None = None
    processor: str = ""
    drives: tuple[tuple[str, float], ...] = ()
    """Solid-state drives: model and bytes."""


def read_host(machine: Machine) -> Host:
    """Host as the kernel describes it, limited to the scheduler's allocation."""
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
    """Nodes of the SLURM job this is part of; None outside one."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if text := machine.environment.get(name, ""):
            if (nodes := _positive_integer(text)) and nodes <= MAX_GPUS:
                return nodes
            machine.unsaid.append(f"{name} is no number of nodes")
    return None


def job_gpus(machine: Machine) -> int | None:
    """GPUs that SLURM gives the job on this node; None where it does not say."""
    return _positive_integer(machine.environment.get("SLURM_GPUS_ON_NODE", ""))


def _memory(machine: Machine) -> tuple[float | None, str]:
    """The least of what the machine has, its container may use, and the job was given, in GiB as all three count."""
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
    """Drives without spinning disks."""
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
    """A positive whole number of at most `max_digits` digits; None for all else."""
    return int(text) if re.fullmatch(rf"[1-9]\d{{0,{max_digits - 1}}}", text, re.ASCII) else None
