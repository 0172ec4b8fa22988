"""Signs of life and failures of ranks, as files that the launcher reads and turns into errors.

A rank writes its failure, its launcher reads it and words it for people. A `final` failure would happen again: the run
is not started again for it.

**Heartbeat.** A rank writes to disk where it is, for others to see, and ends when it has made no progress for too long.
A rank that hangs makes all others wait inside a collective, so each rank's watch finds its own standing still: the
ranks say how far they came, and the one that came least far, or that says nothing, is the one that hangs.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from cost_models.errors import HostError, InputError, MeshwrightError, Problem, RunError
from cost_models.units import format_bytes
from executor.checkpoints.manifest import Folder
from executor.clock import date

PHASES = ("start", "data", "forward and backward", "update", "save", "end")
"""Phases of a rank, in the order of a training step."""
_OF_ANY_LENGTH = ("start", "end")
"""Phases without a time limit: building a model, checking a checkpoint, measuring."""
SIGN, SIGNS = "alive-{rank}.json", "alive-*.json"
LAUNCH = "MESHWRIGHT_LAUNCH"
"""Environment variable: the token of the launcher that started this rank."""
_WIDTH = 2048
"""Bytes of a sign of life, allocated when the rank starts, so that it can report later that the disk is full."""
_LONGEST_HOST = 64
_LAST_FRAMES = 4

OnHang = Callable[[str, int, list[str]], None]
"""Called with phase, step and the last frames of the training thread; it may not return."""


class Heartbeat:
    """Writer of one rank's sign of life, and watch over its progress. Steps count from 1; without a folder nothing is
    written.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._rank = rank
        self._home = {
            "node": int(os.environ.get("GROUP_RANK", "0")),
            "host": socket.gethostname()[:_LONGEST_HOST],
            "launch": os.environ.get(LAUNCH, ""),
        }
        self._file: int | None = None
        if folder is not None:
            self._path = folder / SIGN.format(rank=rank)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.beat(0, PHASES[0])

    def beat(self, step: int, phase: str) -> None:
        """Write that this rank begins `phase` of `step`."""
        self.step, self.phase = step, phase
        self._at = math.inf if phase in _OF_ANY_LENGTH else time.monotonic()
        if self._file is not None:
            sign = {"rank": self._rank, "pid": os.getpid(), "step": step, "phase": phase, "at": date()}
            with naming(self._path):
                os.pwrite(self._file, json.dumps(sign | self._home).ljust(_WIDTH).encode(), 0)

    def alive(self) -> None:
        """Count the time without progress from now on, since the current phase goes on as it should."""
        self._at = time.monotonic()

    def watch(self, longest_seconds: float, on_hang: OnHang) -> None:
        """Start a thread that calls `on_hang` once this rank has made no progress for `longest_seconds`."""
        training = threading.get_ident()

        def look() -> None:
            """Wait until there was no progress for too long, and report the training thread's last frames."""
            while time.monotonic() - self._at < longest_seconds:
                time.sleep(min(1.0, longest_seconds / 20))
            frame = sys._current_frames().get(training)
            calls = traceback.extract_stack(frame)[-_LAST_FRAMES:] if frame is not None else []
            frames = [f"{Path(call.filename).name}:{call.lineno} in {call.name}" for call in calls]
            on_hang(self.phase, self.step, frames)

        threading.Thread(target=look, name="watch", daemon=True).start()


Sign = dict[str, object]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context manager that adds the name `path` to an OSError raised inside, which may lack the name of its file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_into_sign(folder: Path, rank: int, fields: Sign) -> None:
    """Add fields to the sign-of-life file of a rank; do nothing if they exceed the file's fixed size."""
    path = folder / SIGN.format(rank=rank)
    text = json.dumps(_read(path) | fields).encode()
    if len(text) <= _WIDTH:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, text.ljust(_WIDTH), 0)
        finally:
            os.close(descriptor)


def read_signs(folder: Path) -> dict[int, Sign]:
    """Last sign of life of each rank, by rank. It has `pid`, `step`, `phase`, `at` (seconds since 1970), `node` as
    torchrun counts, `host`, and `launch`, its launcher's token.
    """
    signs = [_read(path) for path in folder.glob(SIGNS)]
    return {int(str(sign["rank"])): sign for sign in signs if sign}


