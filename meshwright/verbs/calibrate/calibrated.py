"""The answers of `calibrate`: a profile measured on this machine, or moved by runs of it and what it says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.refinement import STEP, Refinement, quantities
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, format_bandwidth, format_seconds
from executor.measure.observed_run import Machine
from executor.measure.report import RunReport
from meshwright.records import frame_of
from meshwright.records.runs import comparison
from meshwright.render.measured import quantity_label
from meshwright.render.tables import Table, table
from meshwright.render.words import part_label, percent, sentence_list, wrapped
from meshwright.terminal.answers import Answer, SavedAnswer

if TYPE_CHECKING:
    import pandas as pd


class Calibrated(SavedAnswer):
    """A profile with the runs that moved it, and how far they did."""

    machine: Machine
    """Machine that all runs are of."""
    refinement: Refinement
    reports: tuple[RunReport, ...]
    file: Path | None = None
    """File to which the profile was written."""

    @property
    def profile(self) -> HardwareProfile:
        """The profile that the runs moved."""
        return self.refinement.profile

    def runs(self) -> list[dict[str, Any]]:
        """A record for each run and quantity: measured, the errors of its plan and of the new profile, the noise."""
        records = []
        estimated = zip(self.refinement.runs, self.reports, self.refinement.estimates, strict=True)
        for run, report, estimate in estimated:
            start = {line.quantity: line.predicted for line in comparison(report)}
            final = quantities(estimate)
            for quantity, name in _COMPARED.items():
                if (seen := run.seen.get(quantity)) is not None:
                    cells: dict[str, Any] = {"run": run.name, "layout": report.layout.brief, "quantity": name}
                    predicted = {"before": start[name], "after": final[quantity]}
                    errors = {when: seconds / seen.seconds - 1 for when, seconds in predicted.items()}
                    records.append({**cells, "measured": seen.seconds, **errors, "noise": seen.noise})
        return records

    def factors(self) -> list[dict[str, Any]]:
        """A record for each kind of seconds: how much longer than measured apart, and how far the runs settle it."""
        return [
            {"kind": kind, "factor": one.value, "low": one.low, "high": one.high, "told": one.determined}
            for kind, one in self.refinement.factors.items()
        ]

    def csv_rows(self) -> list[dict[str, Any]]:
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

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright calibrate --from-run` prints: the runs, and the factors that they settle."""
        number, start = len(self.reports), self.refinement.start.source
        heading = f"{self.profile.name}: moved by {counted(number, 'run')} on {self.machine}; from: {start}"
        note = "(before: of the plan that ran; noise: what the middle half of its steps spans)"
        text: list[str | Table] = [wrapped(heading), "", runs_table(self.runs()), note]
        factors = self.factors()
        if cells := [_factor_cells(record) for record in factors if record["told"] >= _SILENT]:
            settled = table(FACTOR_HEADERS, cells, words=FACTOR_HEADERS[:1])
            text += ["", settled, wrapped(_FACTOR_NOTE, indent=" ")]
        if silent := [part_label(one["kind"]) for one in factors if one["told"] < _SILENT]:
            text.append(
                wrapped(f"These runs do not determine, and leave as calibrated: {sentence_list(silent)}")
            )
        return tuple(text)

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
RUN_HEADERS = ("run", "quantity", "measured", "before", "after", "noise")
FACTOR_HEADERS = ("seconds of", "factor", "90 % interval", "learned")
_FACTOR_NOTE = (
    "(factor: correction to the calibrated constant; learned: share of its uncertainty removed by these runs)"
)
_SILENT = 0.05
"""Share of a factor's uncertainty. If the runs remove less, they say nothing of the factor."""


def runs_table(runs: Sequence[dict[str, Any]]) -> Table:
    """Table of measured quantities, with errors of the plan that ran and of the moved profile."""
    rows = []
    for record in runs:
        errors = [percent(record[when], "+.1%") for when in ("before", "after")]
        figures = format_seconds(record["measured"]), *errors, percent(record["noise"])
        rows.append((record["layout"], quantity_label(record["quantity"]), *figures))
    return table(RUN_HEADERS, rows, words=("run",), names=("quantity",))


def _factor_cells(record: dict[str, Any]) -> tuple[str, ...]:
    interval = f"{record['low']:.2f}-{record['high']:.2f}"
    return part_label(record["kind"]), f"x {record['factor']:.2f}", interval, percent(record["told"], ".0%")


def _gigaflops(rate: float) -> str:
    return f"{rate / 1e9:.4g} GFLOP/s"


_RATES = ("gemm_efficiency", "gemm_settled", "attention_forward_efficiency", "attention_backward_efficiency")
_SHARES = (*_RATES, "memory_efficiency", "optimizer_efficiency", "link_efficiency")
_TIMES = ("kernel_seconds", "host_layer_seconds", "collective_seconds", "step_seconds")
_CHECKED: dict[str, Callable[[float], str]] = {
    "measured_peak": _gigaflops,
    "measured_bandwidth": format_bandwidth,
    **dict.fromkeys(_SHARES, percent),
    **dict.fromkeys(_TIMES, format_seconds),
}
"""Constants that a person wants to check → how they are written; the file has the rest."""


class MeasuredProfile(Answer):
    """The answer of `calibrate`: the profile that was measured on this machine, and the file it is written to."""

    profile: HardwareProfile
    file: Path

    def csv_rows(self) -> list[dict[str, str]]:
        """Rates, shares and start-up times; a constant that was not measured has no row."""
        profile = self.profile
        values = {name: getattr(profile, name) for name in _CHECKED}
        rows = [(name, value, _CHECKED[name](value)) for name, value in values.items() if value is not None]
        rows += _of_the_host(profile)
        records = [{"constant": name, "value": repr(value), "text": text} for name, value, text in rows]
        if (kernel := profile.attention_kernel) is not None:
            records.append({"constant": "attention_kernel", "value": kernel, "text": kernel})
        return records

    def document(self) -> dict[str, Any]:
        return {"file": str(self.file), "profile": self.profile.model_dump(mode="json")}

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright calibrate` prints."""
        cells = [(row["constant"], row["text"]) for row in self.rows]
        source = wrapped(f"profile {self.profile.name}: {self.profile.source}")
        return source, "", table(("constant", "value"), cells, words=("constant",))


def _of_the_host(profile: HardwareProfile) -> list[tuple[str, float, str]]:
    """Rates of the host that offload needs, with all ranks at work at once; empty if they were not measured."""
    update, call, rates = profile.host_update_seconds, profile.host_call_seconds, profile.host_rates
    if update is None or rates is None:
        return []
    updates = {f"update, {counted(run.threads, 'thread')} a rank": run.seconds for run in rates.updates}
    rows = [
        ("host_update_seconds", update, _nanoseconds(update)),
        ("host_call_seconds", call, f"{format_seconds(call)} a block"),
        ("host_overlap", profile.host_overlap, percent(profile.host_overlap)),
        *((name, seconds, _nanoseconds(seconds)) for name, seconds in updates.items()),
    ]
    prefix = "copy within memory" if profile.measured_peak is not None else "pinned copy"
    for run in rates.copies:
        for way, rate in (("down", run.down), ("up", run.up), ("each way", run.both)):
            name = f"{prefix} {way}, {counted(run.ranks, 'rank')} at once"
            rows.append((name, rate, format_bandwidth(rate)))
    return rows


def _nanoseconds(seconds: float) -> str:
    return f"{seconds * 1e9:.3g} ns a parameter"
