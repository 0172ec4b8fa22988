"""Start a plan's ranks here with torchrun, follow them to their end, and say why they failed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from cost_models.errors import WARNING, MeshwrightError, Problem, RunError, StoppedError
from executor.clock import date
from executor.faults import failures
from executor.faults.heartbeat import LAUNCH, delete_signs
from executor.launch.environment import on_this_machine, worker_environment
from executor.launch.follower import Follower, OnNote, OnStep
from executor.launch.nodes import Launch, Nodes, delete_answers, rendezvous_file, require_not_left_out
from executor.measure.any_report import load_any_report, save_report
from executor.run_config import FAILED_CHECKS, OWNERS, PROGRESS, REPORT, STOP, STOPPED, RunConfig
from executor.starting import STARTED

_ROLL_CALL_SECONDS = 15.0
"""How long launchers on other nodes have to answer; ending their own ranks takes them the shutdown."""
_SHUTDOWN_SECONDS = "10"
"""Seconds after which torchrun kills a rank that does not end, as one that was stopped by SIGSTOP."""
_KILL_SECONDS = 10.0
"""Beyond the shutdown: when torchrun is killed because it does not end."""


def run_ranks(
    ranks: int,
    config: RunConfig,
    logs: Path,
    arguments: list[str],
    *,
    on_step: OnStep,
    on_note: OnNote,
    locks: Sequence[int] = (),
) -> None:
    """Run the ranks until their report is in the run's folder; their output goes to files under `logs`. torchrun holds
    the `locks`, too.

    Of several nodes each calls it; the one with rank 0 reports steps.

    Ranks that fail after every step was measured leave a report of these; then that is a note, and no error.

    Raises:
        RunError, InputError, HostError: a rank failed, and was not to be started again.
        StoppedError: it was stopped by Ctrl-C or SIGTERM, after a whole step.
    """
    folder, nodes = config.out, Nodes(count=config.nodes, rendezvous=config.rendezvous)
    assert folder is not None
    restarts = config.restarts if config.saving is not None else 0
    if nodes.count == 1:
        clear_run_folder(folder)  # of several, others may have begun; their first rank does it
        (folder / FAILED_CHECKS).unlink(missing_ok=True)
    elif not nodes.here:
        require_not_left_out(folder)
    launch = Launch(folder, ranks)
    process = _start(
        [*nodes.arguments(ranks, config.timeout, folder, logs), "--max-restarts", str(restarts)],
        logs,
        arguments,
        launch,
        nodes,
        locks,
    )
    follower = Follower(launch, folder, logs, ranks, nodes, restarts, config.timeout, on_step, on_note)
    try:
        with _terminated_like_interrupted():
            follower.until_the_end(process)
    finally:
        _end(process, kill=follower.swept())
    if nodes.count > 1 and not launch.begun():
        raise _never_begun(launch, folder, logs)
    if (folder / STOPPED).exists():
        where = json.loads((folder / STOPPED).read_text("utf-8"))
        raise stopped(where["step"], where["saved"])
    if process.returncode != 0 or not (folder / REPORT).exists():
        error = (
            _swept(logs)
            if follower.swept()
            else _failure(launch, folder, logs, ranks, nodes, config.checkpoint)
        )
        if not (folder / REPORT).exists():
            raise error
        _add_note(folder / REPORT, WARNING + error.headline, on_note)


def _add_note(path: Path, note: str, on_note: OnNote) -> None:
    """Report what happened after the report was kept (`executor.transformer.diagnosis`), and put it into the report."""
    on_note(note)
    report = load_any_report(path)
    if note not in report.notes:
        save_report(report.model_copy(update={"notes": (*report.notes, note)}), path)


def clear_run_folder(folder: Path) -> None:
    """Delete what an earlier run left in the folder."""
    for old in (PROGRESS, REPORT, STOP, STOPPED, OWNERS):
        (folder / old).unlink(missing_ok=True)
    delete_signs(folder)
    failures.delete_failures(folder)
    delete_answers(folder)


def _failure(
    launch: Launch, folder: Path, logs: Path, ranks: int, nodes: Nodes, saved: Path | None
) -> MeshwrightError:
    answered: frozenset[int] = frozenset()
    if (
        nodes.count > 1
        and folder.is_dir()
        and not any(one["final"] or "left_out" in one for one in failures.read_failures(folder))
    ):
        answered = launch.roll_call(_ROLL_CALL_SECONDS)
    return failures.failure_error(folder, logs, ranks, launch=launch.token, answered=answered, saved=saved)


def _swept(logs: Path) -> RunError:
    """The error of a run whose temporary folder is gone: torchrun can then neither end nor start ranks again."""
    return RunError(
        f"the run's temporary folder {logs.parent} was deleted while it went on",
        hint="keep what clears temporary files away from it, or set TMPDIR to a folder that is left alone",
    )


def _never_begun(launch: Launch, folder: Path, logs: Path) -> MeshwrightError:
    """The error of a run whose nodes did not meet, or whose ranks here failed before they met the others."""
    for failure in failures.read_failures(folder):
        if failure.get("launch") == launch.token and "headline" in failure:
            return failures.error_of_fields(failure)
    return RunError(
        "the nodes did not come together",
        problems=[Problem("", line) for line in failures.last_lines([logs / "torchrun.log"])],
        hint="start the same command on each node; --rendezvous names a free port of one of them",
    )


def _start(
    how: list[str], logs: Path, arguments: list[str], launch: Launch, nodes: Nodes, locks: Sequence[int]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "executor.launch.agent", *how]
    command += ["--redirects", "3", "--log-dir", str(logs), "-m", "executor.launch.rank", *arguments]
    logs.mkdir(parents=True)
    environment = worker_environment() | {LAUNCH: launch.token, STARTED: str(date())}
    if nodes.count == 1:
        rendezvous_file(logs).touch()
    if nodes.here:
        environment = on_this_machine(environment)
    environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN_SECONDS)
    # With the agent's own store, ranks that start again find the addresses of those that are gone (torch 2.13).
    environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    with (logs / "torchrun.log").open("wb") as stream:
        return subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            pass_fds=locks,
        )


def _end(process: subprocess.Popen[bytes], *, kill: bool) -> None:
    """End torchrun, which ends its ranks; where it is killed they end themselves (`executor.launch.environment`)."""
    if process.poll() is None and not kill:
        os.killpg(process.pid, signal.SIGTERM)
        shutdown = float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN_SECONDS))
        with suppress(subprocess.TimeoutExpired):
            process.wait(shutdown + _KILL_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()


def stopped(step: int, saved: int | None) -> StoppedError:
    """The error of a run that stopped on request after `step`; `saved` is its newest checkpoint."""
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
    """Treat a scheduler's SIGTERM as Ctrl-C inside the block; outside the main thread nothing changes."""
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
