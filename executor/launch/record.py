"""The running record of a run: a JSON line for every step and every note, kept when ranks are started again."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from executor.measure.any_report import AnyReport, load_any_report, save_report
from executor.run_files import PROGRESS, REPORT
from executor.steps import Progress, Watcher


class FileWatcher(Watcher):
    """Appends to `progress.jsonl`; with `again` it goes on with what an earlier start of the same run wrote."""

    def __init__(self, folder: Path, *, again: bool) -> None:
        super().__init__()
        self._path, self._report = folder / PROGRESS, folder / REPORT
        self._again = again
        self._earlier: list[dict[str, Any]] = []
        if again:
            self._earlier = read_progress(self._path)
            self.notes += [line["note"] for line in self._earlier if "note" in line]

    def step(self, progress: Progress) -> None:
        """Append a line of numbers."""
        self._append(asdict(progress))

    def note(self, text: str) -> None:
        """Append a line of words."""
        super().note(text)
        self._append({"note": text})

    def keep(self, report: AnyReport) -> None:
        """Write a report that the final one will replace."""
        save_report(report, self._report)

    def kept(self) -> AnyReport | None:
        """The report that an earlier start of this run wrote, complete or not; None where there is none."""
        return load_any_report(self._report) if self._again and self._report.exists() else None

    def before(self, step: int) -> tuple[list[float], list[float]]:
        """Losses and gradient norms of the steps up to `step`, each as it was trained last."""
        lines = {line["step"]: line for line in self._earlier if line.get("step", step + 1) <= step}
        told = [lines[number] for number in sorted(lines)]
        return [line["loss"] for line in told], [line["gradient_norm"] for line in told]

    def _append(self, line: dict[str, Any]) -> None:
        """Append a line in one write, so that a rank that is killed leaves no half of it."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, (json.dumps(line) + "\n").encode())
        finally:
            os.close(descriptor)


def read_progress(path: Path, first: int = 0) -> list[dict[str, Any]]:
    """The complete lines of a progress file, from number `first` on."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").split("\n")[first:-1]]
