"""Progress line on stderr: shown after one second, only on a terminal, never under `--quiet`."""

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
"""Seconds of work before the progress line appears."""


class Reporter:
    """Progress line on stderr, replaced as work goes on; it appears after `PATIENCE_SECONDS`."""

    def __init__(self, visible: bool) -> None:
        """Start the timer that shows the progress line, if it is `visible`."""
        self.text = ""
        self._doing = ""
        self._line: Progress | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(PATIENCE_SECONDS, self._appear)
        self._timer.daemon = True
        if visible:
            self._timer.start()

    def say(self, text: str) -> None:
        """Replace the text of the progress line."""
        with self._lock:
            self.text = printable(text, limit=None)
            if self._line is not None:
                self._line.update(self._line.task_ids[0], description=self.text)

    def doing(self, what: str) -> None:
        """Set the words with which the progress line begins during the next searches."""
        self._doing = f"{what}  "
        self.say(what)

    def searching(self, done: int, total: int, best_seconds: float, bound_seconds: float) -> None:
        """Show a search's progress: layouts decided, best step in seconds, lower bound and gap."""
        known = math.isfinite(best_seconds)
        gap = percent(1 - bound_seconds / best_seconds) if known else "?"
        best = format_seconds(best_seconds) if known else "none yet"
        bound = format_seconds(bound_seconds) if math.isfinite(bound_seconds) else "?"
        reached = f"best {best}  bound {bound}  gap {gap}"
        self.say(f"{self._doing or 'searching  '}{grouped(done)}/{grouped(total)} layouts  {reached}")

    def close(self) -> None:
        """Remove the progress line, and print how long the command took in all."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._line is not None:
                self._line.stop()
                self._line.console.print(f"{format_seconds(seconds_in_all())} in all", style="dim")
                self._line = None

    def _appear(self) -> None:
        """Show the progress line, unless it was closed."""
        from rich.console import Console

        with self._lock:
            if self._closed:
                return
            self._line = line_on(Console(stderr=True))
            self._line.add_task(self.text, total=None)
            self._line.start()


def seconds_in_all() -> float:
    """Seconds since this process started, imports included."""
    import psutil

    return time.time() - psutil.Process().create_time()


def line_on(console: Console) -> Progress:
    """Progress line on a console, folded if the console is narrower than its text."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    words = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    return Progress(SpinnerColumn(), words, TimeElapsedColumn(), console=console, transient=True)


@contextmanager
def progress(output: Output) -> Iterator[Reporter]:
    """Context with a progress reporter; Ctrl-C inside raises KeyboardInterrupt with the last progress text."""
    reporter = Reporter(visible=not output.quiet and sys.stderr.isatty())
    try:
        yield reporter
    except KeyboardInterrupt:
        raise KeyboardInterrupt(reporter.text) from None
    finally:
        reporter.close()


@contextmanager
def searching(
    output: Output, time_limit: float | None, *, doing: str = "", keep: bool = True
) -> Iterator[Budget]:
    """Context with the budget of a search (time limit, progress line); with `keep`, Ctrl-C keeps the best layout so
    far."""
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
