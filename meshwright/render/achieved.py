"""Tables of products and collectives of traces: what they reached, beside what the profile expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.measured.traces.job import Achieved
from cost_models.units import format_bandwidth, format_bytes, format_seconds, grouped
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped

TABLES = ("products", "collectives")
"""Kinds of kernels that have a table."""
_SHOWN = 20
_TERA = 1e12


def achieved_rows(found: Sequence[Achieved]) -> list[dict[str, Any]]:
    """A record for each, in base units."""
    return [
        {name: value for name, value in one._asdict().items() if value != ""} | {"excess_seconds": one.excess}
        for one in found
    ]


def achieved_text(kind: str, found: Sequence[Achieved]) -> tuple[str | Table, ...]:
    """One of `TABLES` in words."""
    if not found:
        why = "with record_shapes=True a trace tells shapes" if kind == TABLES[0] else "none communicates"
        return (f"The traces tell no {kind}: {why}",)
    shown = found[:_SHOWN]
    cells = _product if kind == TABLES[0] else _collective
    more = f"; {grouped(len(found) - len(shown))} more in --json" if len(found) > len(shown) else ""
    note = f"(expected: by the profile; times: as long as that; those first that lose most{more})"
    headers = _HEADERS[kind]
    return table(headers, [cells(one) for one in shown], words=headers[:1]), wrapped(note, indent=" ")


_HEADERS = {
    "products": ("rows x inner x columns", "count", "each", "expected", "times", "TFLOP/s"),
    "collectives": ("axis, operation", "ranks", "size", "count", "each", "expected", "times", "rate"),
}


def _product(one: Achieved) -> tuple[str, ...]:
    return (one.what, grouped(one.kernels), *_times(one), f"{one.rate / _TERA:.1f}")


def _collective(one: Achieved) -> tuple[str, ...]:
    size = format_bytes(one.message_bytes) if one.message_bytes else "-"
    rate = format_bandwidth(one.rate) if one.rate else "-"
    what = f"{one.axis} {one.what.replace('_', '-')}"
    return (what, grouped(one.ranks), size, grouped(one.kernels), *_times(one), rate)


def _times(one: Achieved) -> tuple[str, str, str]:
    if not one.predicted:
        return format_seconds(one.seconds), "-", "-"
    return format_seconds(one.seconds), format_seconds(one.predicted), f"{one.seconds / one.predicted:.2f}"
