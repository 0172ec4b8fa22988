"""How ranks meet, and how nodes that come back after a failure are checked before they train again.

**Owners of a run's folder.** A start may fail before its ranks meet, and then the folder still holds an earlier run. So
ranks that clear the folder write down who started them: its owners. Ranks that are started again go on with the files
there only where one of them has an owner among these; the others may be on another node, in the place of a lost one.

**Returning nodes.** A node that fails twice is left out: its launcher ends, and the others wait for another node to
take its place. A node is known by its launcher; one whose host failed twice is not let in again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from cost_models.errors import HostError, InputError, RunError
from cost_models.files.whole import write_whole
from executor.faults.failures import LAUNCH, error_fields
from executor.faults.results import WrongResult, wrong_results
from executor.faults.stopping import largest_counts
from executor.launch.environment import LOOPBACK
from executor.launch.launch import failed_checks
from executor.messages import gather_json
from executor.run_config import FAILED_CHECKS, OWNERS, RunConfig
from planner.plan import AnyPlan

_calls = 0


def owner(plan: AnyPlan, config: RunConfig) -> str:
    """Identifier of a run, made from its launcher, plan and flags. Restarted ranks of the run make the same one.

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
    return f"{who} {_calls} {_job(plan, config).hex()}"


def _job(plan: AnyPlan, config: RunConfig) -> bytes:
    """Digest of the plan and of the flags on which all nodes of a run must agree."""
    fields = [plan.model_dump(mode="json"), config.of_all_nodes()]
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).digest()


def is_owned_by(folder: Path, owners: frozenset[str]) -> bool:
    """Whether any of these owners is an owner of the run's folder."""
    try:
        return not owners.isdisjoint(json.loads((folder / OWNERS).read_text("utf-8")))
    except FileNotFoundError:
        return False


def write_owners(folder: Path, owners: frozenset[str]) -> None:
    """Write the owners of a run's folder, when it is cleared and whenever ranks meet again."""
    write_whole(folder / OWNERS, json.dumps(sorted(owners)))


_BYTES = 7
"""Bytes of the digest that are compared: such a number fits int64, which every backend reduces."""


def require_same_job(plan: AnyPlan, config: RunConfig, device: torch.device) -> None:
    """Check that all ranks have the same plan and flags; every rank must call it.

    Raises:
        InputError: on every rank, where the plan or the flags of one differ from those of another.
    """
    digest = int.from_bytes(_job(plan, config)[:_BYTES])
    largest, smallest = largest_counts(device, digest, -digest)
    if largest != -smallest:
        raise InputError(
            "ranks were started with different plans or flags",
            hint="the same plan file and the same command on every node",
        )


def join_job(backend: str, restarts: int = 0) -> torch.device:
    """Join the process group of the environment's job; returns this rank's device.

    Raises:
        HostError: torchrun's store leads restarted ranks to those that are gone.
    """
    device, how = torch.device("cpu"), dict[str, Any]()
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        # NCCL connects now, and later groups are split off (`executor.mesh.make_groups`)
        how["device_id"] = device
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _store_here(rank, ranks)
    # of a group of n, each would ask the store for n - 1 addresses; so it asks for those that it speaks with
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    if store is not None:
        how |= {"store": store, "rank": rank, "world_size": ranks}
    try:
        dist.init_process_group(backend, **how)
    except RuntimeError as error:
        if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            raise HostError(
                f"ranks that were started again do not find each other: {error}",
                hint="export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun",
            ) from error
        raise
    return device


def _store_here(rank: int, ranks: int) -> dist.Store | None:  # type: ignore[name-defined]
    """Key-value store on loopback, hosted by rank 0. None if ranks meet at another address or use torchrun's store."""
    if os.environ.get("MASTER_ADDR") != LOOPBACK or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    port = int(os.environ["MASTER_PORT"])
    listening = None if rank else _listening(port).detach()
    how: dict[str, Any] = {"timeout": default_pg_timeout, "multi_tenant": True, "master_listen_fd": listening}
    return dist.TCPStore(LOOPBACK, port, ranks, is_master=rank == 0, **how)  # type: ignore[attr-defined]


def _listening(port: int) -> socket.socket:
    """Socket that listens at the port that torchrun chose; waits while another process briefly holds it."""
    until = time.monotonic() + 5.0
    while True:
        try:
            return socket.create_server((LOOPBACK, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
            time.sleep(0.1)


class FailedCheck(Exception):  # noqa: N818  # the run is started again
    """A node that came back after a failure gave wrong results."""

    def __init__(self, reason: str, *, final: bool = False, **fields: Any) -> None:
        """`final`: whether a new start would fail again; `fields` are added to the rank's failure."""
        super().__init__(reason)
        self.final, self.fields = final, {"checked": True} | fields


def check_returned(folder: Path, device: torch.device) -> None:
    """Check the results of all ranks that meet again after a failure; every rank calls it.

    Raises:
        FailedCheck: on every rank, where one gave wrong results.
    """
    wrong_checks = wrong_results(device)
    launch, host = os.environ.get(LAUNCH, ""), socket.gethostname()
    homes = gather_json([launch, int(os.environ.get("GROUP_RANK", "0")), host])
    earlier_launches = [line["launch"] for line in failed_checks(folder)]
    dist.barrier()
    if not wrong_checks:
        return
    nodes = failed_nodes(wrong_checks, homes)
    if dist.get_rank() == 0:
        with (folder / FAILED_CHECKS).open("a", encoding="utf-8") as stream:
            for of, _, name in nodes:
                stream.write(json.dumps({"launch": of, "host": name}) + "\n")
    names = [" and ".join(f"rank {rank}" for rank in one.ranks) or "all ranks" for one in wrong_checks]
    checks = "; ".join(f"{name}, {one.check}" for name, one in zip(names, wrong_checks, strict=True))
    out = [(of, f"node {number} ({name})") for of, number, name in nodes if of in earlier_launches]
    if not out:
        raise FailedCheck(f"came back with wrong results: {checks}")
    reason = f"{', '.join(name for _, name in out)} gave wrong results twice: {checks}"
    hint = "the same command on another node takes its place; with fewer GPUs, resume with another plan"
    is_single = os.environ.get("GROUP_WORLD_SIZE", "1") == "1"
    if is_single:
        hint = "`meshwright doctor` examines it; --resume goes on elsewhere"
    error = RunError(reason if is_single else f"{reason}; it is left out", hint=hint)
    left_out = any(of == launch for of, _ in out)
    raise FailedCheck(error.headline, final=is_single, left_out=left_out, **error_fields(error))


def failed_nodes(checks: Sequence[WrongResult], homes: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Nodes (launcher, number, host) with a wrong result on ranks of that node only."""
    homes_of_checks = [{tuple(homes[rank]) for rank in check.ranks} for check in checks]
    return sorted({home for check_homes in homes_of_checks if len(check_homes) == 1 for home in check_homes})
