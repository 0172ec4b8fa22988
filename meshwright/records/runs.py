"""Compare the measured quantities of a run with the predictions of its plan, and read run reports."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cost_models.errors import InputError, Problem
from cost_models.families import family_of_plan_kind, load
from cost_models.files.catalog import validate
from cost_models.files.reading import parse_json, read_text
from cost_models.units import MB
from executor.measure.report import AnyReport, RankReport, RunReport
from planner.plan import without_dropped_facts

if TYPE_CHECKING:
    from executor.emulate.one_rank import EmulationReport

_WORK = ("compute", "recompute", "optimizer", "host")
"""Parts of a step in which the training thread computes; in the others it waits."""
_PARTS = {
    "compute": ("compute", "recompute"),
    "host": ("host",),
    "tp_comm": ("tp_comm",),
    "cp_comm": ("cp_comm",),
    "ep_comm": ("ep_comm",),
    "dp_comm": ("dp_comm",),
    "pp_comm": ("pp_comm",),
    "offload": ("offload",),
    "bubble": ("bubble",),
    "optimizer": ("optimizer",),
    "jitter": ("jitter",),
    "other": (),
    "data": (),
}
"""Part of a measured step (`executor.measure.parts`) → parts of a prediction that add up to it."""

_LEAST_SHARE = 1e-6
"""Smallest share of a step that a part must have to be compared; smaller is rounding. A smaller part is rounding."""
_LEAST_WAIT = 1e-3
"""Smallest share of a step that waiting for data must take to count; a batch with a shorter wait was on time. After a
shorter wait, the batch counts as on time."""


@dataclass(frozen=True, slots=True)
class ComparedQuantity:
    """One quantity, predicted and measured, in seconds or bytes if its name says so, else a share or tokens per
    second."""

    quantity: str
    predicted: float
    measured: float
    noise: float | None = None
    """Share of `measured` that the middle half of the steps spans; None where nothing was repeated."""

    @property
    def beyond_noise(self) -> bool:
        """Whether the prediction's relative error exceeds the spread among the run's own steps."""
        return self.noise is not None and abs(self.predicted / self.measured - 1) > self.noise


def comparison(report: RunReport) -> tuple[ComparedQuantity, ...]:
    """Predicted beside measured: speed, parts of a step, peak memory by pipeline rank, memory parts of the fullest
    rank, then allocator, host memory and drives."""
    predicted = report.predicted
    work = sum(seconds for part, seconds in predicted.time.items() if part in _WORK)
    on_cpu = report.environment.device == "cpu"
    # one step tells neither noise nor what a thread usually needs
    repeated = len(report.all_step_seconds) > 1
    is_steady = on_cpu and not report.is_foreign
    thread_noise = report.thread_noise if is_steady else None  # a GPU's host launches, and need not compute
    thread = ComparedQuantity("thread_cpu_seconds", work, report.thread_seconds, thread_noise)
    step_noise = report.step_noise if repeated else None
    speed = (
        ComparedQuantity("step_seconds", predicted.step_seconds, report.step_seconds, step_noise),
        *time_parts(report),
        *[thread] * (repeated and not report.is_foreign),
        ComparedQuantity("tokens_per_second", predicted.tokens_per_second, report.tokens_per_second),
        ComparedQuantity("mfu", predicted.mfu, report.mfu),
        ComparedQuantity("hfu", predicted.hfu, report.hfu),
    )
    fullest = max(report.ranks, key=lambda rank: rank.peak_bytes)
    planned = fullest.predicted_memory
    parts = [_part(part, planned.get(part, 0.0), size) for part, size in fullest.memory.items()]
    return (*speed, *_peaks(report), *parts, *_of_the_allocator(report), *_of_tiers(report.ranks))


def emulated(report: EmulationReport) -> tuple[ComparedQuantity, ...]:
    """Predicted beside measured quantities of one emulated rank: peak memory, its parts, seconds (only on a device),
    host memory and drive.

    Memory is set against the model's price of what ran, which need not be the plan's stack or its GPU. Compute on
    another kind of device than the plan's says nothing of it.
    """
    memory = [_part(part, report.memory_as_run[part], size) for part, size in report.memory.items()]
    peak = ComparedQuantity("peak_bytes", sum(report.memory_as_run.values()), float(report.peak_bytes))
    compute = [
        ComparedQuantity(f"{phase}_compute_seconds", report.predicted_seconds[phase], seconds)
        for phase, seconds in report.compute_seconds.items()
        if report.on_planned_device
    ]
    step = report.step_seconds
    total = [] if step is None else [ComparedQuantity("step_seconds", report.predicted.step_seconds, step)]
    return (peak, *memory, *compute, *total, *_of_tiers([report]))


def _part(part: str, predicted: float, measured: float) -> ComparedQuantity:
    """Predicted beside measured bytes of one part of memory."""
    return ComparedQuantity(f"{part}_bytes", predicted, float(measured))


def planned_memory(report: EmulationReport) -> dict[str, float]:
    """Predicted bytes of the emulated rank, by quantity, under the plan's own stack and GPU."""
    parts = {f"{part}_bytes": size for part, size in report.predicted_memory.items()}
    return {"peak_bytes": sum(parts.values()), **parts}


