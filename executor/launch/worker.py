"""One rank of a run, as torchrun or a cluster starts it: `python -m executor.launch.worker plan.yaml --out DIR`.

Rank 0 writes what it is told to `progress.jsonl` and, at the end, `run-report.json` or `stopped.json`; every rank says
in `alive-RANK.json` where it is, and leaves `failure-RANK.json` where it fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from cost_models.errors import HostError, InputError, MeshwrightError
from executor.engine import Options
from executor.faults.failures import forget_failures, read_failures, told, what_happened, write_failure
from executor.faults.heartbeat import LAUNCH, Heartbeat, read_signs
from executor.faults.last_words import last_words
from executor.faults.stopping import StopRequest, most, write_stopped
from executor.launch.agreement import require_same_job
from executor.launch.launch import require_world
from executor.launch.loopback import store_here
from executor.launch.nodes import forget_answers
from executor.launch.orphans import PARENT, end_with_parent
from executor.launch.record import FileWatcher
from executor.launch.run_folder import cleared_by, everyones, starter, write_starters
from executor.launch.torchrun import forget_run
from executor.measure.exhausted import ExhaustedError
from executor.measure.memory import predicted_parts
from executor.measure.report import RunReport, save_report
from executor.mesh import pipeline_rank
from executor.run_options import REPORT, Asked, add_arguments, read
from executor.steps import Schedule, Stopped
from executor.train import train
from planner.plan import Plan
from planner.plan_files import load_plan

_LONGEST_GRACE = 10.0
"""Seconds that the first rank to find that it hangs gives the others to say where they are."""


def work(plan: Plan, asked: Asked, out_dir: Path, backend: str) -> RunReport | Stopped:
    """Join the job that the environment describes, train, leave; rank 0 writes the files."""
    rank, restarts = int(os.environ["RANK"]), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    launch = os.environ.get(LAUNCH, "")
    if restarts and any(one["final"] and one["launch"] == launch for one in read_failures(out_dir)):
        raise InputError("the last failure would happen again")
    with last_words(out_dir, rank):
        try:
            return _work(rank, restarts, launch, plan, asked, out_dir, backend)
        except ExhaustedError as error:
            stage = pipeline_rank(plan.layout, rank)
            predicted = predicted_parts(plan.prediction.rank_memory[stage])
            found = {"stage": stage, "predicted": predicted, "allocated": error.parts}
            write_failure(out_dir, rank, str(error), final=True, **found)
            raise
        except MeshwrightError as error:
            write_failure(out_dir, rank, error.headline, final=True, **told(error))
            raise
        except BaseException as error:
            write_failure(out_dir, rank, f"{type(error).__name__}: {error}", final=False)
            raise


def _work(
    rank: int, restarts: int, launch: str, plan: Plan, asked: Asked, out_dir: Path, backend: str
) -> RunReport | Stopped:
    # torchrun does not count a start with another node in the place of one that went without a word
    began = bool(launch) and any(sign.get("launch") == launch for sign in read_signs(out_dir).values())
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    _join(backend, restarts)
    starts = most(device, max(restarts, int(began))) + 1  # a node that joins later counts from 0
    require_same_job(plan, asked, device)
    watcher = _meet(out_dir, starts, everyones(starter(plan, asked)), device)
    heartbeat = watcher.heartbeat = Heartbeat(out_dir, rank)
    heartbeat.watch(asked.timeout, _Hang(out_dir, rank, asked.timeout))
    result = _train(plan, asked, device, watcher, out_dir, again=starts > 1)
    dist.destroy_process_group()
    return result


def _join(backend: str, restarts: int) -> None:
    """Raises HostError where torchrun's store leads ranks that were started again to those that are gone."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = store_here(rank, ranks)
    try:
        if store is None:
            dist.init_process_group(backend)
        else:
            dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    except RuntimeError as error:
        if restarts and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            raise HostError(
                f"ranks that were started again do not find each other: {error}",
                hint="export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 before torchrun",
            ) from error
        raise


class _Hang:
    """What is done when this rank stands still: say where, give the others time to say so too, and leave."""

    def __init__(self, out_dir: Path, rank: int, timeout: float) -> None:
        self.out_dir, self.rank, self.timeout = out_dir, rank, timeout

    def __call__(self, phase: str, step: int, frames: list[str]) -> None:
        reason = f"stood still for {self.timeout:.0f} s in step {step} ({phase})"
        write_failure(self.out_dir, self.rank, reason, final=False, step=step, phase=phase, frames=frames)
        time.sleep(min(_LONGEST_GRACE, self.timeout / 2))
        os._exit(1)


def _meet(out_dir: Path, starts: int, starters: frozenset[str], device: torch.device) -> FileWatcher:
    """Who goes on with the record of earlier starts and notes why there is another, or clears away what was left."""
    own_launcher = LAUNCH in os.environ and os.environ.get("GROUP_WORLD_SIZE") == "1"  # it cleared the folder
    first = dist.get_rank() == 0
    ours = first and starts > 1 and (own_launcher or cleared_by(out_dir, starters))
    again = bool(most(device, int(ours)))
    watcher = FileWatcher(out_dir, again=again)
    if first:
        if not again and not own_launcher:
            forget_run(out_dir)
        if again:
            watcher.note(f"start {starts}: {what_happened(out_dir, dist.get_world_size())}")
            forget_failures(out_dir)
            forget_answers(out_dir)
        write_starters(out_dir, starters)
    dist.barrier()
    return watcher


def _train(
    plan: Plan, asked: Asked, device: torch.device, watcher: FileWatcher, out_dir: Path, *, again: bool
) -> RunReport | Stopped:
    saving = asked.saving
    if again and saving is not None:
        saving = replace(saving, resume=True)
    options = Options(seed=asked.seed, rate=asked.rate, clip=asked.clip, compile=asked.compile)
    schedule = Schedule(
        steps=asked.steps,
        warm_up=asked.warm_up,
        data=asked.data,
        saving=saving,
        measure_memory=asked.measure_memory,
        trace_path=asked.trace,
    )
    with StopRequest(out_dir) as request:
        result = train(plan, device, options, schedule, watcher, lambda: request.made)
    if dist.get_rank() == 0:
        if isinstance(result, Stopped):
            write_stopped(out_dir, result.step, result.saved)
        else:
            save_report(result, out_dir / REPORT)
    return result


def main() -> None:
    """Read the command line; exits 1 after a failure, so that torchrun ends the other ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", choices=("gloo", "nccl"), required=True)
    add_arguments(parser)
    given = parser.parse_args()
    if PARENT in os.environ:
        end_with_parent()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        plan = load_plan(given.plan)
        require_world(plan, given.plan.name)
        work(plan, read(given), given.out, given.backend)
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
