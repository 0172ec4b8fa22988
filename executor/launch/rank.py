"""One rank of a run: it joins the others, trains, and reports what happened.

torchrun starts it as `python -m executor.launch.rank plan.yaml run.json`. Rank 0 writes progress to `progress.jsonl`
and, at the end, `run-report.json` or `stopped.json`; every rank writes its state to `alive-RANK.json`, and
`failure-RANK.json` where it fails.

What times mean, and what is made of them: `executor.measure.report`.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cost_models.errors import HostError, InputError, MeshwrightError
from executor.clock import StartClock, began, timing_groups
from executor.families import training_of
from executor.faults import failures
from executor.faults.failures import LAUNCH, Heartbeat, error_of_full_disk, read_signs
from executor.faults.stopping import any_rank, largest_counts, last_words, stop_request, write_stopped
from executor.launch import rendezvous
from executor.launch.environment import PARENT, end_with_parent
from executor.launch.launch import ANSWERS, clear_run_folder
from executor.launch.rendezvous import FailedCheck, check_returned
from executor.measure.memory import OutOfMemoryError
from executor.measure.report import AnyReport
from executor.messages import gather_json
from executor.requirements import require_world
from executor.run_config import RunConfig
from executor.steps import Stopped, Watcher
from planner.plan import AnyPlan, load_any_plan

_LONGEST_GRACE = 10.0
"""Seconds that the first rank to find that it hangs gives the others to write where they are."""


def work(plan: AnyPlan, config: RunConfig) -> AnyReport | Stopped:
    """Join the job of the environment, train as one rank, and leave; rank 0 writes the run's files."""
    out_dir, backend = config.out, config.backend
    assert out_dir is not None
    assert backend is not None
    rank, restarts = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    launch = os.environ.get(LAUNCH, "")
    own_failures = [one for one in failures.read_failures(out_dir) if one.get("launch") == launch]
    if restarts and any(failure["final"] for failure in own_failures):
        raise InputError("the last failure would happen again")
    with last_words(out_dir, rank):
        try:
            return _work(rank, restarts, launch, plan, config, out_dir, backend)
        except BaseException as raised:
            full = isinstance(raised, OSError) and error_of_full_disk(raised, out_dir, config.checkpoint)
            error = full or raised
            reason, final, fields = f"{type(error).__name__}: {error}", False, dict[str, Any]()
            if isinstance(error, OutOfMemoryError):
                fields = training_of(plan).of_rank(plan, rank) | {"allocated": error.parts}
                reason, final = str(error), True
            elif isinstance(error, FailedCheck):
                reason, final, fields = str(error), error.final, error.fields
            elif isinstance(error, MeshwrightError):
                reason, final, fields = error.headline, True, failures.error_fields(error)
            failures.write_failure(out_dir, rank, reason, final=final, **fields)
            if full:
                raise full from raised
            raise


def _work(
    rank: int, restarts: int, launch: str, plan: AnyPlan, config: RunConfig, out_dir: Path, backend: str
) -> AnyReport | Stopped:
    """Join the job, train, and write report or stop; failures are raised."""
    # torchrun does not count a start with another node in the place of one that went without a word
    clock = StartClock(began(restarts))
    clock.end("processes")
    begun = bool(launch) and any(sign.get("launch") == launch for sign in read_signs(out_dir).values())
    device = rendezvous.join_job(backend, restarts)
    (starts,) = largest_counts(device, max(restarts, int(begun)) + 1)  # a node that joins later counts from 0
    if starts > 1:
        check_returned(out_dir, device)
    rendezvous.require_same_job(plan, config, device)
    owners = frozenset(gather_json(rendezvous.owner(plan, config)))
    watcher = _meet(out_dir, starts, owners, device, config)
    clock.end("groups")
    watcher.clock = clock
    heartbeat = watcher.heartbeat = Heartbeat(out_dir, rank)

    def on_hang(phase: str, step: int, frames: list[str]) -> None:
        """Write where this rank hangs, give the others time to write that too, and end the process."""
        reason = f"stood still for {config.timeout:.0f} s in step {step} ({phase})"
        failures.write_failure(out_dir, rank, reason, final=False, step=step, phase=phase, frames=frames)
        time.sleep(min(_LONGEST_GRACE, config.timeout / 2))
        os._exit(1)

    heartbeat.watch(config.timeout, on_hang)
    if starts > 1 and config.checkpoint is not None:
        config = config.model_copy(update={"resume": True})
    with stop_request(out_dir) as stop, timing_groups() as watcher.groups:
        result = training_of(plan).train(plan, device, config, watcher, stop)
    if isinstance(result, Stopped):
        if rank == 0:
            write_stopped(out_dir, result.step, result.saved)
    elif rank == 0:
        result = watcher.keep(result)
    dist.destroy_process_group()
    return result


def _meet(
    out_dir: Path, starts: int, owners: frozenset[str], device: torch.device, config: RunConfig
) -> Watcher:
    """Wait for all ranks; returns the run's record, continued if earlier starts of this run wrote to the folder.

    Otherwise rank 0 clears away what another run left there.
    """
    own_launcher = LAUNCH in os.environ and os.environ.get("GROUP_WORLD_SIZE") == "1"  # it cleared the folder
    first = dist.get_rank() == 0
    ours = first and starts > 1 and (own_launcher or rendezvous.is_owned_by(out_dir, owners))
    (is_continued,) = any_rank(device, ours)
    interval = None if config.checkpoint is None else config.every
    watcher = Watcher(out_dir, is_continued=is_continued, start=starts, interval=interval)
    if first:
        if not is_continued and not own_launcher:
            clear_run_folder(out_dir)
        if is_continued:
            watcher.note(f"start {starts}: {failures.failure_cause(out_dir, dist.get_world_size())}")
            failures.delete_files(out_dir, failures.FAILURES, ANSWERS)
        rendezvous.write_owners(out_dir, owners)
    dist.barrier()
    return watcher


def main() -> None:
    """Read the command line and run one rank; exits 1 after a failure, so that torchrun ends the other ranks."""
    plan_file, config_file = map(Path, sys.argv[1:])
    if PARENT in os.environ:
        end_with_parent()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        plan = load_any_plan(plan_file)
        require_world(plan, plan_file.name)
        work(plan, RunConfig.model_validate_json(config_file.read_text("utf-8")))
    except (HostError, InputError) as error:
        sys.exit(f"error: {error}")
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of a save or of gloo may never end
    sys.stdout.flush()
    sys.stderr.flush()
    # The report is on disk. Taking the interpreter down with gloo's threads still alive aborts one run in ten
    # ("terminate called without an active exception"), so leave without it.
    os._exit(0)


if __name__ == "__main__":
    main()
