"""Whose a run's folder is: this run's from when its ranks cleared it, whichever start of them that was.

A start may fail before its ranks meet, and then what lies in the folder is an earlier run's. So ranks that clear it
leave word of who started them, and those that are started again go on with what is there only where one of theirs is
among these: another node may have taken the place of a lost one.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path

from cost_models.files.whole import write_whole
from executor.faults.heartbeat import LAUNCH
from executor.messages import gather_json
from executor.run_config import RunConfig
from executor.run_files import OWNERS
from planner.plan import Plan

_calls = 0


def owner(plan: Plan, config: RunConfig) -> str:
    """Who started this rank, for what: the same at each start of one run, and of no other. To be called once a run.

    A launcher gives its ranks a token. Of torchrun alone, the folder of its logs is known, a new one each time; where
    it keeps none, its process. It may run a script that trains more than once.
    """
    global _calls
    _calls += 1
    who = os.environ.get(LAUNCH, "")
    if not who and (error_file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        who = str(Path(error_file).parent.parent.parent)  # RUN/attempt_N/RANK/error.json
    if not who:
        who = f"{socket.gethostname()} {os.getppid()} {os.environ.get('TORCHELASTIC_RUN_ID', '')}"
    job = hashlib.sha256(f"{plan.model_dump_json()} {config.of_all_nodes()}".encode()).hexdigest()
    return f"{who} {_calls} {job}"


def owners_of_all_ranks(mine: str) -> frozenset[str]:
    """The owners of all ranks; every rank must call it."""
    return frozenset(gather_json(mine))


def is_owned_by(folder: Path, owners: frozenset[str]) -> bool:
    """Whether one of these started the ranks that cleared the folder, or were started again since."""
    try:
        return not owners.isdisjoint(json.loads((folder / OWNERS).read_text("utf-8")))
    except FileNotFoundError:
        return False


def write_owners(folder: Path, owners: frozenset[str]) -> None:
    """Leave word, when it is cleared, and whenever ranks meet again."""
    write_whole(folder / OWNERS, json.dumps(sorted(owners)))
