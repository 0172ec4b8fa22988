"""Worker processes: torch's elastic agent with the module that they run, its logs, and its end.

Ranks of `run` and processes that measure (`doctor`, `calibrate`) are started alike. What a process that measures found
it writes to a file; where one fails, the others are ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import HostError, Problem, RunError
from cost_models.files.whole import temporary_folder
from executor.faults.failures import last_lines
from executor.launch.environment import LOOPBACK, PARENT, end_with_parent, on_this_machine, worker_environment
from executor.requirements import cuda_devices

if TYPE_CHECKING:
    import torch

Progress = Callable[[str], None]
FAMILY_MARK = "measuring: "
"""Start of a line in which the first worker process names what it measures next."""
_POLL_SECONDS = 0.05
_SHUTDOWN = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_SHUTDOWN_SECONDS = "10"
"""Seconds after which torchrun kills a rank that does not end, such as one stopped by SIGSTOP."""
_KILL_SECONDS = 10.0
"""Seconds beyond the ranks' shutdown after which torchrun itself is killed if it does not end."""


def on_one_node(processes: int, logs: Path) -> list[str]:
    """Arguments of torchrun for processes of one node, which meet by a file beside `logs`."""
    rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", str(rendezvous_file(logs))]
    rendezvous += ["--rdzv-conf", "store_type=file", "--rdzv-id", "meshwright", "--local-addr", LOOPBACK]
    return ["--nnodes", "1", *rendezvous, "--nproc-per-node", str(processes)]


def rendezvous_file(logs: Path) -> Path:
    """File in which the torchrun of a single node keeps its rendezvous."""
    return logs.with_name("rendezvous")


def start_agent(
    how: Sequence[str],
    module: str,
    arguments: Sequence[str],
    logs: Path,
    *,
    here: bool = True,
    variables: Mapping[str, str] | None = None,
    locks: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start torchrun with arguments `how`; its processes run `python -m MODULE ARGUMENTS`.

    Output of every process goes to files under `logs`. Processes that are all `here` talk over loopback; torchrun holds
    the `locks`.
    """
    command = [sys.executable, "-m", "executor.launch.agent", *how, "--redirects", "3"]
    command += ["--log-dir", str(logs), "-m", module, *arguments]
    environment = worker_environment() | dict(variables or {})
    environment = on_this_machine(environment) if here else environment
    environment.setdefault(_SHUTDOWN, _SHUTDOWN_SECONDS)
    # With the agent's own store, ranks that start again find the addresses of those that are gone (torch 2.13).
    environment.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    logs.mkdir(parents=True, exist_ok=True)
    rendezvous_file(logs).touch()
    with (logs / "torchrun.log").open("wb") as stream:
        return subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            pass_fds=locks,
        )


def end_agent(process: subprocess.Popen[bytes], *, kill: bool = False) -> None:
    """End torchrun, which ends its ranks; if torchrun has to be killed, the ranks end themselves."""
    if process.poll() is None and not kill:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(float(os.environ.get(_SHUTDOWN, _SHUTDOWN_SECONDS)) + _KILL_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()


def run_workers(
    module: str,
    processes: int,
    device: str,
    options: Sequence[str] = (),
    *,
    task: str,
    longest_seconds: float,
    on_progress: Progress = lambda family: None,
) -> list[str]:
    """Run processes of `python -m MODULE FOLDER DEVICE OPTIONS`; returns their results by rank.

    `task` names what they do in errors; `on_progress` gets the name of each family of measurements that the first
    process begins.

    Raises:
        HostError: there are fewer CUDA devices than processes.
        RunError: a process failed, or did not end; the last lines it wrote are the problems.
    """
    if device == "cuda" and (devices := cuda_devices()) < processes:
        raise HostError(
            f"measuring {processes} processes needs as many CUDA devices; this host has {devices}"
        )
    deadline, reported = time.monotonic() + longest_seconds, 0
    with temporary_folder("meshwright-workers-") as folder:
        logs, arguments = folder / "logs", [str(folder), device, *options]
        process = start_agent(on_one_node(processes, logs), module, arguments, logs)
        try:
            ended = False
            while not ended:
                ended = process.poll() is not None
                texts = [log.read_text("utf-8") for log in logs.rglob("0/stdout.log")]
                lines = [line.partition(FAMILY_MARK) for text in texts for line in text.splitlines()]
                families = [family for before, mark, family in lines if mark and not before]
                for family in families[reported:]:
                    on_progress(family)
                reported = len(families)
                if time.monotonic() > deadline:
                    raise RunError(f"{task} did not end within {longest_seconds:.0f} s")
                time.sleep(_POLL_SECONDS)
        finally:
            end_agent(process)
        if process.returncode:
            raise _failure(task, logs)
        results = [_result_of(folder, rank) for rank in range(processes)]
        return [path.read_text("utf-8") for path in results if path.exists()]


def _failure(task: str, logs: Path) -> RunError:
    """Error of the process that failed first, by torch's record of errors, with its last lines of output."""
    failed = {path: json.loads(path.read_text("utf-8"))["message"] for path in logs.rglob("*/error.json")}
    headline, log = f"{task} failed: a process was ended", logs / "torchrun.log"
    if failed:
        first = min(failed, key=lambda path: int(failed[path]["extraInfo"]["timestamp"]))
        headline, log = f"{task} failed on process {first.parent.name}", first.with_name("stderr.log")
    return RunError(headline, problems=[Problem("", line) for line in last_lines([log])])


def _result_of(folder: Path, rank: int) -> Path:
    """File of a worker process's result."""
    return folder / f"rank-{rank}.json"


def write_result(measure: Callable[[torch.device, Sequence[str]], str]) -> None:
    """Measure as one worker process of `run_workers`, with its options, and write the result to this process's file."""
    folder, kind, *options = sys.argv[1:]
    with among_workers(kind) as device:
        path = _result_of(Path(folder), int(os.environ["RANK"]))
        path.write_text(measure(device, options), "utf-8")


@contextmanager
def among_workers(kind: str) -> Iterator[torch.device]:
    """Context manager in which this process is one of the workers, in their process group; yields its device."""
    import torch
    import torch.distributed as dist

    from executor.launch.rendezvous import join_job

    if PARENT in os.environ:
        end_with_parent()
    torch.set_num_threads(1)
    device = join_job("nccl" if kind == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()
