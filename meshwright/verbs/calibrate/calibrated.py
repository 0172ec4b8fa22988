"""The answer of `calibrate --from-run`: a profile moved by runs of this machine, and what it says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.refinement import STEP, Refinement, quantities
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, format_seconds
from executor.measure.observed_run import Machine
from executor.measure.report import RunReport
from meshwright.records import frame_of
from meshwright.records.runs import comparison
from meshwright.render.tables import Table, table
from meshwright.render.words import part_label, percent, sentence_list, wrapped
from meshwright.verbs.contract.answer import AnswerBase

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, repr=False)
class Calibrated(AnswerBase):
    """A profile with the runs that moved it, and how far they did."""

    profile: HardwareProfile
    machine: Machine
    """That all runs are of."""
    refinement: Refinement = field(repr=False)
    reports: tuple[RunReport, ...] = field(repr=False)

    file: Path | None = None
    """Where the profile was written."""

    def runs(self) -> list[dict[str, Any]]:
        """A record for each run and quantity: measured, the errors of its plan and of the new profile, the noise."""
        records = []
        told = zip(self.refinement.runs, self.reports, self.refinement.estimates, strict=True)
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

    def factors(self) -> list[dict[str, Any]]:
        """A record for each kind of seconds: how much longer than measured apart, and how far the runs settle it."""
        return [
            {"kind": kind, "factor": one.value, "low": one.low, "high": one.high, "told": one.determined}
            for kind, one in self.refinement.factors.items()
        ]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The records of `runs`, for `--csv`."""
        return self.runs()

    def document(self) -> dict[str, Any]:
        return {
            "file": None if self.file is None else str(self.file),
            "machine": str(self.machine),
            "started_from": self.refinement.start.source,
            "runs": self.runs(),
            "factors": self.factors(),
            "profile": self.profile.model_dump(mode="json"),
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright calibrate --from-run` prints."""
        number, start = len(self.reports), self.refinement.start.source
        said = f"{self.profile.name}: moved by {counted(number, 'run')} on {self.machine}; from: {start}"
        return wrapped(said), "", *refinement_text(self.runs(), self.factors())

    def runs_to_frame(self) -> pd.DataFrame:
        """`runs` as a table."""
        return frame_of(self.runs())

    def factors_to_frame(self) -> pd.DataFrame:
        """`factors` as a table."""
        return frame_of(self.factors())

    def save(self, path: str | Path) -> None:
        """Write the profile, for `--profile`."""
        save_spec(self.profile, Path(path))

    def __repr__(self) -> str:
        return str(runs_table(self.runs()))


_COMPARED = {STEP: "step_seconds", "thread": "thread_cpu_seconds"}
"""Quantities that a person is told of → their names beside a run."""
_QUANTITIES = {"step_seconds": "step", "thread_cpu_seconds": "thread cpu"}
RUN_HEADERS = ("run", "quantity", "measured", "before", "after", "noise")
_SILENT = 0.05
"""Share of what was uncertain about a factor below which the runs say nothing of it."""


def refinement_text(
    runs: Sequence[dict[str, Any]], factors: Sequence[dict[str, Any]]
) -> Iterator[str | Table]:
    """The runs, before and after; then the factors that they settle at least a little."""
    yield runs_table(runs)
    yield "(before: of the plan that ran; noise: what the middle half of its steps spans)"
    told = [record for record in factors if record["told"] >= _SILENT]
    if told:
        yield ""
        yield table(
            ("seconds of", "factor", "90 % interval", "told"),
            [_factor_cells(record) for record in told],
            words=("seconds of",),
        )
        yield wrapped(
            "(factor: of what was measured apart; told: share of what was uncertain about it that the runs"
            " settle)",
            indent=" ",
        )
    if silent := [part_label(one["kind"]) for one in factors if one["told"] < _SILENT]:
        yield wrapped(f"The runs say nothing of {sentence_list(silent)}")


def runs_table(runs: Sequence[dict[str, Any]]) -> Table:
    """What was measured, and how far off the plan that ran and the moved profile are."""
    rows = [run_cells(record) for record in runs]
    return table(RUN_HEADERS, rows, words=("run",), names=("quantity",))


def run_cells(record: dict[str, Any]) -> list[str]:
    """One run and quantity, in words."""
    return [
        record["layout"],
        _QUANTITIES[record["quantity"]],
        format_seconds(record["measured"]),
        *(percent(record[when], "+.1%") for when in ("before", "after")),
        percent(record["noise"]),
    ]


def _factor_cells(record: dict[str, Any]) -> list[str]:
    return [
        part_label(record["kind"]),
        f"x {record['factor']:.2f}",
        f"{record['low']:.2f}-{record['high']:.2f}",
        percent(record["told"], ".0%"),
    ]
