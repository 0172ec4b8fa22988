"""Tells whether what lies in a run's folder is of this run or of an earlier one.

A start may fail before its ranks meet, and then the folder still holds an earlier run. So ranks that clear the folder
write down who started them: its owners. Ranks that are started again go on with what is there only where one of them
has an owner among these; the others may be on another node, in the place of a lost one.
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
from planner.any_plan import AnyPlan

_calls = 0


def owner(plan: AnyPlan, config: RunConfig) -> str:
    """A name for who started this rank, and for what: the same at each start of one run, and of no other.

    To be called once a run, as a process may train more than once.

    A launcher gives its ranks a token. torchrun without one is known by the folder of its logs, a new one each time;
    where it keeps none, by its process.
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
    """Gather the owners of all ranks; every rank must call it."""
    return frozenset(gather_json(mine))


def is_owned_by(folder: Path, owners: frozenset[str]) -> bool:
    """Whether one of these is an owner of the folder."""
    try:
        return not owners.isdisjoint(json.loads((folder / OWNERS).read_text("utf-8")))
    except FileNotFoundError:
        return False


def write_owners(folder: Path, owners: frozenset[str]) -> None:
    """Write down the folder's owners, when it is cleared and whenever ranks meet again."""
    write_whole(folder / OWNERS, json.dumps(sorted(owners)))
