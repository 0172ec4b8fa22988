"""What `measure` tells from traces: faults that it names, constants that it learns, public traces that it reads.

    python benchmarks/traces/run.py faults      # five faults at three strengths in played jobs → faults.csv
    python benchmarks/traces/run.py calibrated  # one traced layout of a played machine, nine others → calibrated.csv
    python benchmarks/traces/run.py public DIR  # every trace in a folder → public.csv
    python benchmarks/traces/run.py hta DIR PYTHON  # the same beside HolisticTraceAnalysis, which PYTHON has → hta.csv
    python benchmarks/traces/run.py logs DIR    # every NN.log of a folder, addresses in logs.csv → logs.csv
    python benchmarks/traces/run.py speed [GB]  # a trace of 1 GB → printed

Played jobs are those of the tests (`tests/cost_models/played_jobs.py`): ranks meet at collectives, clocks are apart.
"""

from __future__ import annotations

import csv
import json
import math
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "tests" / "cost_models")]

from gpu_traces import write_trace  # noqa: E402
from played_jobs import FAULTS, Fault, plan_of, play  # noqa: E402

from cost_models.axes.layout import parse_layout  # noqa: E402
from cost_models.errors import InputError  # noqa: E402
from cost_models.measured.calibration.scaled_profile import scale_seconds  # noqa: E402
from cost_models.measured.logs import (  # noqa: E402
    Work,
    read_logs,
    typical_steps,
)
from cost_models.measured.traces.events import TraceFile  # noqa: E402
from cost_models.measured.traces.rank_trace import read_traces  # noqa: E402
from cost_models.measured.traces.step_parts import AXES, KERNELS, KINDS, UNNAMED, Parts, Spans, step_of  # noqa: E402  # noqa: E402
from cost_models.specs.hardware import FittedFactors  # noqa: E402
from meshwright.families.transformer.measured import Measured, measure  # noqa: E402

STRENGTHS = {
    "slow link": (0.03, 0.1, 0.3),
    "slow rank": (0.1, 0.2, 0.5),
    "host-bound": (0.05, 0.1, 0.3),
    "data-bound": (0.05, 0.1, 0.3),
    "unbalanced stages": (0.1, 0.2, 0.5),
}
"""How much longer what a fault touches takes; of links and of waits for data, shares of a step."""
WORTH = 0.01
"""Share of a step from which a fault is one."""
LAYOUTS = ("pp4 dp2 mbs1 zero1", "tp2 pp2 dp2 mbs1 zero1", "pp2 dp8 mbs1 zero1")
MACHINE = FittedFactors(compute=1.2, host=1.6, collectives=1.5, optimizer=1.3)
TRACED = "tp2 pp2 dp4 mbs2 zero1"
OTHERS = (
    "dp16 mbs2 zero1",
    "dp16 mbs1 zero1",
    "tp2 dp8 mbs2 zero1",
    "tp4 dp4 mbs2 zero1",
    "tp8 dp2 mbs4 zero1",
    "pp2 dp8 mbs2 zero1",
    "pp4 dp4 mbs1 zero1",
    "tp4 pp2 dp2 mbs2 zero1",
    "tp2 pp4 dp2 mbs1 zero1",
)


def named(answer: Measured) -> str:
    """The fault that the answer names first."""
    notes = " ".join(answer.report.notes)
    if answer.report.step_seconds < (1 + WORTH) * answer.report.predicted.step_seconds:
        return "none"
    if "comes last to" in notes:
        return "slow rank"
    if "Stage " in notes:
        return "unbalanced stages"
    by_part = {"host": "host-bound", "data": "data-bound"}
    longer = [one for one in answer.causes if one.share > WORTH]
    if not longer:
        return "none"
    part = longer[0].part
    return "slow link" if part.endswith("_comm") else by_part.get(part, part)


def faults() -> Iterable[Mapping[str, Any]]:
    """Each fault in each layout, and even jobs."""
    cases = [("none", 0.0)] + [(kind, strength) for kind in FAULTS for strength in STRENGTHS[kind]]
    for layout in LAYOUTS:
        plan = plan_of(layout)
        for seed, (kind, strength) in enumerate(cases):
            axis = "tp" if plan.layout.tp > 1 else "dp"
            with tempfile.TemporaryDirectory() as folder:
                traces = play(Path(folder), plan, Fault(kind, strength, axis=axis), seed=seed)
                answer = measure(plan, (), traces)
            slower = answer.report.step_seconds / plan.prediction.step_seconds - 1
            yield {
                "layout": layout,
                "fault": kind,
                "strength": strength,
                "step_longer": round(slower, 4),
                "named": named(answer),
            }


