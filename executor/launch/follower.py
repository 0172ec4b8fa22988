"""Follows a run from its launcher: hands on steps and notes, sees that it must end, and passes a wish to stop on."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor.faults.failures import read_failures, what_happened
from executor.launch.nodes import Launch, Nodes, rendezvous_file
from executor.run_config import PROGRESS, STOP

OnStep = Callable[[dict[str, Any]], None]
"""Called with step, loss, gradient_norm, seconds, measured (False in the warm-up) and at (when it ended)."""
OnNote = Callable[[str], None]
"""Called with what a person should know: a resume, a restart."""

_POLL_SECONDS = 0.05
_SHARED_POLL_SECONDS = 0.5
"""Seconds between looks at a folder that several nodes share."""
_LAST_WORDS_SECONDS = 1.0
"""How long other ranks have to write why they failed, after a failure that would happen again."""
_WAITING_SECONDS = 5.0
"""How long after a failure on several nodes it is said that the run waits."""
_SWEPT_SECONDS = 5.0
"""How long torchrun may be without its file; it deletes it when it ends."""


@dataclass(slots=True)
class Follower:
    """Follows a run: reports steps and notes, and decides when it must end."""

    launch: Launch
    folder: Path
    logs: Path
    ranks: int
    nodes: Nodes
    restarts: int
    timeout: float
    on_step: OnStep
    on_note: OnNote
    told: int = 0
    """How many lines of progress were handed on."""
    failed_at: float | None = None
    """When a failure was first seen that the ranks have not got over."""
    said: bool = False
    swept_at: float | None = None
    """When torchrun's file was first missed."""

    def until_the_end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until torchrun ends or a failure is final. A first Ctrl-C asks the ranks to stop, a second ends them."""
        poll = _POLL_SECONDS if self.nodes.count == 1 else _SHARED_POLL_SECONDS
        while True:
            try:
                ended = process.poll() is not None
                if self.nodes.count == 1 or self.launch.begun():
                    self._hand_on()
                    given_up = self._given_up()
                    if ended or given_up:
                        return
                elif ended:
                    return
                if self.swept() or not self.folder.is_dir():
                    return
                time.sleep(poll)
            except KeyboardInterrupt:
                if (self.folder / STOP).exists() or (self.nodes.count > 1 and not self.launch.begun()):
                    raise
                (self.folder / STOP).write_text(self.launch.token, "utf-8")
                self.on_note("stopping after this step; Ctrl-C again stops at once")

    def swept(self) -> bool:
        """Whether the rendezvous file of a single node is gone: torchrun then neither restarts ranks nor ends."""
        if self.nodes.count > 1 or rendezvous_file(self.logs).exists():
            return False
        self.swept_at = self.swept_at or time.monotonic()
        return time.monotonic() - self.swept_at > _SWEPT_SECONDS

    def _given_up(self) -> bool:
        """Whether a rank failed for good, and the others had time to write why."""
        failures = read_failures(self.folder)
        if not failures:
            self.failed_at, self.said = None, False
            return False
        self.failed_at = self.failed_at or time.monotonic()
        since = time.monotonic() - self.failed_at
        if any(
            one["final"] or (one.get("left_out") and one["launch"] == self.launch.token) for one in failures
        ):
            return since > _LAST_WORDS_SECONDS
        if self.nodes.count > 1 and self.restarts and not self.said and since > _WAITING_SECONDS:
            self.said = True
            what = what_happened(self.folder, self.ranks, self.launch.ranks())
            self.on_note(
                f"{what}; waiting up to {self.timeout:.0f} s for all nodes: the same command on another one takes the"
                " place of one that is lost"
            )
        return False

    def _hand_on(self) -> None:
        """Report new lines of progress, where rank 0 was started here."""
        progress = self.folder / PROGRESS
        if not progress.exists():
            return
        lines = progress.read_text("utf-8").split("\n")[self.told : -1]
        self.told += len(lines)
        if not lines or (self.nodes.count > 1 and not self.launch.has_first_rank()):
            return
        for text in lines:
            line = json.loads(text)
            if "note" in line:
                self.on_note(line["note"])
            elif "step" in line:
                self.on_step(line)
