"""What a run measured against what its plan predicted, quantity by quantity."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from cost_models.errors import InputError
from executor.report import RankReport, RunReport, load_report

_WORK = ("compute", "recompute", "optimizer", "host")
"""Parts of a step in which the training thread computes; in the others it waits."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity in base units; its name says which: `..._seconds`, `..._bytes`, a share, or tokens per second."""

    quantity: str
    predicted: float
    measured: float


def comparison(report: RunReport) -> tuple[Compared, ...]:
    """Speed first, then the peak of each pipeline rank's fullest process, then the parts of the fullest of all."""
    said = report.predicted
    work = sum(seconds for part, seconds in said.time.items() if part in _WORK)
    speed = (
        Compared("step_seconds", said.step_seconds, report.step_seconds),
        Compared("thread_cpu_seconds", work, report.thread_seconds),
        Compared("tokens_per_second", said.tokens_per_second, report.tokens_per_second),
        Compared("mfu", said.mfu, report.mfu),
        Compared("hfu", said.hfu, report.hfu),
    )
    fullest = max(report.ranks, key=lambda rank: rank.peak_bytes)
    parts = [
        Compared(f"{part}_bytes", fullest.predicted_memory.get(part, 0.0), float(size))
        for part, size in fullest.memory.items()
    ]
    return (*speed, *_peaks(report), *parts)


def read_report(path: Path) -> RunReport:
    """A run report from its file.

    Raises:
        InputError: missing, or no run report.
    """
    try:
        return load_report(path)
    except (ValidationError, UnicodeDecodeError):
        raise InputError(f"`{path}` is no run report", hint="meshwright run writes run-report.json") from None


def _peaks(report: RunReport) -> list[Compared]:
    by_stage: dict[int, RankReport] = {}
    for rank in report.ranks:
        other = by_stage.get(rank.pipeline_rank)
        if other is None or rank.peak_bytes > other.peak_bytes:
            by_stage[rank.pipeline_rank] = rank
    return [
        Compared(
            "peak_bytes" if len(by_stage) == 1 else f"peak_bytes_stage_{stage}",
            sum(rank.predicted_memory.values()),
            float(rank.peak_bytes),
        )
        for stage, rank in sorted(by_stage.items())
    ]
