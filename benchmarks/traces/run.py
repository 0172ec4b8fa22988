"""What `measure` tells from traces: faults that it names, constants that it learns, public traces that it reads.

    python benchmarks/traces/run.py faults      # five faults at three strengths in played jobs → faults.csv
    python benchmarks/traces/run.py calibrated  # one traced layout of a played machine, nine others → calibrated.csv
    python benchmarks/traces/run.py public DIR  # every trace in a folder → public.csv
    python benchmarks/traces/run.py speed       # a trace of 1 GB → printed

Played jobs are those of the tests (`tests/cost_models/played_jobs.py`): ranks meet at collectives, clocks are apart.
"""

from __future__ import annotations

import csv
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "tests" / "cost_models")]

from gpu_traces import write_trace  # noqa: E402
from played_jobs import FAULTS, Fault, plan_of, play  # noqa: E402

from cost_models.axes.layout import parse_layout  # noqa: E402
from cost_models.errors import InputError  # noqa: E402
from cost_models.measured.calibration.moved_profile import moved  # noqa: E402
from cost_models.measured.traces.events import TraceFile  # noqa: E402
from cost_models.measured.traces.reading import read_traces  # noqa: E402
from cost_models.specs.hardware import Moved  # noqa: E402
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
MACHINE = Moved(compute=1.2, host=1.6, collectives=1.5, optimizer=1.3)
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
    from meshwright.verbs.calibrate import calibrate_from_run

    machine = moved(plan_of(TRACED).question.hardware, MACHINE)
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


def speed() -> None:
    """One large trace: bytes a second of CPU, and memory."""
    layout = parse_layout("dp8")
    with tempfile.TemporaryDirectory() as folder:
        path = write_trace(
            Path(folder) / "trace_rank0.json",
            layout,
            0,
            {"compute": 0.5, "host": 0.02, "dp": 0.1},
            steps=3,
            passes=int(sys.argv[2]) if len(sys.argv) > 2 else 100_000,
        )
        size, began = path.stat().st_size, time.process_time()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        read_traces([path], layout)
        took = time.process_time() - began
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(
        f"{size / 1e6:.0f} MB, {took:.1f} CPU s, {size / 1e6 / took:.0f} MB/s, {more / 1024:+.0f} MiB above writing it"
    )


def main() -> None:
    """Run one of them, and write its table."""
    what = sys.argv[1]
    if what == "speed":
        speed()
        return
    rows = list(
        {"faults": faults, "calibrated": calibrated}[what]()
        if what != "public"
        else public(Path(sys.argv[2]))
    )
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
