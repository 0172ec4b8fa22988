"""This computer: output of its commands, files and environment, and the `local` cluster, which is its GPUs,
or its CPU divided among processes that each stand for one device."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import psutil

from cost_models.errors import InputError
from cost_models.specs.cluster import MIN_DEVICE_MEMORY, ClusterSpec, GpuSpec, Links
from cost_models.units import format_bytes

LOCAL = "local"
"""Catalogue name of the machine the program runs on."""
_SECONDS = 20.0
"""Time limit of a command in seconds; a driver that initialises eight GPUs needs several."""
_MAX_BYTES = 4 * 2**20
"""Maximum number of bytes read from a file."""
_PCIE_LATENCY = "5 us"
"""Latency of a transfer between two GPUs through the host; a documented placeholder."""


class Machine:
    """Source of system information: the computer that the program runs on, or, in a subclass, a recording."""

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self.unsaid: list[str] = []
        """Commands that failed, each with its reason."""

    def run(self, *command: str) -> str | None:
        """Run a command without a shell, with a time limit and English messages, and return its standard
        output; None if the command fails, with the reason added to `unsaid`."""
        words, english = f"`{' '.join(command[:2])}`", {**self.environment, "LC_ALL": "C"}
        try:
            result = subprocess.run(
                command, capture_output=True, errors="replace", timeout=_SECONDS, stdin=DEVNULL, env=english
            )
        except FileNotFoundError:
            reason = f"`{command[0]}` is not installed"
        except subprocess.TimeoutExpired:
            reason = f"{words} said nothing in {_SECONDS:.0f} s"
        except OSError as error:
            reason = f"{words} does not start: {(error.strerror or str(error)).lower()}"
        else:
            if not result.returncode:
                return result.stdout
            first_line = (result.stdout + result.stderr).strip().partition("\n")[0]
            reason = f"{words} ended with {result.returncode}" + (f": {first_line}" if first_line else "")
        if reason not in self.unsaid:
            self.unsaid.append(reason)
        return None

    def read(self, path: str) -> str | None:
        """Text of the first 4 MiB of a file; None if the file cannot be read."""
        with suppress(OSError), Path(path).open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", errors="replace")
        return None

    def names(self, path: str) -> Sequence[str]:
        """Sorted names of a folder's entries; empty if the folder cannot be read."""
        with suppress(OSError):
            return sorted(os.listdir(path))
        return ()


def this_machine(one_core: ClusterSpec, processes: int | None = None) -> ClusterSpec:
    """Describe this computer's CPU as a cluster whose GPUs are `processes` equal shares of its cores, with
    rates scaled from the catalogue's entry for one core.

    Default: one process on each physical core. Rates of the entry are placeholders for one core, not
    measurements: calibrate before believing a time. Memory is all the machine has, divided evenly.

    Raises:
        InputError: that is too little for so many.
    """
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    processes = processes or cores
    share = cores / processes
    memory = float(psutil.virtual_memory().total)
    if memory / processes < MIN_DEVICE_MEMORY:
        limit_text = f"less than {format_bytes(MIN_DEVICE_MEMORY)} of this machine's memory"
        raise InputError(f"{processes:,} processes leave each {limit_text}")
    core = one_core.gpu
    part: dict[str, Any] = {"memory": memory / processes, "memory_bandwidth": core.memory_bandwidth * share}
    part["peak"] = {precision: rate * share for precision, rate in core.peak.items()}
    part["vector_rate"] = core.vector_rate * share if core.vector_rate else None
    node = {"gpus_per_node": processes, "host_memory": memory, "host_cores": cores}
    return one_core.model_copy(update=node | {"gpu": core.model_copy(update=part)})


def processor_name() -> str:
    """Model name of this computer's CPU, as in /proc/cpuinfo; empty if the system reports none."""
    lines = (Machine().read("/proc/cpuinfo") or "").splitlines()
    model_names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(model_names, "") or platform.processor()


@cache
def installed_gpus() -> tuple[str, ...]:
    """Names of this computer's NVIDIA GPUs as reported by `nvidia-smi`; empty without a driver."""
    output = Machine().run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or ""
    return tuple(line.strip() for line in output.splitlines() if line.strip())


def gpu_machine(gpu: GpuSpec, node: ClusterSpec | None, count: int) -> ClusterSpec:
    """Describe this computer as a cluster of one node with `count` GPUs. The links are those of the
    catalogue's `node` or, without one, PCIe through the host."""
    through_host = {"kind": "pcie", "bandwidth": f"{gpu.host_bandwidth or 0!r} B/s", "latency": _PCIE_LATENCY}
    links = node.links if node else Links.model_validate({"intra_node": through_host})
    machine = ClusterSpec(name=LOCAL, gpu=gpu, gpus_per_node=count, links=links, host_cores=os.cpu_count())
    memory = float(psutil.virtual_memory().total)
    update = {"host_memory": memory, "source": "this machine, as its driver reports it"}
    return machine.model_copy(update=update)
