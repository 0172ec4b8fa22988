"""The processes of a run's ranks, to be killed."""

from __future__ import annotations

import psutil


def ranks_here() -> dict[int, psutil.Process]:
    """Rank → its process, of those that this process's torchrun started."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if "executor.launch.rank" in process.cmdline() and "RANK" in (environment := process.environ()):
                found[int(environment["RANK"])] = process
        except psutil.Error:
            continue
    return found
