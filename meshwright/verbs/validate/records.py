"""Predictions of published rows as plain data: records of `validate --json`, rows of `--csv`, the frame of plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from cost_models.measured.validation.predictions import Prediction
from cost_models.measured.validation.scores import (
    ChoiceScore,
    ErrorScore,
    SourceScore,
    SweepScore,
    measured_bytes,
    measured_seconds,
    step_error,
)
from cost_models.units import counted
from meshwright.records import frame_of

if TYPE_CHECKING:
    import pandas as pd

SUBJECT = "runs that others timed"


def prediction_record(prediction: Prediction) -> dict[str, Any]:
    """One row; seconds and bytes, null where nothing was predicted or measured."""
    case = prediction.case
    return {
        "row_id": prediction.row.row_id,
        "source_id": prediction.row.source,
        "predicted_step_seconds": prediction.step_seconds,
        "predicted_peak_bytes": prediction.peak_bytes,
        "predicted_fits": prediction.fits,
        "fits_probability": prediction.fits_probability,
        "verdict": prediction.verdict,
        "measured_step_seconds": measured_seconds(prediction.row),
        "measured_peak_bytes": measured_bytes(prediction.row),
        "ran_out_of_memory": prediction.row.flag("oom"),
        "layout": str(case.layout) if case else None,
        "stack": case.question.stack.name if case else None,
        "profile": case.question.hardware.name if case else None,
        "parts": dict(prediction.parts),
        "assumptions": list(prediction.assumptions),
        "trust": prediction.trust or None,
        "anchor": prediction.anchor,
        "skipped": prediction.skipped or None,
    }


def prediction_row(prediction: Prediction) -> dict[str, Any]:
    """The same, flat: a column for each part of the step, assumptions in one cell."""
    record = prediction_record(prediction)
    parts = {f"{part}_seconds": seconds for part, seconds in record.pop("parts").items()}
    return record | {"assumptions": "; ".join(record["assumptions"])} | parts


def source_record(source: SourceScore) -> dict[str, Any]:
    """Every figure of one source; shares, null where the rows do not say."""
    return {
        "source_id": source.source,
        "rows": source.rows,
        "timed_predicted": source.predicted,
        "skipped": source.skipped,
        "step_seconds": asdict(source.step) if source.step else None,
        "anchored_step_seconds": asdict(source.anchored) if source.anchored else None,
        "peak_bytes": asdict(source.memory) if source.memory else None,
        "out_of_memory": asdict(source.verdicts),
        "regret": {"mean": source.mean_regret, "worst": source.worst_regret},
        "kendall_tau": source.mean_tau,
        "sweeps": [sweep_record(sweep) for sweep in source.sweeps],
    }


def source_row(source: SourceScore) -> dict[str, Any]:
    """The same, flat and without the sweeps: `step_seconds_median`, `out_of_memory_recall`, `regret_worst` …"""
    record = source_record(source)
    del record["sweeps"]
    row: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            row |= {f"{name}_{figure}": share for figure, share in value.items()}
        elif name in ("step_seconds", "anchored_step_seconds", "peak_bytes"):  # nothing to compare with
            row |= {f"{name}_{figure.name}": None for figure in fields(ErrorScore)}
        else:
            row[name] = value
    return row


def sweep_record(sweep: SweepScore) -> dict[str, Any]:
    """One sweep by the cells that name it."""
    return {"sweep": list(sweep.key), "rows": sweep.rows, "regret": sweep.regret, "kendall_tau": sweep.tau}


def choice_record(choice: ChoiceScore) -> dict[str, Any]:
    """Regrets by sweep, and how often a stated interval held the measured ratio of two times."""
    return {
        "source_id": choice.source,
        "regret_fastest": list(choice.point),
        "regret_recommended": list(choice.recommended),
        "pairs": choice.pairs,
        "covered": choice.covered,
    }


def plot_subject(anchors: int) -> str:
    """What plots of residuals are about."""
    return f"{SUBJECT}; {counted(anchors, 'anchor')} a sweep" if anchors else SUBJECT


def residual_frame(predictions: Sequence[Prediction]) -> pd.DataFrame:
    """A row per run that was timed and predicted, with what it can be sorted by.

    Columns: `row_id`, `source`, `measured_seconds`, `predicted_seconds`, `bound_by` (the largest part beside compute),
    `tp`, `pp`, `mbs`, `gpus`, `layout`.
    """
    columns = ["row_id", "source", "measured_seconds", "predicted_seconds", "bound_by"]
    rows = [
        {
            "row_id": one.row.row_id,
            "source": one.row.source,
            "measured_seconds": measured_seconds(one.row),
            "predicted_seconds": one.step_seconds,
            "bound_by": _bound_by(one.parts),
            "tp": one.case.layout.tp,
            "pp": one.case.layout.pp,
            "mbs": one.case.layout.mbs,
            "gpus": one.case.layout.num_gpus,
            "layout": one.case.layout.brief,
        }
        for one in predictions
        if one.case is not None and step_error(one) is not None
    ]
    return frame_of(rows, columns=[*columns, "tp", "pp", "mbs", "gpus", "layout"])


def _bound_by(parts: Mapping[str, float]) -> str:
    others = {part: seconds for part, seconds in parts.items() if part != "compute"}
    return max(others, key=others.__getitem__) if others else "compute"
