"""Estimates and run reports as the data frames that plots read."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.predicted_spans import pass_spans
from cost_models.question import Question
from cost_models.schedules import KINDS
from cost_models.specs.layout import Layout
from meshwright.measured import comparison, read_report

if TYPE_CHECKING:
    import pandas as pd

ACCURACY_COLUMNS = ("label", "quantity", "predicted", "measured")


def time_frame(estimates: Sequence[Estimate]) -> pd.DataFrame:
    """A row per layout: `layout`, then seconds by part."""
    import pandas as pd

    return pd.DataFrame(
        [{"layout": estimate.layout.brief, **estimate.time.as_dict()} for estimate in estimates]
    )


def memory_frame(estimate: Estimate) -> pd.DataFrame:
    """A row per pipeline rank: bytes by part."""
    import pandas as pd

    return pd.DataFrame([rank.as_dict() for rank in estimate.rank_memory])


def timeline_frame(question: Question, layout: Layout) -> pd.DataFrame:
    """A row per action of a placed layout: `rank`, `kind`, `chunk`, `microbatch`, `start_seconds`, `end_seconds`."""
    import pandas as pd

    passes = pass_spans(question, layout)
    table = passes.table
    frame = pd.DataFrame(
        {
            "rank": np.repeat(np.arange(layout.pp), table.stage.shape[1]),
            "kind": np.array([*KINDS, ""])[table.kind].ravel(),
            "chunk": table.chunk.ravel(),
            "microbatch": table.microbatch.ravel(),
            "start_seconds": passes.start.ravel(),
            "end_seconds": passes.end.ravel(),
        }
    )
    return frame[frame["kind"] != ""].reset_index(drop=True)


def accuracy_frame(paths: Sequence[Path]) -> pd.DataFrame:
    """Run reports (JSON) and CSV files with the columns `label,quantity,predicted,measured` as one frame.

    Raises:
        InputError: a file that is neither.
    """
    import pandas as pd

    rows = [
        row for path in paths for row in (_csv_rows(path) if path.suffix == ".csv" else _report_rows(path))
    ]
    return pd.DataFrame(rows, columns=list(ACCURACY_COLUMNS))


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in ACCURACY_COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: no column {', '.join(f'`{name}`' for name in missing)}")
        try:
            return [
                {
                    "label": row["label"],
                    "quantity": row["quantity"],
                    "predicted": float(row["predicted"]),
                    "measured": float(row["measured"]),
                }
                for row in reader
            ]
        except (TypeError, ValueError):
            raise InputError(
                f"{path}:{reader.line_num}: `predicted` and `measured` must be numbers"
            ) from None


def _report_rows(path: Path) -> list[dict[str, Any]]:
    """The comparison of a run report."""
    report = read_report(path)
    label = str(report.layout.model_copy(update={"layers": ()}))
    return [{"label": label, **asdict(line)} for line in comparison(report)]
