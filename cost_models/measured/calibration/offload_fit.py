"""What a host does for offloaded blocks, from microbenchmarks: seconds of its updates, rates of copies, what hides.

update     seconds of a parameter with the threads that the executor gives a rank, over the ranks of the host, which
           updated at once; on a CPU, which is its own host, of one rank
call       seconds of an update of next to nothing, after other work
overlap    (passes + updates − together) / passes, where updates outlast passes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.measured.calibration.curve_fits import rounded
from cost_models.measured.calibration.measurements import Measurement, select
from cost_models.specs.hardware import HostCopies, HostRates, HostUpdate


def host_constants(rows: Sequence[Measurement], *, ranks: int, is_cpu: bool) -> dict[str, Any]:
    """Constants of a profile by name; none where nothing of a host was measured.

    Args:
        rows: merged over the ranks.
        ranks: how many were measured at once.
        is_cpu: whether the devices are their own hosts, and update with one thread each.
    """
    measured = select(rows, "offload", "update")
    if not measured:
        return {}
    updates = tuple(
        HostUpdate(threads=row.shape[0], seconds=rounded(row.seconds / row.size)) for row in measured
    )
    chosen = updates[0] if is_cpu else updates[-1]
    return {
        "host_update_seconds": chosen.seconds if is_cpu else rounded(chosen.seconds / ranks),
        "host_call_seconds": rounded(_call(rows)),
        "host_overlap": rounded(_overlap(rows)),
        "host_rates": HostRates(updates=updates, copies=_copies(rows)),
    }


def _call(rows: Sequence[Measurement]) -> float:
    measured = select(rows, "offload", "call")
    return measured[0].seconds if measured else 0.0


def _overlap(rows: Sequence[Measurement]) -> float:
    passes, updates, together = (
        select(rows, "offload", name)[0].seconds for name in ("passes", "updates", "together")
    )
    return min(1.0, max(0.0, (passes + updates - together) / passes))


def _copies(rows: Sequence[Measurement]) -> tuple[HostCopies, ...]:
    """By ranks that copy at once."""
    rates: dict[int, dict[str, str]] = {}
    for way in ("down", "up", "both"):
        for row in select(rows, "offload", way):
            rates.setdefault(row.shape[0], {})[way] = f"{rounded(row.size / row.seconds)!r} B/s"
    return tuple(HostCopies.model_validate({"ranks": ranks, **rates[ranks]}) for ranks in sorted(rates))
