"""Progress on stderr: only after a second, only for a terminal, never under `--quiet`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cost_models.units import format_seconds
from meshwright.output import Output
from meshwright.render.words import percent, spaced

if TYPE_CHECKING:
    from rich.status import Status

PATIENCE_SECONDS = 1.0
"""Whatever is done sooner shows no progress."""


class Reporter:
    """One line that is replaced as work goes on."""

    def __init__(self, visible: bool) -> None:
        self._visible = visible
        self._start = time.monotonic()
        self._status: Status | None = None

    def say(self, text: str) -> None:
        """Replace the line."""
        if not self._visible or time.monotonic() - self._start < PATIENCE_SECONDS:
            return
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(f"{text}  {self._elapsed()}")

    def searching(self, done: int, total: int, best_seconds: float, bound_seconds: float) -> None:
        """The line of a search: layouts decided, the best step so far and how far it can be from the optimum."""
        known = best_seconds < float("inf")
        gap = percent((best_seconds - bound_seconds) / best_seconds) if known else "?"
        best = format_seconds(best_seconds) if known else "none yet"
        self.say(f"searching  {spaced(done)}/{spaced(total)} layouts  best {best}  gap {gap}")

    def close(self) -> None:
        """Remove the line."""
        if self._status is not None:
            self._status.stop()

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        return f"{minutes}:{seconds:02d}"


@contextmanager
def progress(output: Output) -> Iterator[Reporter]:
    """A reporter for as long as some work takes."""
    reporter = Reporter(visible=not output.quiet and sys.stderr.isatty())
    try:
        yield reporter
    finally:
        reporter.close()
