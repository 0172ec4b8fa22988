"""One command for one GPU: calibrate it, then train Llama-shaped models and compare with the predictions.

    python benchmarks/h200/run.py              an H200, under ten minutes; README.md beside this has the rest
    python benchmarks/h200/run.py              again: what is missing
    python benchmarks/h200/run.py OUT --dry    the same path with narrow models on a CPU, in a folder of its own
    python benchmarks/h200/run.py --list

Every job runs in a process of its own, so that one that runs out of memory or time leaves the others alone. Jobs start
in the order of what they teach (`cases`), as long as what each is expected to take is left of `--seconds`; those that
do not fit are left out, which results.md says, until the command is given again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path

from cases import PATIENCE, Calibration, Case, Job, Sweep, Tables, jobs
from results import Results

from executor.launch.environment import worker_environment

_JOB = Path(__file__).with_name("job.py")
_LEAST_SECONDS = 50.0
"""Worth starting a sweep for, which goes on where it was cut short."""
_ENDING_SECONDS = 5.0
"""Kept of the time for the results."""
_LONGEST_ERROR = 8_000


def main() -> None:
    """All jobs that are missing, or those asked for."""
    asked = _arguments()
    chosen = [
        job for job in jobs(dry=asked.dry).values() if any(fnmatch(job.name, one) for one in asked.only)
    ]
    if not chosen:
        raise SystemExit(f"no job is called {' or '.join(asked.only)}; --list names them")
    if asked.list:
        for job in chosen:
            print(f"{job.seconds():4.0f} s  {job.name}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # not without what it started
    deadline = time.monotonic() + asked.seconds - _ENDING_SECONDS
    asked.out.mkdir(parents=True, exist_ok=True)
    results = Results(asked.out)
    for job in chosen:
        if asked.again or not results.has(job):
            _go_through(job, results, deadline, asked)
            results.save()
        print(_line(job, results), flush=True)
    if missing := results.draw():
        print(f"no figure: {missing}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Calibrate a GPU, train, compare with the predictions.")
    parser.add_argument(
        "out", type=Path, nargs="?", default=Path("h200-results"), help="default: h200-results"
    )
    parser.add_argument("--dry", action="store_true", help="narrow models on the CPU")
    parser.add_argument("--cluster", default="hgx-h200", help="catalogue name of what the GPU is one of")
    parser.add_argument("--seconds", type=float, default=540.0, help="end before so many")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="NAME", help="these jobs; * and ? stand for others"
    )
    parser.add_argument("--again", action="store_true", help="also those that are there already")
    parser.add_argument(
        "--list", action="store_true", help="the jobs, in order, and what each is expected to take"
    )
    return parser.parse_args()


def _go_through(job: Job, results: Results, deadline: float, asked: argparse.Namespace) -> None:
    """As far as time goes: a sweep whose process a run ended goes on in another, but for that run."""
    left, wanted = deadline - time.monotonic(), results.seconds(job)
    least = _LEAST_SECONDS if isinstance(job, Sweep) else wanted
    if left < least:
        results.left_out[job.name] = f"takes about {wanted:.0f} s, {max(0.0, left):.0f} s were left"
        return
    if asked.again:
        results.repeat(job)
    further = True
    while further and left >= least:
        before = results.seconds(job)
        _do(job, results, left, [*["--dry"] * asked.dry, "--cluster", asked.cluster])
        further = not results.has(job) and results.seconds(job) < before
        left = deadline - time.monotonic()


def _do(job: Job, results: Results, left: float, how: list[str]) -> None:
    """In a process of its own; what it told is taken over however it ended."""
    results.left_out.pop(job.name, None)
    out_of_time = False
    # a CPU may be a busy one
    allowed = left if "--dry" in how else min(left, PATIENCE * results.seconds(job))
    command = [sys.executable, str(_JOB), str(results.folder), job.name, *how]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=worker_environment() | {"PYTHONSAFEPATH": ""},  # a job imports the files beside it
            process_group=0,
        )
        try:
            failed = f"exit code {process.wait(timeout=allowed)}"
        except subprocess.TimeoutExpired:
            failed, out_of_time = f"not done after {allowed:.0f} s", allowed == left
        finally:
            _end(process)
        began = results.take()
        output.seek(0)
        told = output.read().decode(errors="replace")
    unfinished = not results.has(job) or (isinstance(job, Calibration) and process.returncode != 0)
    fault = job.name if isinstance(job, (Case, Tables)) else began
    if unfinished and fault and not out_of_time:
        results.keep(fault, {"failed": failed})
    if unfinished and (isinstance(job, Calibration) or not results.has(job)):
        results.left_out[job.name] = failed
    results.save()
    if process.returncode or {"failed", "repetition_failed"} & results.runs.get(job.name, {}).keys():
        with (results.folder / "errors.txt").open("a", encoding="utf-8") as stream:
            stream.write(f"{job.name}\n{told[-_LONGEST_ERROR:]}\n\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _line(job: Job, results: Results) -> str:
    """What became of a job."""
    if job.name in results.left_out:
        return f"{job.name}: left out, {results.left_out[job.name]}"
    row = results.runs.get(job.name, {})
    if "failed" in row:
        return f"{job.name}: {row['failed']}"
    if "step_seconds" in row:
        again = f"; measured again: {row['repetition_failed']}" if "repetition_failed" in row else ""
        mfu = f", MFU {row['mfu']:.1%}" if "mfu" in row else ""
        return f"{job.name}: {row['step_seconds']:.4g} s a step{mfu}{again}"
    return f"{job.name}: {'measured' if isinstance(job, Calibration) else 'complete'}"


if __name__ == "__main__":
    main()
