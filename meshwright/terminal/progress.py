"""Progress on stderr: only after a second, only for a terminal, never under `--quiet`."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cost_models.documents import printable
from cost_models.units import format_seconds, grouped
from meshwright.render.words import percent
from meshwright.terminal.output import Output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from planner.search.search import Budget

PATIENCE_SECONDS = 1.0
"""Seconds before progress is shown."""


class Reporter:
    """A line, or two on a narrow terminal, replaced as work goes on; it appears when patience has run out."""

    def __init__(self, visible: bool) -> None:
        self._text = ""
        self._doing = ""
        self._line: Progress | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE_SECONDS, self._appear)
        self._timer.daemon = True
        if visible:
            self._timer.start()

    @property
    def said(self) -> str:
        """Last text of the line."""
        return self._text

    def say(self, text: str) -> None:
        """Replace the line."""
        with self._lock:
            self._text = printable(text, limit=None)
            if self._line is not None:
                self._line.update(self._line.task_ids[0], description=self._text)

    def doing(self, what: str) -> None:
        """Set the purpose of the next searches, the beginning of their line."""
        self._doing = f"{what}  "
        self.say(what)

    def searching(self, done: int, total: int, best_seconds: float, bound_seconds: float) -> None:
        """The line of a search: layouts decided, the best step so far and how far it can be from the optimum."""
        known = math.isfinite(best_seconds)
        gap = percent(1 - bound_seconds / best_seconds) if known else "?"
        best = format_seconds(best_seconds) if known else "none yet"
        bound = format_seconds(bound_seconds) if math.isfinite(bound_seconds) else "?"
        reached = f"best {best}  bound {bound}  gap {gap}"
        self.say(f"{self._doing or 'searching  '}{grouped(done)}/{grouped(total)} layouts  {reached}")

    def close(self) -> None:
        """Remove the line, and say how long the command has taken: its searches are but a part of the wait."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._line is not None:
                self._line.stop()
                self._line.console.print(f"{format_seconds(seconds_in_all())} in all", style="dim")
                self._line = None

    def _appear(self) -> None:
        from rich.console import Console

        with self._lock:
            if self._closed:
                return
            self._line = line_on(Console(stderr=True))
            self._line.add_task(self._text, total=None)
            self._line.start()


def seconds_in_all() -> float:
    """Since this process started, imports included."""
    import psutil

    return time.time() - psutil.Process().create_time()


def line_on(console: Console) -> Progress:
    """Progress line of a console, folded where it is narrower than the words."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    words = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    return Progress(SpinnerColumn(), words, TimeElapsedColumn(), console=console, transient=True)


@contextmanager
def progress(output: Output) -> Iterator[Reporter]:
    """A reporter for as long as some work takes; Ctrl-C that nothing else heeds ends it with where it was."""
    reporter = Reporter(visible=not output.quiet and sys.stderr.isatty())
    try:
        yield reporter
    except KeyboardInterrupt:
        raise KeyboardInterrupt(reporter.said) from None
    finally:
        reporter.close()


@contextmanager
def searching(
    output: Output, time_limit: float | None, *, doing: str = "", keep: bool = True
) -> Iterator[Budget]:
    """A budget for searches that tell how far they are; with `keep`, Ctrl-C leaves the best found so far."""
    from planner.search.search import Budget

    with progress(output) as reporter:
        if doing:
            reporter.doing(doing)
        yield Budget(
            time_limit=time_limit,
            on_progress=reporter.searching,
            on_status=reporter.doing,
            keep_on_interrupt=keep,
        )
