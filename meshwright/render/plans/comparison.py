"""A comparison as a table: one row per quantity, one column per plan, and the change of the last against the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cost_models.units import format_bytes, format_count, format_seconds
from meshwright.render.tables import Table, table
from meshwright.render.words import change, part_label, percent
from planner.explaining.compare import Line
from planner.explaining.differing import Difference

_FORMATS: dict[str, Callable[[float], str]] = {
    "seconds": format_seconds,
    "bytes": format_bytes,
    "share": percent,
    "tokens/s": format_count,
    "FLOP/s": format_count,
}
_TOTALS = ("step", "peak memory")


def comparison_table(lines: Sequence[Line]) -> Table:
    """Parts are indented under their totals; `change` sets the last plan against the first."""
    plans = len(lines[0].values)
    headers = ["", *[str(number) for number in range(1, plans + 1)], "change"]
    rows = [
        [_name(line), *[_cell(line, value) for value in line.values], _change(line)]
        for line in _ordered(lines)
    ]
    return table(headers, rows, words=("",))


def differences_table(differences: Sequence[Difference]) -> Table:
    """What the plans were asked differently, a row for each."""
    plans = [str(number) for number in range(1, len(differences[0].values) + 1)]
    rows = [(difference.what, *difference.values) for difference in differences]
    return table(["", *plans], rows, words=["", *plans])


def _cell(line: Line, value: float) -> str:
    return _FORMATS[line.unit](value) if value else "-"


def _ordered(lines: Sequence[Line]) -> list[Line]:
    """The step with its parts first, then what follows from it, then memory."""
    step, *rest = lines
    times = [line for line in rest if line.group == "time"]
    return [step, *times, *[line for line in rest if line.group != "time"]]


def _name(line: Line) -> str:
    is_part = line.group == "time" or (line.group == "memory" and line.name not in _TOTALS)
    return f"{'  ' * is_part}{part_label(line.name)}"


def _change(line: Line) -> str:
    """Shares in points, everything else relative; a part is measured against the plan's own part."""
    first, last = line.values[0], line.values[-1]
    if not line.comparable:
        return ""
    if line.unit == "share":
        points = 100 * (last - first)
        return f"{points:+.1f} pt" if abs(points) >= 0.05 else "same"
    return change(first, last) if first else "new" if last else "same"