def calibrated() -> Iterable[Mapping[str, Any]]:
    """Predictions of layouts that were not traced, before and after."""
    from meshwright.verbs.calibrate.reading import calibrate_from_run

    machine = scale_seconds(plan_of(TRACED).question.hardware, MACHINE)
    with tempfile.TemporaryDirectory() as folder:
        answer = measure(plan_of(TRACED), (), play(Path(folder), plan_of(TRACED, machine)))
    learnt = calibrate_from_run(answer.report)
    for one in learnt.factors():
        print({name: round(value, 3) if isinstance(value, float) else value for name, value in one.items()})
    for layout in (TRACED, *OTHERS):
        took = plan_of(layout, machine).prediction.step_seconds
        before, after = (
            plan_of(layout, profile).prediction.step_seconds / took - 1 for profile in (None, learnt.profile)
        )
        yield {
            "layout": layout,
            "traced": layout == TRACED,
            "step_seconds": round(took, 5),
            "before": round(before, 4),
            "after": round(after, 4),
        }


def public(folder: Path) -> Iterable[Mapping[str, Any]]:
    """Every trace of a folder, as of a job of as many data-parallel ranks as it says."""
    for path in sorted(folder.glob("*.json*")):
        began, row = time.process_time(), {"file": path.name, "bytes": path.stat().st_size}
        try:
            of = TraceFile(path)
            ranks = max(of.world_size or 1, (of.rank or 0) + 1)
            (one,) = read_traces([path], parse_layout(f"dp{ranks}"))
        except InputError as error:
            yield row | {"said": error.headline.replace(path.name, "FILE").replace(str(folder), "")[:90]}
            continue
        parts = {part: round(seconds / one.seconds, 4) for part, seconds in one.parts.items() if seconds}
        yield row | {
            "seconds": round(one.seconds, 6),
            "steps": one.steps,
            "sum_error": abs(sum(one.parts.values()) / one.step.seconds - 1) if one.step.seconds else 0.0,
            "known": round(one.covered, 4),
            "products": len(one.products),
            "cpu_seconds": round(time.process_time() - began, 2),
            "parts": " ".join(f"{part}={share}" for part, share in parts.items()),
        }


def beside_hta(folder: Path, python: str) -> Iterable[Mapping[str, Any]]:
    """From a trace's first kernel to its last: shares that compute, only communicate or copy, are idle; the share of
    communication behind compute; as our spans have them and as HTA does."""
    paths = sorted(folder.glob("*.json*"))
    theirs = {}
    for how in ("default", "whole"):
        call = [python, str(HERE / "hta_breakdown.py"), how, *map(str, paths)]
        theirs[how] = json.loads(subprocess.run(call, stdout=subprocess.PIPE, check=True).stdout)
    for path in paths:
        row: dict[str, Any] = {"file": path.name}
        try:
            row |= {name: round(share, 4) for name, share in _whole(path).items()}
        except InputError as error:
            row["said"] = error.headline.replace(str(path), "FILE")[:90]
        for how, hta in ((how, found[str(path)]) for how, found in theirs.items()):
            whole = sum(hta.get(name, 0.0) for name in ("idle", "compute", "non_compute"))
            if whole:
                shares = {name: hta[name] / whole for name in ("compute", "non_compute", "idle")}
                shares["hidden"] = hta.get("overlap", math.nan) / 100
                row |= {
                    f"hta_{how}_{name}": round(share, 4) for name, share in shares.items() if share == share
                }
            row |= {f"hta_{how}_said": hta["said"]} if "said" in hta else {}
        yield row


def _whole(path: Path) -> Mapping[str, float]:
    """Shares of a whole trace, as `step_of` has them of a step."""
    of = TraceFile(path)
    parts, spans, device = (
        Parts(parse_layout(f"dp{max(of.world_size or 2, (of.rank or 0) + 1)}")),
        Spans(),
        None,
    )
    for event in of.events():
        if event.category in KERNELS and event.device == (event.device if device is None else device):
            device, part = event.device, parts.part_of(event)
            spans.add(event.start, event.seconds, "dp" if part == UNNAMED else part)
    if not len(spans):
        raise InputError("no kernel of a GPU")
    found = step_of(spans)
    busy = step_of(spans, order=(*AXES, *(kind for kind in KINDS if kind not in AXES))).parts
    exposed, sent = (sum(one[f"{axis}_comm"] for axis in AXES) for one in (found.parts, busy))
    compute = sum(found.parts[name] for name in ("compute", "optimizer", "other"))
    shares = {
        "compute": compute / found.seconds,
        "non_compute": (exposed + found.parts["bubble"] + found.parts["offload"]) / found.seconds,
        "idle": found.parts["host"] / found.seconds,
        "other": found.parts["other"] / found.seconds,
    }
    return shares | ({"hidden": 1 - exposed / sent} if sent else {})


