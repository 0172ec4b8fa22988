"""Profiles fitted to runs as plain data: the objects of `calibrate --from-runs --json` and the rows of its `--csv`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from cost_models.measured.calibration.families import UnseenSource
from cost_models.measured.calibration.refitting import Refit
from cost_models.measured.runs.rows import Row


def refit_record(refit: Refit, file: Path | None) -> dict[str, Any]:
    """One profile: what it was, what it is, and what every run says of both."""
    die, stack = refit.pair
    return {
        "file": None if file is None else str(file),
        "gpu": die,
        "stack": stack,
        "started_from": refit.start.name,
        "median_error_before": refit.median_before,
        "median_error_after": refit.fit.median_error,
        "constants": constant_records(refit),
        "runs": [
            {"row_id": run, "source_id": refit.fit.sources[run], "before": refit.before[run], "after": after}
            for run, after in refit.fit.residuals.items()
        ],
        "profile": refit.profile.model_dump(mode="json"),
    }


def constant_records(refit: Refit) -> list[dict[str, Any]]:
    """Every fitted constant in base units, with its 90 % interval and the runs that moved it most."""
    return [
        {
            "constant": name,
            "before": getattr(refit.start, name),
            "after": getattr(refit.profile, name),
            "low": interval.low,
            "high": interval.high,
            "told": interval.told,
            "moved_by": list(interval.moved_by),
        }
        for name, interval in refit.fit.constants.items()
    ]


def constant_rows(refit: Refit, file: Path | None) -> list[dict[str, Any]]:
    """The same, flat: the profile's file beside every constant, runs in one cell."""
    return [
        {"file": None if file is None else str(file)} | record | {"moved_by": "; ".join(record["moved_by"])}
        for record in constant_records(refit)
    ]


def left_out_record(row: Row, reason: str) -> dict[str, str]:
    """A row that takes no part, and why."""
    return {"row_id": row.row_id, "source_id": row.source, "reason": reason}


def unseen_record(source: UnseenSource) -> dict[str, Any]:
    """Median errors of one source."""
    return {"source_id": source.source} | {
        key: value for key, value in asdict(source).items() if key != "source"
    }
