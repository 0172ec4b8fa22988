"""Lookups and updates of embedding rows → the shares of memory bandwidth that they reach, by row bytes and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.measured.calibration.curve_fits import rounded
from cost_models.measured.calibration.measurements import Measurement, select
from cost_models.recommender.prices.table_rates import change_bytes, lookup_bytes, sum_bytes
from cost_models.specs.table_rates import TablePoint, TableRates

LOOKUP, SUMS, CHANGE = "lookup", "sums", "change."
_FP32 = 4.0
_STATES = {"sgd": 0.0, "rowwise-adagrad": 0.0, "adagrad": 1.0, "adam": 2.0}
"""States of an element beside its weight."""
_ROW_STATES = {"rowwise-adagrad": 4.0}
"""Bytes of states of a row."""


def moved_bytes(name: str, shape: tuple[int, ...]) -> float:
    """Bytes that the price's formula has for a measurement: (row bytes, ids, bags, rows met), in fp32."""
    row_bytes, ids, bags, distinct = map(float, shape)
    if name == LOOKUP:
        return float(lookup_bytes(ids, row_bytes, bags * row_bytes))
    if name == SUMS:
        return float(sum_bytes(ids, row_bytes, distinct, row_bytes / _FP32))
    kind = name.removeprefix(CHANGE)
    return float(change_bytes(distinct, row_bytes * (1 + _STATES[kind]) + _ROW_STATES.get(kind, 0.0)))


def table_rates(rows: Sequence[Measurement], bandwidth: float, source: str) -> TableRates | None:
    """The rates of merged measurements, as shares of `bandwidth`; None where no table was measured."""
    found = select(rows, "table")
    if not found:
        return None

    def points(name: str) -> tuple[TablePoint, ...]:
        return tuple(
            TablePoint(
                row_bytes=one.shape[0],
                pooling=rounded(one.shape[1] / one.shape[2]),
                efficiency=rounded(one.size / one.seconds / bandwidth),
            )
            for one in select(found, "table", name)
        )

    kinds = dict.fromkeys(one.name.removeprefix(CHANGE) for one in found if one.name.startswith(CHANGE))
    return TableRates(
        lookup=points(LOOKUP),
        sums=points(SUMS),
        changes={kind: points(CHANGE + kind) for kind in kinds},
        source=source,
    )
