"""Several nodes of one run: how their torchruns meet, which ranks each of them started, and who is still there.

Launchers do not know of one another. Each gives its ranks a token, which these put into their signs in the folder that
all nodes see; so a launcher knows that what lies there is of this run, which ranks are its own, and which are of
launchers that answered when the run failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cost_models.errors import HostError, InputError
from cost_models.files.whole import lock, lock_alone
from executor.faults.heartbeat import read_sign, read_signs
from executor.launch.environment import LOOPBACK
from executor.run_config import FAILED_CHECKS, LOCK

_ANSWER = "launcher-{token}"
_ANSWER_POLL_SECONDS = 0.1
_ENDING_SECONDS = 5.0
"""How long ranks of a launcher that was killed may take to end."""
_NAME_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The number of nodes, which share the ranks evenly, and where several meet."""

    count: int = 1
    rendezvous: str | None = None
    """`host:port` on one of them, free; the run ends where that one is lost."""

    @property
    def here(self) -> bool:
        """Whether all are on this machine: one node, or several that meet on loopback."""
        return self.count == 1 or (self.rendezvous or "").rpartition(":")[0] in (LOOPBACK, "localhost")

    def arguments(self, ranks: int, longest_wait: float, folder: Path, logs: Path) -> list[str]:
        """The rendezvous arguments of torchrun on each node; nodes wait `longest_wait` seconds for one another.

        A single node meets nobody: its torchrun keeps what it knows in a file beside `logs`.

        Several meet under the name of the run's `folder`, not its path, which nodes may have mounted elsewhere: nodes
        of a run into a folder of another name that come to this port by mistake take nobody's place. Folders of the
        same name in different places are not told apart.
        """
        share = ["--nproc-per-node", str(ranks // self.count)]
        if self.count == 1:
            alone = ["--rdzv-backend", "c10d", "--rdzv-endpoint", str(rendezvous_file(logs))]
            alone += ["--rdzv-conf", "store_type=file", "--rdzv-id", "meshwright"]
            return ["--nnodes", "1", *alone, "--local-addr", LOOPBACK, *share]
        assert self.rendezvous is not None
        name = hashlib.sha256(folder.resolve().name.encode()).hexdigest()[:_NAME_DIGITS]
        place = f"{LOOPBACK}:{self.rendezvous.rpartition(':')[2]}" if self.here else self.rendezvous
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", place]
        meeting += ["--rdzv-id", f"meshwright-{name}"]
        meeting += ["--local-addr", LOOPBACK] if self.here else []
        wait = ["--rdzv-conf", f"join_timeout={max(1, round(longest_wait))}"]
        return ["--nnodes", str(self.count), *meeting, *wait, *share]


def rendezvous_file(logs: Path) -> Path:
    """The file in which torchrun of a single node keeps its rendezvous."""
    return logs.with_name("rendezvous")


def require_nodes(nodes: Nodes, ranks: int, *, kept: bool, inside: bool) -> None:
    """Raise InputError where so many nodes cannot share the ranks."""
    if nodes.count < 1:
        raise InputError(f"a run has one node or more, not {nodes.count}")
    if nodes.count == 1 and nodes.rendezvous is not None:
        raise InputError("one node has nobody to meet", hint="--nodes says how many there are")
    if nodes.count == 1:
        return
    if inside:
        raise InputError(
            "this process is a rank already, started by torchrun or the like",
            hint="leave out --nodes, or start `meshwright run` once on each node",
        )
    if ranks % nodes.count:
        raise InputError(f"the plan has {ranks} ranks, which {nodes.count} nodes cannot share evenly")
    host, _, port = (nodes.rendezvous or "").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(
            "several nodes need a place to meet", hint="--rendezvous HOST:PORT, the same on each of them"
        )
    if not kept:
        raise InputError("several nodes need a folder for the report that all of them see", hint="out_dir")


@contextmanager
def alone_in(folders: Iterable[Path | None], meeting: str) -> Iterator[list[int]]:
    """Keep other runs out of these folders; launchers that say the same place of `meeting` share them.

    The locks go with the descriptors, once every process that has them is gone.

    Raises:
        InputError: another run writes there.
        HostError: this is the first node, and something listens at the place already.
    """
    with ExitStack() as stack:
        held = []
        for folder in filter(None, folders):
            folder.mkdir(parents=True, exist_ok=True)
            held.append(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644))
            stack.callback(os.close, held[-1])
            _lock(held[-1], folder, meeting)
        yield held


def _lock(descriptor: int, folder: Path, meeting: str) -> None:
    until = time.monotonic() + _ENDING_SECONDS
    while (first := lock_alone(descriptor)) is False:
        if meeting and os.pread(descriptor, len(meeting) + 1, 0) == meeting.encode():
            break
        if time.monotonic() > until:
            raise InputError(
                f"another run writes to `{folder}`", hint="name another folder, or wait for its end"
            )
        time.sleep(_ANSWER_POLL_SECONDS)
    else:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, meeting.encode(), 0)
    if first and meeting and _is_open(meeting):
        raise HostError(
            f"--rendezvous {meeting}: another program listens there, no node of this run",
            hint="name a free port of one of the nodes",
        )
    if meeting:
        lock(descriptor)


def _is_open(place: str) -> bool:
    host, _, port = place.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), timeout=_ENDING_SECONDS):
        return True
    return False


def failed_checks(folder: Path) -> list[dict[str, str]]:
    """The launcher and the host of each node that came back with wrong results, once for each time."""
    path = folder / FAILED_CHECKS
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def require_not_left_out(folder: Path) -> None:
    """Raise HostError where this host has failed twice."""
    host = socket.gethostname()
    if sum(line["host"] == host for line in failed_checks(folder)) > 1:
        raise HostError(
            f"this node ({host}) gave wrong results twice and is left out",
            hint=f"once it is repaired, delete {folder / FAILED_CHECKS}",
        )


class Launch:
    """One launcher's part of a run."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.token = uuid.uuid4().hex
        self._folder, self._ranks = folder, ranks
        self._begun = False

    def begun(self) -> bool:
        """Whether its ranks have met all others; before, the folder may hold what an earlier run left."""
        self._begun = self._begun or bool(self.ranks())
        return self._begun

    def ranks(self) -> frozenset[int]:
        """The ranks that this launcher started."""
        return self._started_by({self.token})

    def has_first_rank(self) -> bool:
        """Whether rank 0 is among them: that launcher tells of the steps."""
        return read_sign(self._folder, 0).get("launch") == self.token

    def roll_call(self, longest_seconds: float) -> frozenset[int]:
        """Answer, and wait for the others to; returns all ranks of launchers that are still there."""
        (self._folder / _ANSWER.format(token=self.token)).touch()
        deadline = time.monotonic() + longest_seconds
        while True:
            names = [path.name for path in self._folder.glob(_ANSWER.format(token="*"))]
            here = self._started_by({name.partition("-")[2] for name in names})
            if len(here) == self._ranks or time.monotonic() > deadline:
                return here
            time.sleep(_ANSWER_POLL_SECONDS)

    def _started_by(self, tokens: set[str]) -> frozenset[int]:
        return frozenset(
            rank for rank, sign in read_signs(self._folder).items() if sign.get("launch") in tokens
        )


def delete_answers(folder: Path) -> None:
    """Delete what launchers of an earlier run answered, before the ranks of a new one start."""
    for path in folder.glob(_ANSWER.format(token="*")):
        path.unlink(missing_ok=True)
