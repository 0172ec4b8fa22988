"""Nodes that come back after a failure: what they give back is checked before they train on.

A node that fails twice is left out: its launcher ends, and the others wait for another node to take its place. A node
is known by its launcher; one whose host failed twice is not let in again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cost_models.errors import RunError
from executor.faults.failures import error_fields
from executor.faults.heartbeat import LAUNCH
from executor.faults.results import Wrong, wrong_results
from executor.launch.nodes import failed_checks
from executor.messages import gather_json
from executor.run_config import FAILED_CHECKS


class FailedCheck(Exception):  # noqa: N818  # the run is started again
    """A node came back and gave wrong results."""

    def __init__(self, reason: str, *, final: bool = False, **more: Any) -> None:
        super().__init__(reason)
        self.final, self.more = final, {"checked": True} | more


def check_returned(folder: Path, device: torch.device) -> None:
    """Check all ranks that meet again; each of them calls it.

    Raises:
        FailedCheck: on every rank, where one gave wrong results.
    """
    wrong = wrong_results(device)
    launch, host = os.environ.get(LAUNCH, ""), socket.gethostname()
    homes = gather_json([launch, int(os.environ.get("GROUP_RANK", "0")), host])
    before = [line["launch"] for line in failed_checks(folder)]
    dist.barrier()
    if not wrong:
        return
    nodes = failed_nodes(wrong, homes)
    if dist.get_rank() == 0:
        with (folder / FAILED_CHECKS).open("a", encoding="utf-8") as stream:
            for of, _, name in nodes:
                stream.write(json.dumps({"launch": of, "host": name}) + "\n")
    what = "; ".join(
        f"{' and '.join(f'rank {rank}' for rank in one.ranks) or 'all ranks'}, {one.check}" for one in wrong
    )
    out = [(of, f"node {number} ({name})") for of, number, name in nodes if of in before]
    if not out:
        raise FailedCheck(f"came back with wrong results: {what}")
    reason = f"{', '.join(name for _, name in out)} gave wrong results twice: {what}"
    hint = "the same command on another node takes its place; with fewer GPUs, resume with another plan"
    alone = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if alone:
        hint = "`meshwright doctor` examines it; --resume goes on elsewhere"
    error = RunError(reason if alone else f"{reason}; it is left out", hint=hint)
    left_out = any(of == launch for of, _ in out)
    raise FailedCheck(error.headline, final=alone, left_out=left_out, **error_fields(error))


def failed_nodes(wrong: Sequence[Wrong], homes: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Homes (launcher, number and host) that are alone in a wrong result; a link of two nodes is neither's."""
    alone = [{tuple(homes[rank]) for rank in one.ranks} for one in wrong]
    return sorted({home for some in alone if len(some) == 1 for home in some})
