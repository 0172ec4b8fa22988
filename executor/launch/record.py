"""The running record of a run: a JSON line for every step, save, restart and note, kept when ranks are started again.

What times mean, and what is made of them: `executor.measure.any_report`.
"""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from executor.clock import boot_date, date
from executor.faults.heartbeat import last_sign, naming
from executor.measure.any_report import AnyReport, load_any_report, operations_of_record, save_report
from executor.run_config import PROGRESS, REPORT
from executor.steps import Progress, Watcher


class FileWatcher(Watcher):
    """Appends to `progress.jsonl`; with `again` it goes on with what an earlier start of the same run wrote."""

    def __init__(
        self, folder: Path, *, goes_on: bool, start: int = 1, save_interval: int | None = None
    ) -> None:
        """`start`: how often ranks were started, this time included; `every`: steps from save to save, if any."""
        super().__init__()
        self._start, self._save_interval = start, save_interval
        self._last_sign = last_sign(folder) if goes_on else None
        self._path, self._report = folder / PROGRESS, folder / REPORT
        self._goes_on = goes_on
        self._earlier: list[dict[str, Any]] = []
        if goes_on:
            self._earlier = read_progress(self._path)
            self.notes += [line["note"] for line in self._earlier if "note" in line]

    def step(self, progress: Progress) -> None:
        """Append a line of numbers."""
        self._append(asdict(progress))

    def note(self, text: str) -> None:
        super().note(text)
        self._append({"note": text})

    def saved(self, step: int, seconds: float) -> None:
        """Append how long training waited for a save."""
        self._append({"save": step, "blocked_seconds": seconds, "at": date()})

    def written(self, step: int, seconds: float, size: int) -> None:
        """Append how long a checkpoint took to write."""
        self._append({"saved": step, "flush_seconds": seconds, "bytes": size, "at": date()})

    def resumed(self, step: int, loading_seconds: float) -> None:
        """Append the time that a loss of ranks took; nothing where a person restarted the run."""
        if not self._goes_on:
            return
        now, process_start = date(), process_began()
        dated_lines = [line for line in self._earlier if "at" in line]
        seen = max(
            [line["at"] for line in dated_lines] + ([self._last_sign] if self._last_sign else []),
            default=process_start,
        )
        self._append(
            {
                "restart": self._start,
                "detection_seconds": max(0.0, process_start - seen),
                "starting_seconds": now - loading_seconds - max(process_start, seen),
                "loading_seconds": loading_seconds,
                "resumed_step": step,
                "steps_lost": len({line["step"] for line in self._earlier if line.get("step", 0) > step}),
                "at": now,
            }
        )

    def keep(self, report: AnyReport) -> None:
        """Write a report, the account of saves and restarts with it; the final one will replace others."""
        save_report(self.completed(report), self._report)

    def completed(self, report: AnyReport) -> AnyReport:
        """The report with what the start took, and the account of saves and restarts, where there were to be any."""
        report = report.model_copy(update={"start": self.clock.report()})
        if self._save_interval is None:
            return report
        operations = operations_of_record(read_progress(self._path), self._save_interval)
        return report.model_copy(update={"operations": operations})

    def earlier_report(self) -> AnyReport | None:
        """The report that an earlier start of this run wrote, complete or not; None where there is none."""
        return load_any_report(self._report) if self._goes_on and self._report.exists() else None

    def metrics_before(self, step: int) -> tuple[list[float], list[float]]:
        """Losses and gradient norms of the steps up to `step`, each as it was trained last."""
        lines = {line["step"]: line for line in self._earlier if line.get("step", step + 1) <= step}
        last_lines = [lines[number] for number in sorted(lines)]
        return [line["loss"] for line in last_lines], [line["gradient_norm"] for line in last_lines]

    def _append(self, line: dict[str, Any]) -> None:
        """Append a line in one write, so that neither a killed rank nor a full disk leaves half of it."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        text = (json.dumps(line) + "\n").encode()
        try:
            size = os.fstat(descriptor).st_size
            with naming(self._path):
                if os.write(descriptor, text) < len(text):
                    os.ftruncate(descriptor, size)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)


def process_began() -> float:
    """When this process was started, seconds since 1970.

    Linux counts from when it booted, and tells the time of that in whole seconds: the seconds since then are exact.
    """
    created = psutil.Process().create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return created
    return boot_date() + created - psutil.boot_time()


def read_progress(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a progress file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
