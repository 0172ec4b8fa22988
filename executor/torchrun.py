"""Start a plan's ranks here with torchrun, follow them, start them again after a fault, and stop them when asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from cost_models.errors import StoppedError
from executor.asked import PROGRESS, REPORT, STOP, STOPPED
from executor.environment import worker_environment
from executor.failures import forget_failures, read_failures, worded_failure

OnStep = Callable[[dict[str, Any]], None]
"""Called with step, loss, gradient_norm, seconds and measured (False in the warm-up)."""
OnNote = Callable[[str], None]
"""Called with what a person should know: a resume, a restart."""

_POLL_SECONDS = 0.05
_LAST_WORDS_SECONDS = 1.0
"""After a failure that would happen again: how long the other ranks have to leave word, too."""
_SHUTDOWN_SECONDS = "10"
"""After which torchrun kills a rank that does not end; a rank that is stopped cannot."""


def run_ranks(
    ranks: int,
    folder: Path,
    logs: Path,
    arguments: list[str],
    *,
    restarts: int,
    on_step: OnStep,
    on_note: OnNote,
) -> None:
    """Until the report is in `folder`; the ranks' output goes to files of their own under `logs`.

    Raises:
        RunError, InputError, HostError: a rank failed, and was not to be started again.
        StoppedError: it was asked to stop, by Ctrl-C or SIGTERM, and did after a whole step.
    """
    for old in (PROGRESS, REPORT, STOP, STOPPED):
        (folder / old).unlink(missing_ok=True)
    for sign in folder.glob("alive-*.json"):
        sign.unlink()
    forget_failures(folder)
    process = _start(ranks, logs, arguments, restarts)
    try:
        with _terminated_like_interrupted():
            _follow(process, folder, on_step, on_note)
    finally:
        _end(process)
    if (folder / STOPPED).exists():
        where = json.loads((folder / STOPPED).read_text("utf-8"))
        raise stopped(where["step"], where["saved"])
    if process.returncode != 0 or not (folder / REPORT).exists():
        raise worded_failure(folder, logs, ranks)


def _start(ranks: int, logs: Path, arguments: list[str], restarts: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    command += ["--redirects", "3", "--log-dir", str(logs), "-m", "executor.worker", *arguments]
    logs.mkdir(parents=True)
    environment = worker_environment()
    environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN_SECONDS)
    # With the agent's own store, ranks that start again find the addresses of those that are gone (torch 2.13).
    environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    with (logs / "torchrun.log").open("wb") as stream:
        return subprocess.Popen(
            command, stdout=stream, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def _follow(process: subprocess.Popen[bytes], folder: Path, on_step: OnStep, on_note: OnNote) -> None:
    """Until torchrun ends, or a failure is final. A first Ctrl-C asks the ranks to stop, a second is one."""
    told, given_up = 0, None
    while True:
        try:
            ended = process.poll() is not None
            told = _tell(folder / PROGRESS, told, on_step, on_note)
            if ended:
                return
            if any(failure["final"] for failure in read_failures(folder)):
                given_up = given_up or time.monotonic() + _LAST_WORDS_SECONDS
                if time.monotonic() > given_up:
                    return
            time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            if (folder / STOP).exists():
                raise
            (folder / STOP).touch()
            on_note("stopping after this step; Ctrl-C again stops at once")


def _tell(progress: Path, told: int, on_step: OnStep, on_note: OnNote) -> int:
    """Hand on the complete lines that are new; returns how many there are."""
    if not progress.exists():
        return told
    lines = progress.read_text("utf-8").split("\n")[:-1]
    for text in lines[told:]:
        line = json.loads(text)
        if "note" in line:
            on_note(line["note"])
        else:
            on_step(line)
    return len(lines)


def _end(process: subprocess.Popen[bytes]) -> None:
    """torchrun ends its ranks."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def stopped(step: int, saved: int | None) -> StoppedError:
    """The end of a run that was asked to stop after `step`, in words; `saved` is its newest checkpoint."""
    if saved is None:
        return StoppedError(
            f"stopped after step {step}; nothing was saved",
            hint="with --checkpoint FOLDER a run can go on later",
        )
    return StoppedError(
        f"stopped after step {step}, which is saved", hint="the same command with --resume goes on"
    )


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """A scheduler's SIGTERM is a Ctrl-C while it lasts; elsewhere than in the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