def read_sign(folder: Path, rank: int) -> Sign:
    """Last sign of life of one rank; empty if there is none."""
    return _read(folder / SIGN.format(rank=rank))


def last_sign(folder: Path) -> float | None:
    """Time of the last sign of any rank that got beyond its start, in seconds since 1970; None if none did."""
    trained = [sign for sign in read_signs(folder).values() if sign["phase"] != PHASES[0]]
    return max((float(str(sign["at"])) for sign in trained), default=None)


def delete_files(folder: Path, *patterns: str) -> None:
    """Delete the files of a run's folder that match the patterns; other processes may delete them at the same time."""
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        path.unlink(missing_ok=True)


def _read(path: Path) -> Sign:
    """Sign of life in a file; empty if it is being written, or its rank was killed while writing."""
    try:
        sign: Sign = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return sign


ON = "the same command with --resume goes on; with fewer GPUs, make another plan and resume with that"
ON_WITHOUT = "with --checkpoint FOLDER a run goes on when ranks are lost"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROBE_BYTES = 1 << 16


def error_of_full_disk(error: OSError, folder: Path, saved: Path | None) -> RunError | None:
    """Error of a rank that could not write a file of the run; None if the disk was not full."""
    if error.errno not in _FULL:
        return None
    return RunError(
        f"`{error.filename or folder}`: {(error.strerror or str(error)).lower()}",
        problems=[last_checkpoint(saved)],
        hint=f"make room, then {ON_WITHOUT if saved is None else ON.partition(';')[0]}",
    )


def no_room(folder: Path, saved: Path | None) -> RunError | None:
    """Error of a disk so full that no rank could write its failure; None if there is room."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return error_of_full_disk(error, folder, saved)
    return None


def last_checkpoint(saved: Path | None) -> Problem:
    """Newest checkpoint from which a run can resume, as a line of an error."""
    if saved is None:
        return Problem("last checkpoint", "none is kept")
    newest = Folder(saved).complete()[:1]
    state = f"of step {newest[0]}" if newest else "none yet"
    return Problem("last checkpoint", f"{state}, in {saved}")


_FAILURE, FAILURES = "failure-{rank}.json", "failure-*.json"
_FAILED = "failed"
"""Key of a rank's failure in its sign of life, used when the failure has no file of its own."""
_LAST_LINES = 5
_PEER_LOST = re.compile(
    r"connection (closed|reset|refused|timed)|broken pipe|remote process|socket|NCCL", re.IGNORECASE
)
"""Pattern of errors that ranks raise because another rank is gone."""
_KINDS: dict[str, type[MeshwrightError]] = {kind.__name__: kind for kind in (InputError, HostError, RunError)}

_writing = threading.RLock()
"""Lock on writing failures: a process that fails may get SIGTERM at the same moment, in another thread."""

Failure = dict[str, Any]


def write_failure(folder: Path, rank: int, reason: str, *, final: bool, **fields: Any) -> None:
    """Write a file on why this rank failed; if that fails, as on a full disk, write into its sign of life instead."""
    partial = folder / f".failure-{rank}"
    word = {"rank": rank, "reason": reason, "final": final, "pid": os.getpid(), "at": date(), **fields}
    word["launch"] = os.environ.get(LAUNCH, "")
    word["local"] = int(os.environ.get("LOCAL_RANK", rank))
    with _writing, suppress(OSError):
        try:
            partial.write_text(json.dumps(word), "utf-8")
            os.replace(partial, folder / _FAILURE.format(rank=rank))
        except OSError:
            write_into_sign(folder, rank, {_FAILED: word})
        finally:
            partial.unlink(missing_ok=True)


def write_end(folder: Path, rank: int) -> None:
    """Write that this rank was told to end (SIGTERM), unless it has already written why it ends."""
    with _writing:
        own_failures = [failure for failure in read_failures(folder) if failure["rank"] == rank]
        if not any(failure.get("pid") == os.getpid() for failure in own_failures):
            write_failure(folder, rank, "was told to end (SIGTERM)", final=False, ended=True)


def error_fields(error: MeshwrightError) -> dict[str, Any]:
    """Fields of a failure that describe a user-facing error."""
    kind = next(name for name, known in _KINDS.items() if isinstance(error, known))
    problems = [[problem.where, problem.what] for problem in error.problems]
    return {"kind": kind, "headline": error.headline, "problems": problems, "hint": error.hint}


