"""The `local` cluster: this machine's CPU shared by processes, each standing for one device."""

from __future__ import annotations

import os

import psutil

from cost_models.specs.cluster import ClusterSpec

LOCAL = "local"
"""Catalogue name of the machine the program runs on."""


def this_machine(one_core: ClusterSpec, processes: int | None = None) -> ClusterSpec:
    """The catalogue's entry for one core, scaled to this machine and shared by `processes`.

    Default: one process on each physical core. Rates of the entry are placeholders for one core, not
    measurements: calibrate before believing a time. Memory is all the machine has, divided evenly.
    """
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    processes = processes or cores
    share = cores / processes
    memory = float(psutil.virtual_memory().total)
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
