"""The answer of `validate`: every run with its prediction, and how good each source's rows came out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import UnknownNameError
from cost_models.files.whole import write_whole
from cost_models.measured.validation.choices import ChoiceScore, choice_scores
from cost_models.measured.validation.figures import Figures
from cost_models.measured.validation.predicting import Prediction
from cost_models.measured.validation.scores import SourceScore, chance_ranges, score
from meshwright.plots.drawn import Drawing
from meshwright.records import JSON_SCHEMA
from meshwright.records.predictions import (
    choice_record,
    plot_subject,
    prediction_record,
    prediction_row,
    residual_frame,
    source_record,
    source_row,
)
from meshwright.render.runs.accuracy_page import AXES_PLOT, PREDICTED_PLOT, accuracy_page
from meshwright.render.runs.validation import STEP_HEADERS, step_cells, step_table, summary, validation_text
from meshwright.render.tables import Table

if TYPE_CHECKING:
    import pandas as pd

PAGE = "accuracy.md"
_KINDS = ("accuracy", "errors")


@dataclass(frozen=True, kw_only=True, repr=False)
class Validated:
    """Runs with their predictions, and the figures of each source."""

    predictions: tuple[Prediction, ...]
    """One for each row, in order; what could not be predicted says why."""
    anchors: int = 0
    """Rows of each sweep that calibrated its others."""
    figures: tuple[Figures, ...] = ()
    """What papers state beside the shipped tables, predicted; none of tables of one's own."""
    interrupted: bool = False
    """Ctrl-C left rows without a prediction."""

    @cached_property
    def sources(self) -> tuple[SourceScore, ...]:
        """The figures of every source, in order of first appearance."""
        return score(self.predictions)

    @cached_property
    def choices(self) -> tuple[ChoiceScore, ...]:
        """What choosing by the predictions costs within each source's sweeps."""
        return choice_scores(self.predictions)

    def to_frame(self) -> pd.DataFrame:
        """A row for each run: predicted and measured seconds and bytes, parts, assumptions, trust, reason skipped."""
        import pandas as pd

        return pd.DataFrame(self.rows)

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

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each run, flat."""
        return [prediction_row(one) for one in self.predictions]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "anchors": self.anchors,
            "rows": [prediction_record(one) for one in self.predictions],
            "sources": [source_record(one) for one in self.sources],
            "choices": [choice_record(one) for one in self.choices],
            "figures": [asdict(one) for one in self.figures],
            "chances": [asdict(one) for one in chance_ranges(self.predictions)],
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright validate` prints."""
        return tuple(validation_text(self.predictions, self.sources, self.choices, anchors=self.anchors))

    def save_page(self, folder: Path) -> None:
        """Write a page of it all, `accuracy.md`, with its plots into a folder."""
        (folder / PREDICTED_PLOT).parent.mkdir(parents=True, exist_ok=True)
        page = accuracy_page(
            self.predictions, self.sources, self.choices, anchors=self.anchors, figures=self.figures
        )
        write_whole(folder / PAGE, page)
        if not residual_frame(self.predictions).empty:
            self.plot("accuracy").save(folder / PREDICTED_PLOT)
            self.plot("errors").save(folder / AXES_PLOT)

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
