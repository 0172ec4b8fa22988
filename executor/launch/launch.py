"""Run a plan: check plan and host, start torchrun on one node or several, follow its progress, read its report.

**Several nodes.** Launchers do not know of one another. Each gives its ranks a token, which these put into their signs
in the folder that all nodes see; so a launcher knows that what lies there is of this run, which ranks are its own, and
which are of launchers that answered when the run failed.

**Following.** The launcher hands on steps and notes, sees when the run must end, and says why ranks failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from cost_models.errors import (
    WARNING,
    HostError,
    InputError,
    MeshwrightError,
    Problem,
    RunError,
    StoppedError,
    UnknownNameError,
)
from cost_models.files.whole import lock, lock_alone, temporary_folder
from executor.clock import STARTED, date
from executor.families import OnNote, training_of
from executor.faults.failures import (
    FAILURES,
    LAUNCH,
    SIGNS,
    delete_files,
    error_of_fields,
    failure_cause,
    failure_error,
    last_lines,
    read_failures,
    read_sign,
    read_signs,
)
from executor.launch.environment import LOOPBACK
from executor.launch.workers import end_agent, on_one_node, rendezvous_file, start_agent
from executor.measure.report import AnyReport, load_any_report, save_report
from executor.requirements import cuda_devices, require_host, require_torch, require_world
from executor.run_config import (
    BACKENDS,
    FAILED_CHECKS,
    LOCK,
    OWNERS,
    PROGRESS,
    REPORT,
    STOP,
    STOPPED,
    RunConfig,
    require_descent,
    require_places,
)
from planner.plan import AnyPlan, load_any_plan, save_plan

_ANSWER = "launcher-{token}"
ANSWERS = _ANSWER.format(token="*")
"""Pattern of the files with which launchers answer a roll call."""
_ANSWER_POLL_SECONDS = 0.1
_ENDING_SECONDS = 5.0
"""Seconds that ranks of a launcher that was killed may take to end."""
_NAME_DIGITS = 12


def require_nodes(config: RunConfig, ranks: int, *, inside: bool) -> None:
    """Raise InputError if the nodes cannot share the ranks evenly, or lack an address to meet or a shared folder."""
    if config.nodes < 1:
        raise InputError(f"a run has one node or more, not {config.nodes}")
    if config.nodes == 1:
        if config.rendezvous is not None:
            raise InputError("one node has nobody to meet", hint="--nodes says how many there are")
        return
    if inside:
        raise InputError(
            "this process is a rank already, started by torchrun or the like",
            hint="leave out --nodes, or start `meshwright run` once on each node",
        )
    if ranks % config.nodes:
        raise InputError(f"the plan has {ranks} ranks, which {config.nodes} nodes cannot share evenly")
    host, _, port = (config.rendezvous or "").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(
            "several nodes need a place to meet", hint="--rendezvous HOST:PORT, the same on each of them"
        )
    if config.out is None:
        raise InputError("several nodes need a folder for the report that all of them see", hint="out_dir")


@contextmanager
def exclusive_folders(folders: Iterable[Path | None], rendezvous: str) -> Iterator[list[int]]:
    """Context manager that keeps other runs out of these folders; launchers with the same `rendezvous` share them.

    The locks go with the descriptors, once every process that has them is gone.

    Raises:
        InputError: another run writes there.
        HostError: this is the first node, and something listens at the place already.
    """
    with ExitStack() as stack:
        descriptors = []
        for folder in filter(None, folders):
            folder.mkdir(parents=True, exist_ok=True)
            descriptors.append(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644))
            stack.callback(os.close, descriptors[-1])
            _lock(descriptors[-1], folder, rendezvous)
        yield descriptors


def _lock(descriptor: int, folder: Path, rendezvous: str) -> None:
    """Lock a folder by its open lock file. Launchers with the same rendezvous share the lock."""
    until = time.monotonic() + _ENDING_SECONDS
    while (first := lock_alone(descriptor)) is False:
        if rendezvous and os.pread(descriptor, len(rendezvous) + 1, 0) == rendezvous.encode():
            break
        if time.monotonic() > until:
            raise InputError(
                f"another run writes to `{folder}`", hint="name another folder, or wait for its end"
            )
        time.sleep(_ANSWER_POLL_SECONDS)
    else:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, rendezvous.encode(), 0)
    if first and rendezvous:
        host, _, port = rendezvous.rpartition(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=_ENDING_SECONDS):
            raise HostError(
                f"--rendezvous {rendezvous}: another program listens there, no node of this run",
                hint="name a free port of one of the nodes",
            )
    if rendezvous:
        lock(descriptor)


def failed_checks(folder: Path) -> list[dict[str, str]]:
    """One entry for each time a node came back with wrong results: its launcher and its host."""
    path = folder / FAILED_CHECKS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def require_not_left_out(folder: Path) -> None:
    """Raise HostError if this host has given wrong results twice."""
    host = socket.gethostname()
    if sum(line["host"] == host for line in failed_checks(folder)) > 1:
        raise HostError(
            f"this node ({host}) gave wrong results twice and is left out",
            hint=f"once it is repaired, delete {folder / FAILED_CHECKS}",
        )


OnStep = Callable[[dict[str, Any]], None]
"""Called with step, loss, gradient_norm, seconds, measured (False in the warm-up) and at (when it ended)."""

_POLL_SECONDS = 0.05
_SHARED_POLL_SECONDS = 0.5
"""Seconds between looks at a folder that several nodes share."""
_LAST_WORDS_SECONDS = 1.0
"""Seconds that other ranks have to write why they failed, after a failure that would happen again."""
_WAITING_SECONDS = 5.0
"""Seconds after a failure on several nodes until a note says that the run waits."""
_SWEPT_SECONDS = 5.0
"""Seconds that torchrun may be without its rendezvous file, which it deletes when it ends."""
_ROLL_CALL_SECONDS = 15.0
"""Seconds that launchers on other nodes have to answer, as they end their own ranks first."""


class Launch:
    """This launcher's part of a run: torchrun's arguments, steps and notes as they come, and why ranks failed."""

    def __init__(self, config: RunConfig, ranks: int, logs: Path, on_step: OnStep, on_note: OnNote) -> None:
        """`ranks`: number of ranks on all nodes; `logs`: folder for the output of this node's ranks."""
        assert config.out is not None
        self.config, self.size, self.folder, self.logs = config, ranks, config.out, logs
        self.on_step, self.on_note = on_step, on_note
        self.token, self.is_single = uuid.uuid4().hex, config.nodes == 1
        host, _, port = (config.rendezvous or "").rpartition(":")
        self.here = self.is_single or host in (LOOPBACK, "localhost")
        """Whether all nodes are on this machine: one node, or several that meet on loopback."""
        self._place = f"{LOOPBACK}:{port}" if self.here else config.rendezvous or ""
        self.restarts = config.restarts if config.checkpoint is not None else 0
        """Largest number of restarts of lost ranks: 0 without checkpoints."""
        self._begun = False
        self._bytes_read = 0
        """Bytes of the progress file that are already reported; reading goes on from there."""
        self._failed_at: float | None = None
        """When a failure was first seen from which the ranks have not recovered; None without."""
        self._wait_noted = False
        self._swept_at: float | None = None
        """When torchrun's rendezvous file was first missed; None if it was not."""

    def arguments(self) -> list[str]:
        """Arguments of torchrun on each node; nodes wait `config.timeout` seconds for one another.

        Several meet under the name of the run's folder, not its path, which nodes may have mounted elsewhere: nodes
        of a run into a folder of another name that come to this port by mistake take nobody's place. Folders of the
        same name in different places are not told apart.
        """
        restarts, nodes = ["--max-restarts", str(self.restarts)], self.config.nodes
        if self.is_single:
            return [*on_one_node(self.size, self.logs), *restarts]
        name = hashlib.sha256(self.folder.resolve().name.encode()).hexdigest()[:_NAME_DIGITS]
        wait = f"join_timeout={max(1, round(self.config.timeout))}"
        arguments = ["--nnodes", str(nodes), "--nproc-per-node", str(self.size // nodes), *restarts]
        arguments += ["--rdzv-backend", "c10d", "--rdzv-endpoint", self._place, "--rdzv-conf", wait]
        arguments += ["--rdzv-id", f"meshwright-{name}"]
        return [*arguments, "--local-addr", LOOPBACK] if self.here else arguments

    def begun(self) -> bool:
        """Whether this launcher's ranks have met all others; until then the folder may hold files of an earlier run."""
        self._begun = self._begun or bool(self.ranks())
        return self._begun

    def ranks(self) -> frozenset[int]:
        """Ranks that this launcher started."""
        return self._started_by({self.token})

    def has_first_rank(self) -> bool:
        """Whether this launcher started rank 0, so that it reports the steps."""
        return read_sign(self.folder, 0).get("launch") == self.token

    def roll_call(self, longest_seconds: float) -> frozenset[int]:
        """Answer the roll call and wait for other launchers; returns all ranks whose launchers still answer."""
        (self.folder / _ANSWER.format(token=self.token)).touch()
        deadline = time.monotonic() + longest_seconds
        while True:
            names = [path.name for path in self.folder.glob(ANSWERS)]
            live_ranks = self._started_by({name.partition("-")[2] for name in names})
            if len(live_ranks) == self.size or time.monotonic() > deadline:
                return live_ranks
            time.sleep(_ANSWER_POLL_SECONDS)

    def _started_by(self, tokens: set[str]) -> frozenset[int]:
        """Ranks that were started by launchers with these tokens."""
        signs = read_signs(self.folder)
        return frozenset(rank for rank, sign in signs.items() if sign.get("launch") in tokens)

    def until_the_end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until torchrun ends or a failure is final; a first Ctrl-C asks the ranks to stop, a second ends them."""
        while True:
            try:
                ended = process.poll() is not None
                if self.is_single or self.begun():
                    self._hand_on()
                    ended = self._given_up() or ended
                if ended or self.swept() or not self.folder.is_dir():
                    return
                time.sleep(_POLL_SECONDS if self.is_single else _SHARED_POLL_SECONDS)
            except KeyboardInterrupt:
                stop = self.folder / STOP
                if stop.exists() or not (self.is_single or self.begun()):
                    raise
                stop.write_text(self.token, "utf-8")
                self.on_note("stopping after this step; Ctrl-C again stops at once")

    def swept(self) -> bool:
        """Whether a single node's rendezvous file is gone for over `_SWEPT_SECONDS`. Torchrun then neither restarts
        ranks nor ends.
        """
        if not self.is_single or rendezvous_file(self.logs).exists():
            return False
        self._swept_at = self._swept_at or time.monotonic()
        return time.monotonic() - self._swept_at > _SWEPT_SECONDS

    def _given_up(self) -> bool:
        """Whether a rank failed for good, and other ranks have had time to write why."""
        failures = read_failures(self.folder)
        if not failures:
            self._failed_at, self._wait_noted = None, False
            return False
        self._failed_at = self._failed_at or time.monotonic()
        since = time.monotonic() - self._failed_at
        if any(one["final"] or (one.get("left_out") and one["launch"] == self.token) for one in failures):
            return since > _LAST_WORDS_SECONDS
        if not self.is_single and self.restarts and since > _WAITING_SECONDS and not self._wait_noted:
            self._wait_noted = True
            cause = failure_cause(self.folder, self.size, self.ranks())
            self.on_note(
                f"{cause}; waiting up to {self.config.timeout:.0f} s for all nodes: the same command on another one"
                " takes the place of one that is lost"
            )
        return False

    def _hand_on(self) -> None:
        """Report new lines of the progress file, if this launcher started rank 0."""
        progress = self.folder / PROGRESS
        if not progress.exists() or progress.stat().st_size == self._bytes_read:
            return
        with progress.open("rb") as file:
            file.seek(self._bytes_read)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._bytes_read += len(complete + newline)
        if not self.is_single and not self.has_first_rank():
            return
        for line in map(json.loads, complete.splitlines()):
            if "note" in line:
                self.on_note(line["note"])
            elif "step" in line:
                self.on_step(line)

    def error(self) -> MeshwrightError:
        """Error of a run that ended without a report, or before its report was complete."""
        if self.swept():
            return RunError(
                f"the run's temporary folder {self.logs.parent} was deleted while it went on",
                hint="keep what clears temporary files away from it, or set TMPDIR to a folder that is left alone",
            )
        failures, live_ranks = read_failures(self.folder), frozenset[int]()
        if not self.is_single and not self.begun():
            for failure in failures:
                if failure.get("launch") == self.token and "headline" in failure:
                    return error_of_fields(failure)
            return RunError(
                "the nodes did not come together",
                problems=[Problem("", line) for line in last_lines([self.logs / "torchrun.log"])],
                hint="start the same command on each node; --rendezvous names a free port of one of them",
            )
        has_cause = any(failure["final"] or "left_out" in failure for failure in failures)
        if not self.is_single and self.folder.is_dir() and not has_cause:
            live_ranks = self.roll_call(_ROLL_CALL_SECONDS)
        how: dict[str, Any] = {"launch": self.token, "saved": self.config.checkpoint}
        return failure_error(self.folder, self.logs, self.size, live_ranks=live_ranks, **how)


def run_ranks(
    plan: AnyPlan, config: RunConfig, temporary: Path, locks: Sequence[int], on_step: OnStep, on_note: OnNote
) -> None:
    """Run the ranks of a plan, from the launcher, until their report is in the run's folder. Plan, flags and the ranks'
    output go to files in a temporary folder; torchrun holds the `locks` as well.

    Of several nodes each calls it; the one with rank 0 reports steps.

    Ranks that fail after every step was measured leave a report of these; then that is a note, and no error.

    Raises:
        RunError, InputError, HostError: a rank failed, and was not to be started again.
        StoppedError: it was stopped by Ctrl-C or SIGTERM, after a whole step.
    """
    launch = Launch(config, plan.num_ranks, temporary / "logs", on_step, on_note)
    folder = launch.folder
    arguments = [str(temporary / "plan.yaml"), str(temporary / "run.json")]
    save_plan(plan, Path(arguments[0]))
    Path(arguments[1]).write_text(config.model_dump_json(), "utf-8")
    if launch.is_single:
        clear_run_folder(folder)  # of several, others may have begun; their first rank does it
        (folder / FAILED_CHECKS).unlink(missing_ok=True)
    elif not launch.here:
        require_not_left_out(folder)
    process = start_agent(
        launch.arguments(),
        "executor.launch.rank",
        arguments,
        launch.logs,
        here=launch.here,
        variables={LAUNCH: launch.token, STARTED: str(date())},
        locks=locks,
    )
    try:
        with _terminated_like_interrupted():
            launch.until_the_end(process)
    finally:
        end_agent(process, kill=launch.swept())
    if not launch.is_single and not launch.begun():
        raise launch.error()
    if (folder / STOPPED).exists():
        place = json.loads((folder / STOPPED).read_text("utf-8"))
        raise stopped(place["step"], place["saved"])
    if process.returncode == 0 and (folder / REPORT).exists():
        return
    error = launch.error()
    if not (folder / REPORT).exists():
        raise error
    # what happened after the report was kept (`executor.transformer.diagnosis`) is a note
    note, report = WARNING + error.headline, load_any_report(folder / REPORT)
    on_note(note)
    if note not in report.notes:
        save_report(report.model_copy(update={"notes": (*report.notes, note)}), folder / REPORT)


def clear_run_folder(folder: Path) -> None:
    """Delete the files that an earlier run left in the folder."""
    delete_files(folder, PROGRESS, REPORT, STOP, STOPPED, OWNERS, SIGNS, FAILURES, ANSWERS)


def stopped(step: int, saved: int | None) -> StoppedError:
    """Error of a run that stopped on request after `step`; `saved` is the step of its newest checkpoint."""
    end, hint = ", which is saved", "the same command with --resume goes on"
    if saved is None:
        end, hint = "; nothing was saved", "with --checkpoint FOLDER a run can go on later"
    return StoppedError(f"stopped after step {step}{end}", hint=hint)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Context manager that treats a scheduler's SIGTERM as Ctrl-C, in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, as at Ctrl-C."""
        raise KeyboardInterrupt

    outer_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, outer_handler)


def run_plan(
    plan: str | Path | AnyPlan,
    config: RunConfig,
    *,
    on_step: OnStep | None = None,
    on_note: OnNote | None = None,
    name: str | None = None,
) -> AnyReport:
    """Train a plan as `config` says and return the report of its measurements.

    Starts one process for each rank with torchrun: a plan for GPUs runs on CUDA devices over NCCL where there are
    any, else it and a plan for the CPU run on CPU processes over gloo. Already inside torchrun or a SLURM job that sets
    RANK, this process is that rank and trains itself.

    Of several nodes each calls it alike, with an output folder and a checkpoint folder that all of them see.

    Errors call the plan by `name`, or by its file's.

    Raises:
        InputError: the plan cannot be trained: its precision, its layout, its vocabulary, its data; or the checkpoint
            belongs to another run.
        HostError: no torch, too few devices, or none that multiply as the plan says, or another number of processes
            than the plan has ranks.
        RunError: a rank failed, hung or ran out of memory, a node was lost, the loss is no number, a checkpoint could
            not be written; the problems say where.
        StoppedError: Ctrl-C or SIGTERM; the step was finished, and saved where there is somewhere to.
    """
    require_places(config)
    loaded = plan if isinstance(plan, AnyPlan) else load_any_plan(plan)
    name = name or ("plan" if isinstance(plan, AnyPlan) else Path(plan).name)
    on_note = on_note or (lambda note: None)
    inside = "RANK" in os.environ
    config = _checked(loaded, name, config, on_note, inside=inside)
    with temporary_folder("meshwright-run-") as temporary:
        folder = config.out or temporary / "out"
        config = config.model_copy(update={"out": folder})
        first = os.environ.get("RANK", "0") == "0"
        folder.mkdir(parents=True, exist_ok=True)
        written = (folder, config.checkpoint) if first else ()
        with exclusive_folders(written, config.rendezvous or "") as locks:
            if inside:
                from executor.launch.rank import work
                from executor.steps import Stopped

                result = work(loaded, config)
                if isinstance(result, Stopped):
                    raise stopped(result.step, result.saved)
                return result
            run_ranks(loaded, config, temporary, locks, on_step or (lambda step: None), on_note)
            return load_any_report(folder / REPORT)


def _checked(plan: AnyPlan, name: str, config: RunConfig, on_note: OnNote, *, inside: bool) -> RunConfig:
    """Flags to run with, after plan, flags and this host are checked to be compatible."""
    require_torch("run")
    training = training_of(plan)
    config = training.require_trainable(plan, config, on_note)
    require_descent(config.rate, config.clip)
    require_nodes(config, plan.num_ranks, inside=inside)
    backend = config.backend or ("nccl" if plan.gpu.kind != "cpu" and cuda_devices() else "gloo")
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS, hint="nccl for GPUs, gloo for CPUs")
    if inside:
        require_world(plan, name)
    else:
        require_host(plan, name, backend, config.nodes)
    training.require_devices(plan, name, on_gpu=backend == "nccl")
    return config.model_copy(update={"backend": backend})
