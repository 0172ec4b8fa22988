"""Predicted against published: training runs that others timed, in our own schema, and what the model says of them.

`data/published/runs.csv` holds figures with their source; nothing in it was measured by this project.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from cost_models.asking import ask
from cost_models.estimate import Estimate
from cost_models.estimating import estimate
from cost_models.question import Question
from cost_models.specs.layout import Layout, parse_layout
from cost_models.specs.loading import resolve_cluster
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

_SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One run that somebody timed."""

    run: str
    source: str
    question: Question
    layout: Layout
    step_seconds: float
    """Measured by the source, seconds."""

    def predict(self) -> Estimate:
        """What the model says of it."""
        return estimate(self.question, self.layout)


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Every shipped run, in file order."""
    table = files("cost_models") / "data" / "published" / "runs.csv"
    rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    return tuple(_read(row) for row in rows)


def _read(row: dict[str, str]) -> PublishedRun:
    shape = {name: int(row[name]) for name in _SHAPE}
    sequence = int(row["sequence_length"])
    model = TransformerSpec.model_validate(
        {**shape, "name": row["run"], "activation": row["activation"], "max_positions": sequence}
    )
    training = TrainingSpec.model_validate(
        {
            "global_batch": int(row["global_batch"]),
            "sequence_length": sequence,
            "precision": row["precision"],
            "dropout": float(row["dropout"]),
        }
    )
    cluster = resolve_cluster(row["cluster"], int(row["num_gpus"]))
    return PublishedRun(
        run=row["run"],
        source=row["source"],
        question=ask(model, cluster, training, stack=row["stack"]),
        layout=parse_layout(row["layout"]),
        step_seconds=float(row["step_seconds"]),
    )
