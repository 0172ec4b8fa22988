"""One run: every part of the step and of the memory as predicted, beside it as measured."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meshwright.plots.parts import style, ticks
from meshwright.plots.parts.diagonal import BAND
from meshwright.plots.parts.style import Frame
from meshwright.records.runs import ComparedQuantity
from meshwright.render.measured import SHARES, error_text, quantity_label, quantity_text
from meshwright.render.words import size_unit, time_unit

_STEP = "step_seconds"
_TOTALS = (
    _STEP,
    "thread_cpu_seconds",
    "peak_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "host_memory_bytes",
    "host_link_seconds",
    "host_update_seconds",
    "drive_bytes",
    "drive_read_bytes",
    "drive_written_bytes",
    "drive_transfer_seconds",
)
"""Quantities that are not parts of another one."""
_MAX_ROWS = 20
"""Of a chart: of more, those that differ most, in the order they came in."""
_SIDES = (("predicted", style.BLUE, -0.19), ("measured", style.ORANGE, 0.19))
"""Column, its colour, and where its bar lies beside the middle of the row."""
_BAR = 0.34
_LEAST_SHARE = 0.002
"""Of the largest bar of a chart: where both sides are smaller there is nothing to see."""


def one_run(frame: Frame, subject: str) -> Figure:
    """Times on the left, memory on the right, a pair of bars for each quantity and the error behind it.

    Args:
        frame: a row per quantity with `label`, `quantity`, `predicted`, `measured` (base units).
        subject: where the run comes from.
    """
    lines = [
        ComparedQuantity(str(row["quantity"]), float(row["predicted"]), float(row["measured"]))
        for _, row in frame.iterrows()
    ]
    charts = {
        "time of one step": _shown([line for line in lines if "_seconds" in line.quantity]),
        "memory of the fullest device": _shown([line for line in lines if "_bytes" in line.quantity]),
    }
    drawn = {name: some for name, some in charts.items() if some}
    rows = max(len(some) for some in drawn.values())
    with style.sheet(5.2 * len(drawn) if len(drawn) > 1 else 6.6, 1.9 + 0.42 * rows) as figure:
        for axes, (name, some) in zip(
            figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True
        ):
            _pairs(axes, name, some, rows)
        label = str(frame["label"].iloc[0])
        style.put_title(figure, _finding(lines), "; ".join([f"{label} in {subject}", *_rates(lines)]))
    return figure


def _shown(lines: list[ComparedQuantity]) -> list[ComparedQuantity]:
    """What is large enough to see; of too many rows those that differ most."""
    least = _LEAST_SHARE * max((max(line.predicted, line.measured) for line in lines), default=0.0)
    some = [line for line in lines if max(line.predicted, line.measured) > least]
    by_miss = sorted(some, key=lambda line: (line.quantity not in _TOTALS, -abs(_miss(line))))
    kept = by_miss[:_MAX_ROWS]
    return [line for line in some if line in kept]


def _pairs(axes: Axes, name: str, lines: list[ComparedQuantity], rows: int) -> None:
    largest = max(max(line.predicted, line.measured) for line in lines)
    unit, scale = (size_unit if "_bytes" in lines[0].quantity else time_unit)(largest)
    reach = largest / scale
    for row, line in enumerate(lines):
        total = line.quantity in _TOTALS or line.quantity.startswith("peak_bytes")
        for side, colour, shift in _SIDES:
            value = getattr(line, side)
            axes.barh(row + shift, value / scale, height=_BAR, color=colour)
            said = f"  {quantity_text(line.quantity, value)}" + (f" {side}" if row == 0 else "")
            axes.text(
                value / scale, row + shift, said, va="center", size=7.5, weight="bold" if total else "normal"
            )
        far = line.measured <= 0 or abs(_miss(line)) > BAND * line.measured
        axes.text(
            1.0,
            row,
            error_text(line),
            transform=axes.get_yaxis_transform(),
            ha="right",
            va="center",
            weight="bold" if far else "normal",
            color=style.VERMILION if far else style.SOFT,
        )
    axes.set_yticks(range(len(lines)), [quantity_label(line.quantity) for line in lines])
    for tick, line in zip(axes.get_yticklabels(), lines, strict=True):
        tick.set_fontweight("bold" if line.quantity in _TOTALS else "normal")
    axes.set_ylim(rows - 0.4, -0.6)
    axes.set_xlim(0, 1.62 * reach)
    ticks.measure(axes, "x", f"{name} ({unit})")


def _miss(line: ComparedQuantity) -> float:
    return line.predicted - line.measured


def _rates(lines: list[ComparedQuantity]) -> list[str]:
    """Shares and rates, which have no bar, in words."""
    return [
        f"{quantity_label(line.quantity)} {quantity_text(line.quantity, line.predicted)} predicted, "
        f"{quantity_text(line.quantity, line.measured)} measured ({error_text(line)})"
        for line in lines
        if line.quantity in (SHARES[0], "tokens_per_second")
    ]


def _finding(lines: list[ComparedQuantity]) -> str:
    """How far off the step is, and which part of it is to blame most."""
    step = next(line for line in lines if line.quantity == _STEP)
    words = (
        f"Step predicted {_text(step, 'predicted')}, measured {_text(step, 'measured')}: {error_text(step)}"
    )
    parts = [line for line in lines if "_seconds" in line.quantity and line.quantity not in _TOTALS]
    if not parts:
        return words
    worst = max(parts, key=lambda line: abs(_miss(line)))
    return (
        f"{words}; furthest off is {quantity_label(worst.quantity)}, "
        f"{_text(worst, 'predicted')} against {_text(worst, 'measured')}"
    )


def _text(line: ComparedQuantity, side: str) -> str:
    return quantity_text(line.quantity, getattr(line, side))
