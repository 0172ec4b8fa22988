"""A run as text: one live line per step, and predicted beside measured at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.table import Table

from cost_models.units import format_bytes, format_count, format_seconds
from meshwright.render.tables import table
from meshwright.render.words import percent

_SHARES = ("mfu", "hfu")


class Compared(Protocol):
    """One quantity of a run in base units; the end of its name (`_seconds`, `_bytes`) says which."""

    @property
    def quantity(self) -> str:
        """E.g. `step_seconds`, `peak_bytes rank 0`, `mfu`."""

    @property
    def predicted(self) -> float | None:
        """None where the model does not speak of it."""

    @property
    def measured(self) -> float | None:
        """None where it could not be measured."""


class Step(Protocol):
    """One step of a run."""

    @property
    def step(self) -> int:
        """From 1."""

    @property
    def loss(self) -> float:
        """Mean over the batch."""

    @property
    def seconds(self) -> float:
        """Wall time."""

    @property
    def mfu(self) -> float:
        """Share of peak."""


def step_line(step: Step, predicted_seconds: float, predicted_mfu: float) -> str:
    """ "step 12  loss 3.412  1.24 s (predicted 1.20 s)  MFU 41.0 % (42.3 %)" """
    return (
        f"step {step.step:>4}  loss {step.loss:.4f}  {format_seconds(step.seconds)} "
        f"(predicted {format_seconds(predicted_seconds)})  MFU {percent(step.mfu)} ({percent(predicted_mfu)})"
    )


def comparison_table(lines: Sequence[Compared]) -> Table:
    """Predicted beside measured; shares differ in points, everything else relative to what was measured."""
    rows = [
        (
            _label(line.quantity),
            _value(line.quantity, line.predicted),
            _value(line.quantity, line.measured),
            _error(line),
        )
        for line in lines
    ]
    return table(("", "predicted", "measured", "error"), rows, words=("",))


def _label(quantity: str) -> str:
    """`thread_cpu_seconds` → "thread cpu"; the unit is in the value."""
    words = quantity.replace("_seconds", "").replace("_bytes", "").replace("_", " ")
    return words.upper() if quantity in _SHARES else words


def _value(quantity: str, value: float | None) -> str:
    if value is None:
        return "-"
    if quantity in _SHARES:
        return percent(value)
    if "_seconds" in quantity:
        return format_seconds(value)
    if "_bytes" in quantity:
        return format_bytes(value)
    return format_count(value)


def _error(line: Compared) -> str:
    if line.predicted is None or not line.measured:
        return "-"
    if line.quantity in _SHARES:
        return f"{100 * (line.predicted - line.measured):+.1f} pt"
    return f"{line.predicted / line.measured - 1:+.1%}".replace("%", " %")
