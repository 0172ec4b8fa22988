"""Validation of recommenders: predicts runs that others timed, and says how far off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from cost_models.measured.validation.recommenders import (
    RecommenderPrediction,
    RecommenderScore,
    predict,
    read_runs,
    scores,
)
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped
from meshwright.terminal.answers import Answer


def predict_runs(runs: Sequence[str | Path]) -> ValidatedRecommenders:
    """Predict every row of the tables (none: the shipped one), in the shipped one's columns, and compare.

    Raises:
        InputError: a table cannot be read.
    """
    tables = [read_runs(Path(path)) for path in runs] or [read_runs()]
    return ValidatedRecommenders(predictions=tuple(predict(run) for rows in tables for run in rows))


_HEADERS = ("framework", "GPU", "timed", "median", "worst", "memory", "out of memory")


class ValidatedRecommenders(Answer):
    """Runs of recommenders with their predictions."""

    predictions: tuple[RecommenderPrediction, ...]

    @cached_property
    def scores(self) -> tuple[RecommenderScore, ...]:
        """Medians by framework and GPU."""
        return scores(self.predictions)

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for each run, flat."""
        return [_row(one) for one in self.predictions]

    def document(self) -> dict[str, Any]:
        scores = [asdict(one) for one in self.scores]
        return {"rows": self.rows, "frameworks": scores}

    def view(self) -> Iterator[str | Table]:
        yield wrapped(
            "Runs of recommenders (errors are predicted / measured - 1, of step times and of the first GPU's memory)"
        )
        yield table(_HEADERS, [_cells(one) for one in self.scores], words=("framework", "GPU"))
        if shares := _exchange_shares(self.predictions):
            listing = ", ".join(f"{share:.0%} on {gpus} GPUs" for gpus, share in shares.items())
            exchanges = "exchanges of vectors and gradients are predicted to take"
            yield wrapped(f"Of MLPerf's steps, {exchanges} {listing}.")


def _row(prediction: RecommenderPrediction) -> dict[str, Any]:
    run, question = prediction.run, prediction.run.question
    return {
        "row": run.row,
        "framework": run.framework,
        "gpu": question.cluster.gpu.name,
        "gpus": question.cluster.num_gpus,
        "global_batch": question.training.global_batch,
        "sharding": str(run.sharding),
        "predicted_seconds": prediction.seconds,
        "measured_seconds": run.seconds,
        "error": prediction.error,
        "error_without_evaluations": prediction.training_error,
        **{f"{stage} seconds": seconds for stage, seconds in prediction.estimate.stages.items()},
        "predicted_bytes": float(prediction.estimate.device_bytes[0]),
        "measured_bytes": run.memory_bytes,
        "memory_error": prediction.memory_error,
        "predicted_to_fit": prediction.estimate.fits,
        "ran_out_of_memory": run.out_of_memory,
    }


def _cells(score: RecommenderScore) -> tuple[str, ...]:
    memory = f"{score.median_memory_error:.1%}" if score.median_memory_error is not None else "-"
    full, caught = score.out_of_memory
    off = f"{score.median_error:.1%}", f"{score.worst_error:.0%}", memory
    return (score.framework, score.gpu, str(score.runs), *off, f"{caught} of {full} caught" if full else "-")


def _exchange_shares(predictions: tuple[RecommenderPrediction, ...]) -> dict[int, float]:
    """Share of the step that the exchange of embeddings takes in MLPerf's runs, by number of GPUs."""
    return {
        prediction.run.question.cluster.num_gpus: prediction.exchange_share
        for prediction in sorted(predictions, key=lambda prediction: prediction.run.question.cluster.num_gpus)
        if prediction.run.training_seconds is not None
    }