def error_of_fields(failure: Failure) -> MeshwrightError:
    """User-facing error from the fields that `error_fields` made."""
    problems = [Problem(where, what) for where, what in failure["problems"]]
    return _KINDS[failure["kind"]](failure["headline"], problems=problems, hint=failure["hint"])


def read_failures(folder: Path) -> list[Failure]:
    """Failures that ranks have written, by rank; restarted ranks may delete them meanwhile."""
    failures: list[Failure] = [sign[_FAILED] for sign in read_signs(folder).values() if _FAILED in sign]  # type: ignore[misc]
    for path in folder.glob(FAILURES):
        with suppress(OSError, ValueError):
            failures.append(json.loads(path.read_text("utf-8")))
    return sorted(failures, key=lambda failure: int(failure["rank"]))


def is_peer_lost(failure: Failure) -> bool:
    """Whether a rank failed only because another was gone: it lost the connection, or was told to end."""
    return failure.get("ended", False) or _PEER_LOST.search(failure["reason"]) is not None


def failure_cause(folder: Path, ranks: int, live_ranks: Collection[int] = ()) -> str:
    """Sentence on why the run failed. `live_ranks` never count as lost, as their launchers still answer."""
    return failure_error(folder, folder, ranks, live_ranks=live_ranks, called=False).headline


def failure_error(
    folder: Path,
    logs: Path,
    ranks: int,
    *,
    launch: str | None = None,
    live_ranks: Collection[int] = (),
    called: bool = True,
    saved: Path | None = None,
) -> MeshwrightError:
    """User-facing error of a failed run. It has the memory by part, an error that a rank raised, or last lines of
    output.

    `saved` is where checkpoints go; the newest is named where ranks hang or are gone. `logs` are those of ranks that
    this `launch` started, of all where it is None. If launchers were `called` and any answered, ranks that were told
    to end and whose launcher does not answer are lost, too: a node that is shut down tells them.
    """
    failures = read_failures(folder)
    for failure in failures:
        if "allocated" in failure:
            return memory_failure(failure)
    for failure in failures:
        if "headline" in failure:
            return error_of_fields(failure)

    def resumable(headline: str) -> RunError:
        """Error with this headline, the newest checkpoint, and a hint how to resume."""
        return RunError(headline, problems=[last_checkpoint(saved)], hint=ON if saved else ON_WITHOUT)

    def with_output(headline: str, paths: Iterable[Path]) -> RunError:
        """Error with this headline and the last lines of these files."""
        return RunError(headline, problems=[Problem("", line) for line in last_lines(paths)])

    if checked := [failure for failure in failures if "checked" in failure]:
        return resumable(checked[0]["reason"])
    if hung := [failure for failure in failures if "step" in failure]:
        reasons = {one["rank"]: f"{one['reason']}: {' > '.join(one['frames'])}" for one in hung}
        problems = [Problem(f"rank {rank}", reason) for rank, reason in reasons.items()]
        problems += [] if saved is None else [last_checkpoint(saved)]
        hint = "--timeout is how long a rank may stand still"
        return RunError(_hang(folder, failures, ranks), problems=problems, hint=hint)
    causes = [failure for failure in failures if failure["final"] or not is_peer_lost(failure)]
    ended = [failure for failure in failures if "ended" in failure]
    witnesses = [failure for failure in failures if not (called and live_ranks and "ended" in failure)]
    spoke = {int(failure["rank"]) for failure in witnesses}
    silent = [rank for rank in range(ranks) if rank not in spoke and rank not in live_ranks]
    if not causes and 0 < len(silent) < ranks:
        return resumable(_without(read_signs(folder), silent))
    if ended and not causes:
        first = min(ended, key=lambda failure: float(failure["at"]))
        return resumable(f"rank {first['rank']} was told to end from outside (SIGTERM)")
    if failures:
        failed = min(causes or failures, key=lambda failure: not failure["final"])
        here = launch is None or failed["launch"] == launch  # else its output lies where that rank ran
        paths = logs.rglob(f"{failed['local']}/stderr.log") if here else ()
        headline = (
            failed["reason"] if failed["final"] else f"rank {failed['rank']} failed: {failed['reason']}"
        )
        return with_output(headline, paths)
    if not folder.is_dir():
        return resumable(f"the run's folder `{folder}` was deleted or moved while it went on")
    unknown = "a rank was ended from outside, perhaps because the host ran out of memory"
    return no_room(folder, saved) or with_output(unknown, [*logs.rglob("stderr.log"), logs / "torchrun.log"])