def time_parts(report: RunReport) -> tuple[ComparedQuantity, ...]:
    """Predicted beside measured seconds of each part of a step, on the rank that computes longest; parts absent on
    both sides are left out.

    Either side adds up to its step. Parts are told apart in a few steps that are watched, and slower for it: what was
    measured is their shares of a typical one of these, of the median step. A run that watched none has no parts.
    """
    if not all(rank.parts for rank in report.ranks):
        return ()
    busiest = max(report.ranks, key=lambda rank: rank.parts.get("compute", 0.0) + rank.parts.get("host", 0.0))
    data = statistics.median(busiest.data_seconds) if busiest.data_seconds else 0.0
    data = data if data > _LEAST_WAIT * report.step_seconds else 0.0
    unit = (report.step_seconds - data) / sum(busiest.parts.values())
    measured = {part: unit * busiest.parts.get(part, 0.0) for part in _PARTS}
    measured["data"] += data
    seconds_of = report.predicted.time
    predicted = {part: sum(seconds_of.get(name, 0.0) for name in names) for part, names in _PARTS.items()}
    return tuple(
        ComparedQuantity(f"{part}_seconds", predicted[part], measured[part])
        for part in _PARTS
        if max(predicted[part], measured[part]) > _LEAST_SHARE * report.step_seconds
    )


def _of_the_allocator(report: RunReport) -> list[ComparedQuantity]:
    """Predicted beside measured memory that the GPU's allocator allocated and reserved, on the rank that reserved
    most; empty without a GPU."""
    seen = [(rank, rank.allocator_peak) for rank in report.ranks if rank.allocator_peak is not None]
    if not seen:
        return []
    rank, peak = max(seen, key=lambda pair: (pair[1].reserved, pair[1].allocated))
    everything = sum(report.predicted.rank_memory[rank.pipeline_rank].values())
    compared = (
        ComparedQuantity("allocated_bytes", sum(rank.predicted_memory.values()), float(peak.allocated)),
        ComparedQuantity("reserved_bytes", everything, float(peak.reserved)),
    )
    return [one for one in compared if one.measured > 0]


_TIERS = {
    "host": (
        ("host_memory_bytes", "predicted_bytes", "peak_bytes"),
        ("host_link_seconds", "predicted_copy_seconds", "copy_seconds"),
        ("host_update_seconds", "predicted_update_seconds", "update_seconds"),
    ),
    "drive": (
        ("drive_bytes", "predicted_bytes", "held_bytes"),
        ("drive_read_bytes", "predicted_read_bytes", "read_bytes"),
        ("drive_written_bytes", "predicted_written_bytes", "written_bytes"),
        ("drive_transfer_seconds", "predicted_seconds", "seconds"),
    ),
}
"""Tier below device memory → its quantities: name, and fields of a rank's report (`HostReport`, `DriveReport`) with the
predicted value and the measured values; by the first quantity the fullest rank is found."""


def _of_tiers(ranks: Sequence[RankReport | EmulationReport]) -> Iterator[ComparedQuantity]:
    """Predicted beside measured quantities of host memory and drives, each on the rank that holds most there; of steps
    the median. Empty without offload, and without quantities that were not measured."""
    for tier, quantities in _TIERS.items():
        used = [seen for rank in ranks if (seen := getattr(rank, tier)) is not None]
        fullest = max(used, key=attrgetter(quantities[0][2]), default=None)
        for name, predicted, measured in quantities if used else ():
            price, seen = getattr(fullest, predicted), float(np.median(getattr(fullest, measured)))
            if seen > 0 and (price or name != "drive_transfer_seconds"):  # the drives' speed may not be given
                yield ComparedQuantity(name, price, seen)


def _peaks(report: RunReport) -> list[ComparedQuantity]:
    """Predicted beside measured peak memory of the fullest process of each pipeline rank."""
    by_stage: dict[int, RankReport] = {}
    for rank in sorted(report.ranks, key=lambda rank: -rank.peak_bytes):
        if rank.memory:  # else the step that tells it did not come to its end
            by_stage.setdefault(rank.pipeline_rank, rank)
    name = "peak_bytes" if len(by_stage) == 1 else "peak_bytes_stage_{}"
    return [
        ComparedQuantity(name.format(stage), sum(rank.predicted_memory.values()), float(rank.peak_bytes))
        for stage, rank in sorted(by_stage.items())
    ]


MAX_REPORT_BYTES = int(1000 * MB)
"""Size in bytes of the largest run report that is read; a report holds a number for each step of each rank."""
_MOST_PROBLEMS = 5
_HINT = "meshwright run writes run-report.json"


def read_any_report(path: Path) -> AnyReport:
    """Read the run report of a transformer or a recommender from its file.

    Raises:
        InputError: missing, too large, or no run report.
    """
    text = read_text(path, most_bytes=MAX_REPORT_BYTES)
    try:
        document = parse_json(text, source=str(path))
        plan = document.value.get("plan") if isinstance(document.value, dict) else None
        kind = plan.get("kind") if isinstance(plan, dict) else None
        if isinstance(plan, dict):
            document = replace(document, value=document.value | {"plan": without_dropped_facts(plan)[0]})
        report_type: type[AnyReport] = load(family_of_plan_kind(kind).report)
        return validate(document, report_type)
    except InputError as error:
        problems = error.problems or (Problem("", error.headline),)
        listed = problems[:_MOST_PROBLEMS]
        raise InputError(f"`{path}` is no run report", problems=listed, hint=_HINT) from None


def read_report(path: Path) -> RunReport:
    """Read the run report of a transformer from its file.

    Raises:
        InputError: missing, no run report, or one of another family.
    """
    report = read_any_report(path)
    if not isinstance(report, RunReport):
        raise InputError(f"`{path}` is of a run of another kind of model; a transformer's is needed here")
    return report
