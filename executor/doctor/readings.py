"""What the processes of an examination have measured: seconds of each check in several passes, and facts of hosts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cost_models.base import Spec
from executor.faults import results

MATMUL, MEMORY, LAUNCH, LINK, LATENCY = results.MATMUL, results.MEMORY, "launch", "link", "latency"
OF_RANKS = (MATMUL, MEMORY, LAUNCH)
"""Checks of each device on its own."""
OF_PAIRS = (LINK, LATENCY)
"""Checks of two devices: a large message there and back, and a small one."""


class Reading(Spec):
    """One check of one process, or of a pair of them."""

    check: str
    ranks: tuple[int, ...]
    """The process, or both of them."""
    seconds: tuple[float, ...]
    """The least of each pass: what else runs on a machine only adds."""
    work: float
    """FLOPs, bytes or calls in these seconds."""

    @property
    def least(self) -> float:
        """The fastest pass: other load on the machine only adds time."""
        return min(self.seconds)

    @property
    def noise(self) -> float:
        """How far the least can be from what it would be on an empty machine, as a share of it.

        The lower quartile tells: others on a machine make passes longer by any amount, and would make a deviation of
        all passes as large, but a least that the next ones are near to is what the device does.
        """
        if len(self.seconds) < 2:
            return 0.0
        return statistics.quantiles(self.seconds, n=4, method="inclusive")[0] / self.least - 1


class HostFacts(Spec):
    """Facts that a process reads about its host and device."""

    rank: int
    host: str
    device: str
    cores: int
    """Cores that the process may use."""
    free_bytes: int
    """Free memory of the device; where that is the host, the process's share of it."""
    clock: float | None = None
    """Hz of the device now; None where nobody says."""
    load: float = 0.0
    """Processes that want a core of the host, on average over a minute."""


class Examination(Spec):
    """Everything that was measured."""

    backend: str
    hosts: tuple[HostFacts, ...]
    """In the order of ranks."""
    readings: tuple[Reading, ...]
    wrong: tuple[results.Wrong, ...] = ()
    seconds: float = 0.0
    """It took so long."""

    def of(self, check: str) -> list[Reading]:
        """The readings of one check."""
        return [reading for reading in self.readings if reading.check == check]


def noise_of(readings: Sequence[Reading]) -> float:
    """The noise width of a check: that of the median reading."""
    return statistics.median(reading.noise for reading in readings)
