"""What makes a process or a pair slow on purpose: the calls that a doctor times, wrapped."""

from __future__ import annotations

import time

from executor.doctor.examine import LATENCY, LAUNCH, LINK, MATMUL, MEMORY
from executor.doctor.measuring import Call, Wrap

_ALONE = (MATMUL, MEMORY, LAUNCH)


def slow_process(rank: int, share: float) -> Wrap:
    """Everything that this rank does alone takes so much longer: it computes on for that share of each call's time."""

    def wrap(check: str, ranks: tuple[int, ...], call: Call) -> Call:
        if check not in _ALONE or ranks != (rank,):
            return call

        def slowed() -> None:
            began = time.thread_time()
            call()
            now = time.thread_time()
            until = now + share * (now - began)
            while time.thread_time() < until:
                pass

        return slowed

    return wrap


def delayed_pair(pair: tuple[int, int], seconds: float) -> Wrap:
    """Each message between these two comes so much later."""

    def wrap(check: str, ranks: tuple[int, ...], call: Call) -> Call:
        if check not in (LINK, LATENCY) or ranks != pair:
            return call

        def delayed() -> None:
            time.sleep(2 * seconds)  # there and back
            call()

        return delayed

    return wrap
