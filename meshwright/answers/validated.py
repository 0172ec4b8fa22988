"""Predict runs that others timed from Python, and the answer: every row, and how good each source's rows came out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import UnknownNameError
from cost_models.evidence.calibration.anchors import anchor
from cost_models.evidence.rows.row import read_rows
from cost_models.evidence.rows.shipped import shipped_rows
from cost_models.evidence.validation.predicting import Prediction, predict
from cost_models.evidence.validation.scores import SourceScore, score
from cost_models.files import catalog
from cost_models.specs.hardware import HardwareProfile
from meshwright.plots.drawing import Drawing
from meshwright.records.predictions import plot_subject, prediction_row, residual_frame, source_row
from meshwright.render.runs.validation import STEP_HEADERS, step_cells, step_table, summary

if TYPE_CHECKING:
    import pandas as pd

_KINDS = ("accuracy", "errors")


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
    if stack is not None:
        catalog.load_stack(stack)
    constants = catalog.load_profile(profile) if isinstance(profile, str) else profile
    tables = [read_rows(Path(path)) for path in runs] if runs else [shipped_rows()]
    rows = [row for table in tables for row in table]
    predictions = anchor(predict(rows, stack=stack, profile=constants), anchors)
    return Validated(predictions=predictions, anchors=anchors)


@dataclass(frozen=True, kw_only=True, repr=False)
class Validated:
    """Runs with their predictions, and the figures of each source."""

    predictions: tuple[Prediction, ...]
    """One for each row, in order; what could not be predicted says why."""
    anchors: int = 0
    """Rows of each sweep that calibrated its others."""

    @cached_property
    def sources(self) -> tuple[SourceScore, ...]:
        """The figures of every source, in order of first appearance."""
        return score(self.predictions)

    def to_frame(self) -> pd.DataFrame:
        """A row for each run: predicted and measured seconds and bytes, parts, assumptions, trust, reason skipped."""
        import pandas as pd

        return pd.DataFrame([prediction_row(one) for one in self.predictions])

    def sources_to_frame(self) -> pd.DataFrame:
        """A row for each source: errors of step time and memory, verdicts, order and regret; shares."""
        import pandas as pd

        return pd.DataFrame([source_row(source) for source in self.sources])

    def plot(self, kind: str = "accuracy") -> Drawing:
        """Draw `accuracy` (predicted against measured) or `errors` (by part, axis, size and source).

        Raises:
            UnknownNameError: there is no such kind.
            ValueError: no run was both timed and predicted.
        """
        from meshwright.plots.validation import errors_by_axis, predicted_against_measured

        if kind not in _KINDS:
            raise UnknownNameError("plot", kind, _KINDS)
        frame = residual_frame(self.predictions)
        if frame.empty:
            raise ValueError("no run was both timed and predicted")
        drawn = predicted_against_measured if kind == "accuracy" else errors_by_axis
        return Drawing(frame=frame, figure=drawn(frame, plot_subject(self.anchors)))

    def __repr__(self) -> str:
        return f"{step_table(self.sources)}\n\n{self._summary()}"

    def _repr_html_(self) -> str:
        return f"{self._in_words().to_html(index=False, border=0)}<p>{self._summary()}</p>"

    def _in_words(self) -> pd.DataFrame:
        """The table of step times of `meshwright validate`."""
        import pandas as pd

        cells = [step_cells(source) for source in self.sources if source.step]
        return pd.DataFrame(cells, columns=list(STEP_HEADERS))

    def _summary(self) -> str:
        return summary(self.predictions, anchors=self.anchors)
