"""Validation: predicts runs that others timed, and says how far off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import UnknownNameError
from cost_models.files import catalog
from cost_models.files.whole import write_whole
from cost_models.measured.calibration.few_runs import anchor
from cost_models.measured.runs.cases import shipped_rows
from cost_models.measured.runs.rows import Row, read_rows
from cost_models.measured.validation.predictions import Figures, Prediction, predict, published_figures
from cost_models.measured.validation.scores import (
    ChoiceScore,
    SourceScore,
    brier_scores,
    chance_ranges,
    choice_scores,
    score,
)
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import grouped
from meshwright.inputs.problems import Problems
from meshwright.plots.drawn import Drawing
from meshwright.records import frame_of
from meshwright.render.tables import Table
from meshwright.verbs.contract.answer import AnswerBase
from meshwright.verbs.validate import ValidateOptions, records
from meshwright.verbs.validate.page import AXES_PLOT, PREDICTED_PLOT, accuracy_page
from meshwright.verbs.validate.text import step_table, summary, validation_text

if TYPE_CHECKING:
    import pandas as pd


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
        say = on_status or (lambda _: None)
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


def ask(runs: Sequence[str | Path], options: ValidateOptions) -> ValidateQuestion:
    """Read the tables of runs; without any, those that are shipped.

    Raises:
        InputError: a table, a stack or a profile cannot be read; everything that cannot, at once.
    """
    problems, stack, profile = Problems(), options.stack, options.profile
    tables = [problems.read(partial(read_rows, Path(path))) for path in runs] if runs else [shipped_rows()]
    problems.read(lambda: catalog.load_stack(stack) if stack else None)
    constants = problems.read(lambda: catalog.load_profile(profile) if isinstance(profile, str) else profile)
    problems.require()
    rows = tuple(row for table in tables for row in table or ())
    return ValidateQuestion(
        rows=rows, stack=stack, profile=constants, anchors=options.anchors, shipped=not runs
    )


PAGE = "accuracy.md"
_KINDS = ("accuracy", "errors")


@dataclass(frozen=True, kw_only=True, repr=False)
class Validated(AnswerBase):
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

    def sources_to_frame(self) -> pd.DataFrame:
        """A row for each source: errors of step time and memory, verdicts, order and regret; shares."""
        return frame_of([records.source_row(source) for source in self.sources])

    def plot(self, kind: str = "accuracy") -> Drawing:
        """Draw `accuracy` (predicted against measured) or `errors` (by part, axis, size and source).

        Raises:
            UnknownNameError: there is no such kind.
            ValueError: no run was both timed and predicted.
        """
        from meshwright.plots.measured.validation import errors_by_axis, predicted_against_measured

        if kind not in _KINDS:
            raise UnknownNameError("plot", kind, _KINDS)
        frame = records.residual_frame(self.predictions)
        if frame.empty:
            raise ValueError("no run was both timed and predicted")
        drawn = predicted_against_measured if kind == "accuracy" else errors_by_axis
        return Drawing(frame=frame, figure=drawn(frame, records.plot_subject(self.anchors)))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each run, flat."""
        return [records.prediction_row(one) for one in self.predictions]

    def document(self) -> dict[str, Any]:
        brier = brier_scores(self.predictions)
        return {
            "anchors": self.anchors,
            "rows": [records.prediction_record(one) for one in self.predictions],
            "sources": [records.source_record(one) for one in self.sources],
            "choices": [records.choice_record(one) for one in self.choices],
            "figures": [one.model_dump() for one in self.figures],
            "chances": [asdict(one) for one in chance_ranges(self.predictions)],
            "brier": brier and {"predicted": brier[0], "constant": brier[1]},
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        return tuple(validation_text(self.predictions, self.sources, self.choices, anchors=self.anchors))

    def save_page(self, folder: Path) -> None:
        """Write a page of it all, `accuracy.md`, with its plots into a folder."""
        (folder / PREDICTED_PLOT).parent.mkdir(parents=True, exist_ok=True)
        page = accuracy_page(
            self.predictions, self.sources, self.choices, anchors=self.anchors, figures=self.figures
        )
        write_whole(folder / PAGE, page)
        if not records.residual_frame(self.predictions).empty:
            self.plot("accuracy").save(folder / PREDICTED_PLOT)
            self.plot("errors").save(folder / AXES_PLOT)

    def __repr__(self) -> str:
        return f"{step_table(self.sources)}\n\n{summary(self.predictions, anchors=self.anchors)}"
