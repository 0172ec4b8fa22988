"""Base classes of answers of `run` and `emulate`, and text on where a run's time went."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cost_models.errors import InputError
from cost_models.reliability import Segment
from cost_models.specs.cluster import OperationsSpec
from cost_models.units import counted, format_bytes, format_seconds
from meshwright.records.runs import ComparedQuantity
from meshwright.render.measured import error_text
from meshwright.render.tables import Table, table_of
from meshwright.render.words import part_label, percent, wrapped
from meshwright.terminal.answers import Answer, SavedAnswer

if TYPE_CHECKING:
    from executor.clock import StartReport
    from executor.emulate.stand_ins import AnyEmulation
    from executor.measure.report import AnyReport, OperationsReport
    from planner.plan import Plan
    from planner.recommender.plan import RecommenderPlan

R = TypeVar("R", bound="AnyReport")


class AnyRan(Answer, Generic[R]):
    """Base class of answers of `run`: predicted beside measured quantities; each family defines its rows and text."""

    report: R
    steps: int
    """Number of optimizer steps that were asked for."""

    def body(self) -> Iterable[str | Table]:
        """Text on the run, without its start, checkpoints and failures."""
        raise NotImplementedError

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of each step, warm-up included."""
        return self.report.losses

    def document(self) -> dict[str, Any]:
        """JSON document: comparison, parts of the run's time, and report."""
        report = self.report.model_dump(mode="json")
        return {"comparison": self.rows, "operations": self.operations, "report": report}

    @property
    def operations(self) -> list[dict[str, Any]]:
        """Row for each part of the time (training, saving, repeated work, restarting) of a run with checkpoints;
        empty without them."""
        return [] if self.report.operations is None else operations_rows(self.report.operations)

    def view(self) -> Iterator[str | Table]:
        """Text on the run, its start, checkpoints and failures."""
        yield from self.body()
        if self.report.start is not None:
            yield wrapped(start_line(self.report.start))
        if self.report.operations is not None:
            yield from operations_text(self.report.operations, self.operations)


def start_line(start: StartReport) -> str:
    """Line on the start of a run: "start 14.2 s: processes 12.1 s, groups 210.3 ms, weights 1.02 s, first step 871.0
    ms"."""
    parts = [f"{part.replace('_', ' ')} {format_seconds(seconds)}" for part, seconds in start.parts.items()]
    return f"start {format_seconds(sum(start.parts.values()))}: {', '.join(parts)}"


class AnyEmulated(SavedAnswer):
    """Base class of answers of `emulate`: one rank that ran alone, predicted beside emulated; each family defines its
    rows and text."""

    plan: Plan | RecommenderPlan
    report: AnyEmulation

    def document(self) -> dict[str, Any]:
        """JSON document: comparison and report."""
        return {"comparison": self.rows, "report": self.report.model_dump(mode="json")}

    def save(self, path: str | Path) -> None:
        """Write the report to a file as JSON."""
        from executor.measure.report import save_report

        save_report(self.report, Path(path))

    def compared(
        self, label: Callable[[str], str], text: Callable[[str, float], str], ran: str
    ) -> Iterator[str | Table]:
        """Table of predicted beside emulated quantities, with names by `label` and values by `text`. If the plan is
        for another device or stack, its predictions fill a further column, and a sentence says what `ran` instead."""
        rows, heads = self.rows, {"predicted": "predicted"}
        if self.report.runs_otherwise:
            heads = {"plan": "plan", "predicted": "as run"}
        columns = {"": [label(row["quantity"]) for row in rows]}
        for key, head in (heads | {"emulated": "emulated"}).items():
            columns[head] = [text(row["quantity"], row[key]) for row in rows]
        lines = [ComparedQuantity(row["quantity"], row["predicted"], row["emulated"]) for row in rows]
        yield from ("", table_of(columns | {"error": list(map(error_text, lines))}, words=("",)))
        if self.report.runs_otherwise:
            planned = f"The plan is for stack {self.plan.stack.name} on {self.plan.gpu.name}"
            yield wrapped(f"{planned}. {ran}, and the error is against it.")


_LONGEST_BETWEEN = 3.6e12
"""Seconds between failures that are assumed if a run had none: the longest that a file may state."""


def operations_rows(seen: OperationsReport) -> list[dict[str, Any]]:
    """Row for each part of a run's time: `part`, `seconds`, measured `share` and `forecast_share`."""
    from executor.measure.report import PARTS

    forecast, seconds = forecast_shares(seen), seen.parts
    shares = {part: seconds[part] / seen.wall_seconds if seen.wall_seconds else 0.0 for part in PARTS}
    return [
        {"part": part, "seconds": seconds[part], "share": shares[part], "forecast_share": forecast[part]}
        for part in PARTS
    ]