def _hang(folder: Path, failures: list[Failure], ranks: int) -> str:
    """Sentence on which ranks hang: those without a failure of their own, or if there are none, those with the least
    progress.
    """
    hung = [failure for failure in failures if "step" in failure]
    spoke = {int(failure["rank"]) for failure in failures if "ended" not in failure}
    if silent := sorted(set(range(ranks)) - spoke):
        signs = read_signs(folder)
        hang = f"{_ranks(silent)} hang{'s' * (len(silent) == 1)}{_last_seen(signs, silent)}"
        nodes = _whole_nodes(signs, silent)
        return f"{', '.join(nodes)} answer{'s' * (len(nodes) == 1)} no longer: {hang}" if nodes else hang
    lowest_place = min(_place(failure) for failure in hung)
    behind = [int(failure["rank"]) for failure in hung if _place(failure) == lowest_place]
    step, phase = lowest_place[0], PHASES[lowest_place[1]]
    if len(behind) == ranks:
        return f"all ranks stand still in step {step} ({phase})"
    return f"{_ranks(behind)} hang{'s' * (len(behind) == 1)} in step {step} ({phase})"


def _without(signs: dict[int, Sign], silent: list[int]) -> str:
    """Sentence on ranks that are gone, by node if whole nodes are."""
    seen = _last_seen(signs, silent)
    if nodes := _whole_nodes(signs, silent):
        them = "it" if len(nodes) == 1 else "them"
        return f"{', '.join(nodes)} {_was(nodes)} lost, and with {them} {_ranks(silent)}{seen}"
    return f"{_ranks(silent)} {_was(silent)} ended from outside{seen}"


def _whole_nodes(signs: dict[int, Sign], silent: Sequence[int]) -> list[str]:
    """Names of the nodes that these ranks make up; empty if they are no set of whole nodes, or there is one node
    only.
    """
    members: dict[tuple[object, object], set[int]] = {}
    for rank, sign in signs.items():
        members.setdefault((sign.get("node"), sign.get("host")), set()).add(rank)
    silent_nodes = {node: its for node, its in members.items() if its <= set(silent)}
    if len(members) == 1 or set().union(*silent_nodes.values()) != set(silent):
        return []
    return [f"node {number} ({host})" for number, host in sorted(silent_nodes, key=str)]


def _place(failure: Failure) -> tuple[int, int]:
    """Step and phase at which a rank failed, comparable."""
    return int(failure["step"]), PHASES.index(failure["phase"])


def _last_seen(signs: dict[int, Sign], ranks: list[int]) -> str:
    """Words on where the first of these ranks gave its last sign; empty without a sign."""
    sign = signs.get(ranks[0])
    return f" in step {sign['step']} ({sign['phase']})" if sign else ""


def _was(items: Sequence[object]) -> str:
    """ "was" for one item, "were" for several."""
    return "was" if len(items) == 1 else "were"


def _ranks(ranks: list[int]) -> str:
    """Numbers of ranks in words, runs of numbers shortened."""
    groups = groupby(enumerate(ranks), key=lambda entry: entry[1] - entry[0])  # equal in a run of numbers
    runs = [[rank for _, rank in group] for _, group in groups]
    words = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(words)}"


def memory_failure(failure: Failure) -> RunError:
    """Error of a rank that ran out of memory: predicted beside allocated bytes of each part."""
    predicted, allocated = failure["predicted"], failure["allocated"]
    widest = max(map(len, predicted))
    problems = [
        Problem(
            part,
            f"{'':{widest - len(part)}}predicted {format_bytes(size):>9}, allocated"
            f" {format_bytes(allocated[part]) if part in allocated else '-':>9}",
        )
        for part, size in predicted.items()
    ]
    return RunError(
        f"rank {failure['rank']} ({failure['place']}) ran out of memory at"
        f" {format_bytes(sum(allocated.values()))}; predicted {format_bytes(sum(predicted.values()))}",
        problems=problems,
        hint="plan again with a smaller --max-memory",
    )


def last_lines(paths: Iterable[Path]) -> list[str]:
    """Last lines of these files that are not blank."""
    texts = [path.read_text("utf-8", errors="replace") for path in paths if path.exists()]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line][-_LAST_LINES:]
