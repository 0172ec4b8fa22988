"""Collectives are timed as a step has them: behind compute, and without the wait for the process that comes last."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from cost_models.measured.calibration.microbenchmarks import collective_curves
from executor.microbenchmarks.links import collectives
from executor.microbenchmarks.stopwatch import Stopwatch, scale_of

LATE = 0.2


def timed() -> tuple[float, int]:
    """Seconds of a barrier for which the second process always comes late, and how often it was."""
    import torch.distributed as dist

    came: list[int] = []

    def aside() -> None:
        came.append(1)
        time.sleep(LATE * dist.get_rank())

    watch = Stopwatch(device=torch.device("cpu"), budget_seconds=1e-3)
    timing = watch.elapsed(dist.barrier, 3, aside=aside, group=dist.group.WORLD)
    return timing.seconds, len(came)


def measured() -> list[tuple[str, float]]:
    """What each process measures of small messages."""
    watch = Stopwatch(device=torch.device("cpu"), budget_seconds=1e-3)
    scale = replace(scale_of("cpu", quick=True), messages=(2**10, 2**12))
    rows = list(collectives(watch, scale))
    assert all(curve.behind_compute for curve in collective_curves(rows, behind_compute=True))
    return [(row.name, row.seconds) for row in rows]


def test_a_wait_for_the_last_is_no_part_of_a_collective(processes) -> None:
    first, second = processes.run(2, timed)
    assert first == second
    assert first[0] < LATE / 2
    assert first[1] == 3


def test_processes_measure_one_time_of_each_collective(processes) -> None:
    """That of the one that came last, behind products."""
    first, second = processes.run(2, measured)
    assert first == second
    assert {name for name, _ in first} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"}
