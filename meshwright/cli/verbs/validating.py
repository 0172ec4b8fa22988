"""`validate`: predict runs that others published, and say how far off the predictions are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cost_models.errors import InputError, Problem
from cost_models.evidence.calibration.anchors import anchor
from cost_models.evidence.rows.row import Row, read_rows
from cost_models.evidence.rows.shipped import shipped_rows
from cost_models.evidence.validation.predicting import Prediction, predict
from cost_models.evidence.validation.scores import SourceScore, score
from cost_models.files import catalog
from cost_models.files.whole import write_whole
from cost_models.units import counted, grouped
from meshwright.cli.output import Output, check_places
from meshwright.cli.progress import progress
from meshwright.inputs.problems import Problems
from meshwright.records import JSON_SCHEMA
from meshwright.records.predictions import (
    plot_subject,
    prediction_record,
    prediction_row,
    residual_frame,
    source_record,
)
from meshwright.render.runs.accuracy_page import AXES_PLOT, PREDICTED_PLOT, accuracy_page
from meshwright.render.runs.validation import validation_text

PAGE = "accuracy.md"


def validate(
    runs: Sequence[Path],
    *,
    stack: str | None,
    profile: str | None,
    anchors: int,
    folder: Path | None,
    output: Output,
) -> None:
    """Predict every row of the tables (none: the shipped ones) and print the accuracy of each source.

    With a `folder`, a page of it all with its plots is written there.

    Raises:
        InputError: a table, a stack or a profile cannot be read, or the answer cannot be written.
    """
    problems = Problems()
    tables = [problems.read(partial(read_rows, path)) for path in runs] if runs else [shipped_rows()]
    problems.read(lambda: catalog.load_stack(stack) if stack else None)
    problems.read(lambda: catalog.load_profile(profile) if profile else None)
    problems.read(lambda: check_places(("--csv", output.csv)))
    problems.read(lambda: _check_folder(folder))
    problems.require()
    rows = [row for table in tables for row in table or ()]
    predictions, interrupted = _predicted(rows, stack, profile, anchors, output)
    sources = score(predictions)
    output.answer(
        {
            "schema": JSON_SCHEMA,
            "anchors": anchors,
            "rows": [prediction_record(one) for one in predictions],
            "sources": [source_record(one) for one in sources],
        },
        [prediction_row(one) for one in predictions],
        *validation_text(predictions, sources, anchors=anchors),
        files=[]
        if folder is None or interrupted
        else [lambda: _write_page(folder, predictions, sources, anchors)],
    )
    if interrupted:
        kept = "" if folder is None else f"; {folder / PAGE} is left as it was"
        output.end_interrupted(
            f"{grouped(len(predictions))} of {counted(len(rows), 'row')} were predicted{kept}"
        )
    if folder is not None:
        output.note(f"Wrote {folder / PAGE}")


def _predicted(
    rows: Sequence[Row], stack: str | None, profile: str | None, anchors: int, output: Output
) -> tuple[tuple[Prediction, ...], bool]:
    """One prediction a row, with a line that says how far it is; whether Ctrl-C left rows without one."""
    predictions: list[Prediction] = []
    with progress(output) as reporter:
        try:
            for prediction in predict(rows, stack=stack, profile=profile):
                predictions.append(prediction)
                done = f"{grouped(len(predictions))}/{grouped(len(rows))}"
                reporter.say(f"predicting  {done} rows  {prediction.row.source}")
        except KeyboardInterrupt:
            if not predictions or anchors:
                raise
            return tuple(predictions), True
        return anchor(
            predictions, anchors, on_sweep=lambda done, of: reporter.say(f"calibrating  {done}/{of} sweeps")
        ), False


def _check_folder(folder: Path | None) -> None:
    """Say before the work what could not be written after it."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise InputError("the answer cannot be written", problems=[Problem(f"-o {folder}", "is no folder")])
    check_places(("-o", folder / PAGE if folder.exists() else folder))


def _write_page(
    folder: Path, predictions: Sequence[Prediction], sources: Sequence[SourceScore], anchors: int
) -> None:
    """`accuracy.md` with its plots."""
    from meshwright.plots.parts.style import save
    from meshwright.plots.validation import errors_by_axis, predicted_against_measured

    page = folder / PAGE
    (folder / PREDICTED_PLOT).parent.mkdir(parents=True, exist_ok=True)
    write_whole(page, accuracy_page(predictions, sources, anchors=anchors))
    frame = residual_frame(predictions)
    if len(frame):
        subject = plot_subject(anchors)
        save(predicted_against_measured(frame, subject), folder / PREDICTED_PLOT)
        save(errors_by_axis(frame, subject), folder / AXES_PLOT)
