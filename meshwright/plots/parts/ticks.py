"""Ticks as people write numbers: 64 rather than 2⁶, one unit along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from cost_models.units import grouped
from meshwright.plots.parts.style import quiet_axis

_DENSITIES = (
    (2.5, (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0)),
    (30.0, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)),
    (300.0, (1.0, 2.0, 5.0)),
)
"""Largest ratio of an axis' ends → ticks of a decade; one of a decade beyond."""
_SCALES = ((1e12, "trillion "), (1e9, "billion "), (1e6, "million "), (1e3, "thousand "))
_APART = 0.055
"""Least distance of two ticks with numbers of GPUs, as a share of the axis."""


def written(value: float, _position: int | None = None) -> str:
    """A tick: 64, 1,024, 0.5."""
    return grouped(round(value)) if abs(value) >= 1 and math.isclose(value, round(value)) else f"{value:g}"


def measure(axes: Axes, along: Literal["x", "y"], name: str) -> None:
    """The axis along which a chart is read: what it measures, plain numbers, and the only grid lines."""
    axis = axes.xaxis if along == "x" else axes.yaxis
    axis.set_label_text(name)
    linear(axis)
    quiet_axis(axes, grid=along)


def linear(axis: Axis) -> None:
    """A few round numbers."""
    axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(written))


def logarithmic(axis: Axis, low: float, high: float) -> None:
    """Round numbers of each decade, more where there are few decades between the ends. The scale is set already."""
    steps = next((steps for ratio, steps in _DENSITIES if high < ratio * low), (1.0,))
    axis.set_major_locator(LogLocator(subs=steps))
    axis.set_major_formatter(FuncFormatter(written))
    axis.set_minor_locator(NullLocator())


def numbers_of_gpus(
    axes: Axes, counts: Sequence[int], *, along: str = "x", apart: float = _APART
) -> list[int]:
    """A logarithmic axis with ticks at these numbers, at the ends and at as many others as have room; says which."""
    axis: Axis = getattr(axes, f"{along}axis")
    getattr(axes, f"set_{along}scale")("log", base=2)
    shown = _apart(sorted(set(counts)), apart)
    axis.set_major_locator(FixedLocator(shown))
    axis.set_major_formatter(FuncFormatter(written))
    axis.set_minor_locator(NullLocator())
    return shown


def _apart(counts: Sequence[int], share: float) -> list[int]:
    """The first, the last, and those between that are far enough from the one before and from the last."""
    least = share * math.log(counts[-1] / counts[0]) if len(counts) > 1 else 0.0
    shown = [counts[0]]
    for count in counts[1:-1]:
        if min(math.log(count / shown[-1]), math.log(counts[-1] / count)) >= least:
            shown.append(count)
    return [*shown, counts[-1]] if len(counts) > 1 else shown


def unit_of(largest: float) -> tuple[str, float]:
    """The word before a unit, and what it stands for, so that ticks up to `largest` are short: ("million ", 1e6)."""
    return next(((word, scale) for scale, word in _SCALES if largest >= 2 * scale), ("", 1.0))
