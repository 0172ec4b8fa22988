"""`validate`: predict runs that others published, and say how far off the predictions are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cost_models.specs import catalog
from cost_models.validation.anchors import anchor
from cost_models.validation.predicting import Prediction, predict
from cost_models.validation.rows import Row, read_rows
from cost_models.validation.scores import score
from cost_models.validation.shipped import shipped_rows
from meshwright.output import JSON_SCHEMA, Output, check_places
from meshwright.progress import progress
from meshwright.render.validation import validation_text
from meshwright.render.words import spaced
from meshwright.together import Together
from meshwright.validated import prediction_record, prediction_row, source_record


def validate(
    runs: Sequence[Path],
    *,
    stack: str | None,
    profile: str | None,
    anchors: int,
    output: Output,
) -> None:
    """Predict every row of the tables (none: the shipped one) and print the accuracy of each source.

    Raises:
        InputError: a table, a stack or a profile cannot be read, or the answer cannot be written.
    """
    together = Together()
    tables = [together.read(partial(read_rows, path)) for path in runs] if runs else [shipped_rows()]
    together.read(lambda: catalog.load_stack(stack) if stack else None)
    together.read(lambda: catalog.load_profile(profile) if profile else None)
    together.read(lambda: check_places(("--csv", output.csv)))
    together.require()
    rows = [row for table in tables for row in table or ()]
    predictions = anchor(_predicted(rows, stack, profile, output), anchors)
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
    )


def _predicted(
    rows: Sequence[Row], stack: str | None, profile: str | None, output: Output
) -> list[Prediction]:
    """One prediction a row, with a line that says how far it is."""
    predictions = []
    with progress(output) as reporter:
        for prediction in predict(rows, stack=stack, profile=profile):
            predictions.append(prediction)
            done = f"{spaced(len(predictions))}/{spaced(len(rows))}"
            reporter.say(f"predicting  {done} rows  {prediction.row.source}")
    return predictions