def segment_of(seen: OperationsReport) -> Segment:
    """Segment of a forecast (work from one checkpoint to the next) from a run's measured step, save, restart and
    failure times."""
    save, restart, failures = seen.mean_save, seen.mean_restart, seen.failures
    return Segment(
        work=seen.every * seen.step_seconds,
        saving=save.blocked,
        restart=restart.detection + restart.starting + restart.loading,
        mtbf=seen.wall_seconds / failures if failures else math.inf,
        lag=save.flush,
    )


def forecast_shares(seen: OperationsReport) -> dict[str, float]:
    """Part of a run's time → forecast share, from the run's own mean times."""
    segment = segment_of(seen)
    expected, lost, restarting = segment.length, 0.0, 0.0
    if not math.isinf(segment.mtbf):
        expected, lost, restarting = segment.expected, segment.lost, segment.restarting
    seconds = {
        "training": segment.work,
        "saving": segment.saving,
        "lost_work": lost,
        "restarting": restarting,
    }
    return {part: of_part / expected for part, of_part in seconds.items()}


def operations_spec(seen: OperationsReport, gpus: int, name: str) -> OperationsSpec:
    """Operations (failures, restarts, storage) measured by a run, as `forecast --operations run-report.json` uses
    them.

    Raises:
        InputError: it saved nothing.
    """
    if not (seen.mean_save.size and seen.mean_save.flush):
        hint = "--checkpoint saves, --every how often"
        raise InputError(f"`{name}` tells of no checkpoint that was written", hint=hint)
    save, restart, segment = seen.mean_save, seen.mean_restart, segment_of(seen)
    written = save.size / save.flush
    # what is loaded is read twice: for its digest first
    read = 2 * save.size / restart.loading if restart.loading else written
    seconds = {
        "mtbf": min(segment.mtbf * gpus, _LONGEST_BETWEEN),
        "detection": restart.detection,
        "restart": restart.starting,
    }
    rates = {"storage_write": written, "storage_read": read, "host_copy": _FASTEST}
    return OperationsSpec.model_validate(
        {
            "name": "measured",
            **{key: f"{max(value, _LEAST_SECONDS):.9f} s" for key, value in seconds.items()},
            **{key: f"{min(max(rate, _SLOWEST), _FASTEST):.0f} B/s" for key, rate in rates.items()},
            "pause": save.blocked,  # with the copy to host memory in it
            "source": f"{name}: {counted(len(seen.saves), 'save')}, {counted(seen.failures, 'failure')}",
        }
    )


_SLOWEST, _FASTEST = 1e3, 1e17
"""Rates that operations may have, bytes/s."""
_LEAST_SECONDS = 1e-6
_PART_WORDS = {"starting": "first start", "stragglers": "slow hosts", "lost_work": "work done again"}
"""Part of a job's time → its name in text, if that differs."""


def time_label(part: str) -> str:
    """Name of a part of a job's time as text: `lost_work` → "work done again"."""
    return _PART_WORDS.get(part, part_label(part))


def operations_text(seen: OperationsReport, rows: Sequence[Mapping[str, Any]]) -> Iterator[str | Table]:
    """Text on the parts of a run's time, its checkpoints and failures; `rows` come from `operations_rows`."""
    columns = {
        "where time went": [time_label(row["part"]) for row in rows],
        "forecast": [percent(row["forecast_share"]) for row in rows],
        "measured": [percent(row["share"]) for row in rows],
        "": [format_seconds(row["seconds"]) for row in rows],
    }
    yield from ("", table_of(columns, words=("where time went",)))
    save, mean = seen.mean_save, seen.mean_restart
    often = f"{counted(len(seen.saves), 'save')}, every {counted(seen.every, 'step')}"
    words = f"{often}: each stops training for {format_seconds(save.blocked)}"
    if save.size:
        words += f" and is readable {format_seconds(save.flush)} later ({format_bytes(save.size)})"
    yield wrapped(words)
    if seen.restarts:
        lost = fmean(one.steps_lost for one in seen.restarts)
        yield wrapped(
            f"{counted(seen.failures, 'failure')}, on average {format_seconds(mean.detection)} until the restart,"
            f" {format_seconds(mean.starting)} to start, {format_seconds(mean.loading)} to load, {lost:.1f} steps done"
            " again; the forecast assumes these averages, and failures at random"
        )
