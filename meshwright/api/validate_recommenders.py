"""Validation of recommenders: predicts runs that others timed."""

from __future__ import annotations

from pathlib import Path

from cost_models.measured.runs.recommenders import read_runs
from cost_models.measured.validation.recommenders import predict
from meshwright.answers.validated_recommenders import ValidatedRecommenders


def validate_recommenders(*runs: str | Path) -> ValidatedRecommenders:
    """Predict every row of the tables (none: the shipped one), in the shipped one's columns, and compare.

    Raises:
        InputError: a table cannot be read.
    """
    tables = [read_runs(Path(path)) for path in runs] or [read_runs()]
    return ValidatedRecommenders(predictions=tuple(predict(run) for rows in tables for run in rows))
