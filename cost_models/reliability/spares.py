"""Spare nodes: how often a failure finds none left, and how long the job then waits.

Nodes leave one at a time and are back after a repair, on average ρ = repair / M of them are away. With S spares the job
stands still while S + 1 are away; failures do not come while it stands. That is a system of S + 1 servers whose calls
are lost when all are busy (Erlang 1917): the share of time with n away is ρⁿ/n! of the sum over 0 ≤ n ≤ S + 1.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What too few spare nodes cost."""

    chance: float
    """Chance that a failure finds no spare."""
    seconds: float
    """Mean wait of one that finds none; exponential."""

    @property
    def each(self) -> float:
        """Mean seconds of waiting for each failure."""
        return self.chance * self.seconds


NO_WAITING = Waiting(chance=0.0, seconds=0.0)


def waiting(spares: int | None, repair: float, between: float) -> Waiting:
    """Waiting with so many spares where nodes leave every `between` seconds of running; None: there is always one."""
    if spares is None:
        return NO_WAITING
    return Waiting(chance=blocked(spares, repair / between), seconds=repair / (spares + 1))


def blocked(servers: int, load: float) -> float:
    """Erlang's B: the chance that a call finds all servers busy, of those that come while fewer or as many are."""
    blocking = 1.0
    for busy in range(1, servers + 1):
        blocking = load * blocking / (busy + load * blocking)
    return blocking
