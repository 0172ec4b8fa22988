"""Keeps operands as cold as in a model: several copies of a call run in turn, their results kept for a round.

A call repeated on one set of operands finds them in the first cache, which no layer of a model does; on a CPU
that flatters matrix products by 5 to 10 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from executor.microbenchmarks.scale import Scale

_MOST_COPIES = 64

Call = Callable[[], object]


def copies(scale: Scale, call_bytes: float) -> int:
    """How many copies of a call that touches `call_bytes` overflow the cache next to the core."""
    return int(min(_MOST_COPIES, max(1.0, 1 + scale.cold_bytes // max(call_bytes, 1.0))))


def in_turn(calls: Sequence[Call]) -> Call:
    """One call that runs the next of `calls` each time; each result lives until its call's next turn.

    All have run once when it returns.
    """
    kept = [call() for call in calls]
    turn = 0

    def call() -> None:
        nonlocal turn
        kept[turn] = calls[turn]()
        turn = (turn + 1) % len(calls)

    return call
