"""What would end a job sooner: one more spare, twice the storage, half the restart, rarer failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cost_models.errors import InfeasibleError
from cost_models.reliability.forecast import Forecast, forecast
from cost_models.specs.operations import OperationsSpec


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the operations, and the forecast with it."""

    what: str
    found: Forecast


def changes_of(found: Forecast) -> tuple[Change, ...]:
    """Every change that ends the job sooner by a thousandth at least, the best first; intervals are chosen again."""
    known = []
    for what, operations in _changed(found.operations):
        try:
            after = forecast(found.job, operations)
        except InfeasibleError:
            continue
        if after.seconds < found.seconds * (1 - _WORTH):
            known.append(Change(what, after))
    return tuple(sorted(known, key=lambda one: one.found.seconds))


_WORTH = 1e-3


def _changed(now: OperationsSpec) -> Iterator[tuple[str, OperationsSpec]]:
    if now.spares is not None:
        yield "one more spare node", now.model_copy(update={"spares": now.spares + 1})
    if now.spares is not None and now.spares:
        yield "twice the spare nodes", now.model_copy(update={"spares": 2 * now.spares})
    read = now.storage_read or now.storage_write
    faster = {"storage_write": 2 * now.storage_write, "storage_read": 2 * read}
    yield "twice the storage bandwidth", now.model_copy(update=faster)
    sooner = {"detection": now.detection / 2, "restart": now.restart / 2}
    yield "half the time to detect and restart", now.model_copy(update=sooner)
    yield "half as many failures", now.model_copy(update={"mtbf": 2 * now.mtbf})
    if not now.asynchronous:
        yield "writing to storage while training", now.model_copy(update={"asynchronous": True})
    if now.slow_hosts:
        yield "no slow hosts", now.model_copy(update={"slow_hosts": 0.0})
    if now.maintenance is not None:
        yield "no planned stops", now.model_copy(update={"maintenance": None})
