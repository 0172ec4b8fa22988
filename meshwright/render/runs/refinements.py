"""A profile moved by runs as text: what each run says of it before and after, and what moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cost_models.units import format_seconds
from meshwright.render.tables import Table, table
from meshwright.render.words import part_label, percent, sentence_list, wrapped

_QUANTITIES = {"step_seconds": "step", "thread_cpu_seconds": "thread cpu"}
RUN_HEADERS = ("run", "quantity", "measured", "before", "after", "noise")
_SILENT = 0.05
"""Share of what was uncertain about a factor below which the runs say nothing of it."""


def refinement_text(
    runs: Sequence[dict[str, Any]], factors: Sequence[dict[str, Any]]
) -> Iterator[str | Table]:
    """The runs, before and after; then the factors that they settle at least a little."""
    yield runs_table(runs)
    yield "(before: of the plan that ran; noise: what the middle half of its steps spans)"
    told = [record for record in factors if record["told"] >= _SILENT]
    if told:
        yield ""
        yield table(
            ("seconds of", "factor", "90 % interval", "told"),
            [_factor_cells(record) for record in told],
            words=("seconds of",),
        )
        yield wrapped(
            "(factor: of what was measured apart; told: share of what was uncertain about it that the runs"
            " settle)",
            indent=" ",
        )
    if silent := [part_label(one["kind"]) for one in factors if one["told"] < _SILENT]:
        yield wrapped(f"The runs say nothing of {sentence_list(silent)}")


def runs_table(runs: Sequence[dict[str, Any]]) -> Table:
    """What was measured, and how far off the plan that ran and the moved profile are."""
    rows = [run_cells(record) for record in runs]
    return table(RUN_HEADERS, rows, words=("run",), names=("quantity",))


def run_cells(record: dict[str, Any]) -> list[str]:
    """One run and quantity, in words."""
    return [
        record["layout"],
        _QUANTITIES[record["quantity"]],
        format_seconds(record["measured"]),
        *(f"{record[when]:+.1%}".replace("%", " %") for when in ("before", "after")),
        percent(record["noise"]),
    ]


def _factor_cells(record: dict[str, Any]) -> list[str]:
    return [
        part_label(record["kind"]),
        f"x {record['factor']:.2f}",
        f"{record['low']:.2f}-{record['high']:.2f}",
        f"{record['told']:.0%}".replace("%", " %"),
    ]
