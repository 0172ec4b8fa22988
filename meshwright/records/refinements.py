"""A profile moved by runs as plain data: what each run says of it, and by how much each kind of seconds moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.measured.calibration.refining import STEP, Refinement, quantities
from executor.measure.report import RunReport
from meshwright.records.run_comparison import comparison

_COMPARED = {STEP: "step_seconds", "thread": "thread_cpu_seconds"}
"""Quantities that a person is told of → their names beside a run."""


def run_records(refinement: Refinement, reports: Sequence[RunReport]) -> list[dict[str, Any]]:
    """A record for each run and quantity: measured, the errors of its plan and of the new profile, the noise."""
    records = []
    told = zip(refinement.runs, reports, refinement.estimates, strict=True)
    for run, report, estimate in told:
        before = {line.quantity: line for line in comparison(report)}
        after = quantities(estimate)
        for quantity, name in _COMPARED.items():
            if quantity not in run.seen:
                continue
            measured = run.seen[quantity].seconds
            records.append(
                {
                    "run": run.name,
                    "layout": report.layout.brief,
                    "quantity": name,
                    "measured": measured,
                    "before": before[name].predicted / measured - 1,
                    "after": after[quantity] / measured - 1,
                    "noise": run.seen[quantity].noise,
                }
            )
    return records


def factor_records(refinement: Refinement) -> list[dict[str, Any]]:
    """A record for each kind of seconds: how much longer than measured apart, and how far the runs settle it."""
    return [
        {"kind": kind, "factor": one.factor, "low": one.low, "high": one.high, "told": one.told}
        for kind, one in refinement.factors.items()
    ]