def logs(folder: Path) -> Iterable[Mapping[str, Any]]:
    """Each public log of logs.csv, as copied from its page: what was understood of it."""
    with (HERE / "logs.csv").open(newline="") as file:
        pages = [{name: row[name] for name in ("log", "address")} for row in csv.DictReader(file)]
    for page in pages:
        path = folder / f"{page['log']}.log"
        batch = re.search(r"global[ _]batch[ _]size: *(\d+) ", path.read_text())
        sequences = int(batch[1]) if batch else 1
        row = page | {"lines": len(path.read_text().splitlines())}
        try:
            log = read_logs([path], Work(tokens=1, sequences=sequences, gpus=1))
        except InputError as error:
            yield row | {"trainer": "", "said": error.headline.replace(f"`{path}` ", "")[:60]}
            continue
        steps = typical_steps(log.steps.lines)
        middle = statistics.median(line.seconds for line in steps.lines)
        rate = next(
            (
                one
                for one in ("seconds", "tokens_per_second_per_gpu", "samples_per_second")
                if one in log.format.values
            ),
            "steps_per_second",
        )
        yield row | {
            "trainer": log.format.called,
            "steps": log.steps.count,
            "quantity": rate,
            "usual": f"{middle if rate == 'seconds' else sequences / middle:.4g}",
            "allocated_gib": f"{max(log.allocated.values()) / 2**30:.2f}" if log.allocated else "",
            "reserved_gib": f"{max(log.reserved.values()) / 2**30:.2f}" if log.reserved else "",
            "said": " ".join(f"{name}={next(iter(values))}" for name, values in log.settings.items())[:60],
        }


def speed(gigabytes: float = 1.0) -> None:
    """One large trace, read in a process of its own: bytes a second of CPU, and the process's peak."""
    with tempfile.TemporaryDirectory() as folder:
        path = _large(Path(folder), int(1e9 * gigabytes))
        call = [sys.executable, __file__, "reading", str(path)]
        told = json.loads(subprocess.run(call, stdout=subprocess.PIPE, check=True).stdout)
        size = path.stat().st_size
    print(f"{size / 1e6:,.0f} MB, {told['kernels']:,} kernels: {told['seconds']:.1f} CPU s,", end=" ")
    print(
        f"{size / 1e6 / told['seconds']:.0f} MB/s; peak {told['peak_mib']:.0f} MiB, {told['before_mib']:.0f} before"
    )


def _large(folder: Path, least: int) -> Path:
    """A trace of steps like those of the tests' writer, each kernel with the operator and the launch before it."""
    parts = {"compute": 0.5, "host": 0.02, "dp": 0.1, "optimizer": 0.01}
    small = write_trace(folder / "small.json", parse_layout("dp8"), 0, parts, steps=1, passes=2_000)
    events = json.loads(small.read_text())["traceEvents"]
    kernels = [one for one in events if one.get("cat") == "kernel"]
    path, number, step, written = folder / "trace_rank0.json", 0, 0, 0
    with path.open("w") as file:
        written += file.write('{"distributedInfo": {"rank": 0, "world_size": 8}, "traceEvents": [')
        while written < least:
            later = 1e6 * step
            for one in kernels:
                number += 1
                ids = {"External id": number, "correlation": number}
                start = one["ts"] + later
                dims = [[4096, 4096], [4096, 1024 * (1 + number % 8)]]
                host = {"ph": "X", "pid": 1, "tid": 1, "ts": start - 20, "dur": 15}
                for event in (
                    host | {"cat": "cpu_op", "name": "aten::mm", "args": ids | {"Input Dims": dims}},
                    host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": ids},
                    one | {"ts": start, "args": one["args"] | ids},
                ):
                    written += file.write(json.dumps(event) + ",\n")
            first = min(one["ts"] for one in kernels) + later
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
            written += file.write(json.dumps(mark | {"ts": first, "dur": 1e6}) + ",\n")
            step += 1
        file.write(json.dumps({"ph": "M", "name": "process_name"}) + "]}")
    return path


def reading(path: Path) -> None:
    """Read one trace, and print what that took."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    (one,) = read_traces([path], parse_layout("dp8"))
    took, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = {"seconds": took, "peak_mib": peak / 1024, "before_mib": before / 1024}
    print(json.dumps(told | {"kernels": sum(map(len, one.products.values()))}))


def main() -> None:
    """Run one of them, and write its table."""
    what = sys.argv[1]
    if what in ("speed", "reading"):
        speed(*map(float, sys.argv[2:])) if what == "speed" else reading(Path(sys.argv[2]))
        return
    of: dict[str, Callable[..., Iterable[Mapping[str, Any]]]] = {
        "faults": faults,
        "calibrated": calibrated,
        "public": lambda folder: public(Path(folder)),
        "hta": lambda folder, python: beside_hta(Path(folder), python),
        "logs": lambda folder: logs(Path(folder)),
    }
    rows = list(of[what](*sys.argv[2:]))
    with (HERE / f"{what}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(
            file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
    if what == "faults":
        felt = [row for row in rows if row["fault"] != "none" and row["step_longer"] > WORTH]
        print(f"{sum(row['fault'] == row['named'] for row in felt)} of {len(felt)} that cost over 1 % named")
        for kind in ("none", *FAULTS):
            print(kind, Counter(row["named"] for row in rows if row["fault"] == kind))
    if what == "calibrated":
        for when in ("before", "after"):
            print(when, statistics.median(abs(row[when]) for row in rows if not row["traced"]))


if __name__ == "__main__":
    main()
