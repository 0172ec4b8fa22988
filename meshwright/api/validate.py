"""Validation: predicts runs that others timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cost_models.files import catalog
from cost_models.measured.calibration.anchors import anchor
from cost_models.measured.runs.rows import Row, read_rows
from cost_models.measured.runs.shipped import shipped_rows
from cost_models.measured.validation.figures import published_figures
from cost_models.measured.validation.predicting import Prediction, predict
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import grouped
from meshwright.answers.validated import Validated
from meshwright.inputs.problems import Problems


def validate(
    *runs: str | Path,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    anchors: int = 0,
) -> Validated:
    """Predict every row of the tables (none: the shipped ones) and compare.

    `anchors` timed rows of each sweep calibrate its others, and are no predictions then.

    Raises:
        InputError: a table, a stack or a profile cannot be read.
    """
    if anchors < 0:
        raise ValueError(f"anchors is {anchors}, and must not be negative")
    return ask(runs, stack=stack, profile=profile, anchors=anchors).answer()


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateQuestion:
    """Rows that were read: what is left is to predict them."""

    rows: tuple[Row, ...]
    stack: str | None
    profile: HardwareProfile | None
    anchors: int
    shipped: bool = False
    """Whether they are the shipped tables."""

    def answer(
        self, *, on_status: Callable[[str], None] | None = None, keep_on_interrupt: bool = False
    ) -> Validated:
        """Predict every row; with `keep_on_interrupt`, Ctrl-C leaves the rows predicted so far."""
        say = on_status or _silent
        found: list[Prediction] = []
        try:
            for prediction in predict(self.rows, stack=self.stack, profile=self.profile):
                found.append(prediction)
                done = f"{grouped(len(found))}/{grouped(len(self.rows))}"
                say(f"predicting  {done} rows  {prediction.row.source}")
        except KeyboardInterrupt:
            if not keep_on_interrupt or not found or self.anchors:
                raise
            return Validated(predictions=tuple(found), anchors=self.anchors, interrupted=True)
        anchored = anchor(
            found, self.anchors, on_sweep=lambda done, of: say(f"calibrating  {done}/{of} sweeps")
        )
        figures = published_figures() if self.shipped and self.stack is None and self.profile is None else ()
        return Validated(predictions=anchored, anchors=self.anchors, figures=figures)


def ask(
    runs: Sequence[str | Path],
    *,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    anchors: int = 0,
) -> ValidateQuestion:
    """Read the tables of runs; without any, those that are shipped.

    Raises:
        InputError: a table, a stack or a profile cannot be read; everything that cannot, at once.
    """
    problems = Problems()
    tables = [problems.read(partial(read_rows, Path(path))) for path in runs] if runs else [shipped_rows()]
    problems.read(lambda: catalog.load_stack(stack) if stack else None)
    constants = problems.read(lambda: catalog.load_profile(profile) if isinstance(profile, str) else profile)
    problems.require()
    rows = tuple(row for table in tables for row in table or ())
    return ValidateQuestion(rows=rows, stack=stack, profile=constants, anchors=anchors, shipped=not runs)


def _silent(_: str) -> None:
    """Tell nobody."""
