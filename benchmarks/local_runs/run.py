"""Predicted against measured on this machine, after it was calibrated and one run moved its profile.

    python benchmarks/local_runs/run.py OUT [--repeats 2] [--steps 10] [--minutes 9]

Times microbenchmarks on two processes, trains one layout, moves the profile by that run, and then predicts and trains
layouts that never ran: split, pipelined, sharded, recomputed, on one, two and four processes. Errors are predicted /
measured - 1; noise is what the middle half of a run's steps spans, as a share of their median.

OUT keeps all of it: a second call goes on where the first one ended, which is also after `--minutes`. OUT/runs.csv has
every run, OUT/table.md the medians.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.estimate import Estimate
from cost_models.files.catalog import load_profile, save_spec
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.files.whole import write_whole
from cost_models.measured.calibration.refinement import quantities
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import TrainingSpec
from executor.launch.launch import run_plan
from executor.measure.report import RunReport, load_any_report, save_report
from executor.microbenchmarks.calibrate import calibrate
from executor.run_config import RunConfig
from meshwright.terminal.output import as_csv
from meshwright.verbs.calibrate.profiles import calibrate_from_run
from planner.plan import make_plan

PROCESSES = 2
"""That calibrate side by side, and train the layout that moves the profile."""
CALIBRATING = "dp2 mbs2"
LAYOUTS = (
    "mbs4",
    "mbs2 recompute=full",
    "tp2 mbs4",
    "tp2 mbs2 sp",
    "pp2 mbs1",
    "dp2 mbs4 zero3",
    "dp2 mbs1 zero1",
    "tp2 pp2 mbs2",
)
AIM, PEAK_AIM = 0.1, 0.02
"""Of thread CPU time, or the noise where that is larger; and of peak memory."""
QUANTITIES = ("wall", "cpu", "peak")

Row = dict[str, str]


def main() -> None:
    """Go on with what is in OUT until it is complete or time is up, then write the table."""
    options = _options()
    until = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    apart = _kept(options.out / "microbenchmarks.yaml", lambda: calibrate(PROCESSES, quick=True))
    report = options.out / "calibrating-run.json"
    if not report.exists():
        save_report(_trained(CALIBRATING, apart, options), report)
    moved = _kept(options.out / "moved.yaml", lambda: calibrate_from_run(report, profile=apart).profile)
    rows = _read(options.out / "runs.csv")
    for repeat in range(options.repeats):
        for layout in LAYOUTS:
            if any((row["repeat"], row["asked"]) == (str(repeat), layout) for row in rows):
                continue
            if time.monotonic() > until:
                print(f"stopped after {options.minutes} minutes; call again to go on")
                break
            rows.append({"repeat": str(repeat)} | _one(layout, apart, moved, options))
            print(_line(rows[-1]), flush=True)
            write_whole(options.out / "runs.csv", as_csv(rows))
    text = _table(load_any_report(report), rows)
    write_whole(options.out / "table.md", text)
    print(text)


def _kept(path: Path, make: Callable[[], HardwareProfile]) -> HardwareProfile:
    """The profile of an earlier call, or one that is made and kept."""
    if not path.exists():
        save_spec(make(), path)
    return load_profile(str(path))


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _question(layout: str, profile: HardwareProfile, options: argparse.Namespace) -> Question:
    training = TrainingSpec(global_batch=8, sequence_length=256, precision="fp32")
    cluster = resolve_cluster("local", parse_layout(layout).num_gpus)
    return complete_question(resolve_model(options.model).spec, cluster, training, profile=profile)


def _priced(layout: str, profile: HardwareProfile, options: argparse.Namespace) -> Estimate:
    return estimate(_question(layout, profile, options), parse_layout(layout))


def _trained(layout: str, profile: HardwareProfile, options: argparse.Namespace) -> RunReport:
    question = _question(layout, profile, options)
    plan = make_plan(question, estimate(question, parse_layout(layout)))
    return run_plan(plan, RunConfig(steps=options.steps, out=options.out / "last"))


def _one(layout: str, apart: HardwareProfile, moved: HardwareProfile, options: argparse.Namespace) -> Row:
    """One layout, predicted with both profiles and trained."""
    before, after = (_priced(layout, profile, options) for profile in (apart, moved))
    report = _trained(layout, moved, options)
    row: dict[str, object] = {
        "asked": layout,
        "layout": after.layout.brief,
        "processes": after.layout.num_gpus,
        "measured_step_seconds": report.step_seconds,
        "step_noise": report.step_noise,
        "measured_cpu_seconds": report.thread_seconds,
        "cpu_noise": report.thread_noise,
        "measured_peak_bytes": report.peak_bytes,
        "mfu": report.mfu,
    }
    for when, predicted in (("before", before), ("after", after)):
        row |= {
            f"step_seconds_{when}": predicted.step_seconds,
            f"cpu_seconds_{when}": quantities(predicted)["thread"],
            f"peak_bytes_{when}": predicted.peak_bytes,
        }
    return {name: str(value) for name, value in row.items()}


def _errors(row: Row, when: str) -> dict[str, float]:
    """Quantity → predicted / measured - 1."""
    names = {"wall": "step_seconds", "cpu": "cpu_seconds", "peak": "peak_bytes"}
    return {
        quantity: float(row[f"{name}_{when}"]) / float(row[f"measured_{name}"]) - 1
        for quantity, name in names.items()
    }


def _line(row: Row) -> str:
    errors = _errors(row, "after")
    told = " ".join(f"{quantity} {_signed(error)}" for quantity, error in errors.items())
    return f"{row['layout']}: step {float(row['measured_step_seconds']):.3f} s  {told}"


def _table(calibrating: RunReport, rows: Sequence[Row]) -> str:
    """Medians over the repeats of each layout, and over all."""
    lines = [
        f"Calibrated on {PROCESSES} processes, then moved by one run of `{calibrating.layout.brief}`"
        f" (step {calibrating.step_seconds:.2f} s, noise {_share(calibrating.step_noise)}; thread CPU"
        f" {calibrating.thread_seconds:.2f} s, noise {_share(calibrating.thread_noise)}).",
        "",
        "| layout | processes | step | noise | wall before | wall | CPU noise | CPU before | thread CPU | peak |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    within = 0
    for layout in dict.fromkeys(row["asked"] for row in rows):
        some = [row for row in rows if row["asked"] == layout]
        before, after = (
            {name: statistics.median(_errors(row, when)[name] for row in some) for name in QUANTITIES}
            for when in ("before", "after")
        )
        noise = _median(some, "cpu_noise")
        within += abs(after["cpu"]) <= max(AIM, noise)
        cells = [
            f"`{some[0]['layout']}`",
            some[0]["processes"],
            f"{_median(some, 'measured_step_seconds'):.2f} s",
            _share(_median(some, "step_noise")),
            _signed(before["wall"]),
            _signed(after["wall"]),
            _share(noise),
            _signed(before["cpu"]),
            _signed(after["cpu"]),
            _signed(after["peak"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    whole = {
        f"{quantity} {when}": statistics.median(abs(_errors(row, when)[quantity]) for row in rows)
        for quantity in QUANTITIES
        for when in ("before", "after")
    }
    peaks = sum(abs(_errors(row, "after")["peak"]) <= PEAK_AIM for row in rows)
    lines += [
        "",
        f"Median of absolute errors over {len(rows)} runs: wall {_share(whole['wall before'])} before,"
        f" {_share(whole['wall after'])} after; thread CPU {_share(whole['cpu before'])} before,"
        f" {_share(whole['cpu after'])} after; peak memory {_share(whole['peak after'])}."
        f" Thread CPU within {AIM:.0%} or its noise: {within} of {len({row['asked'] for row in rows})} layouts;"
        f" peak memory within {PEAK_AIM:.0%}: {peaks} of {len(rows)} runs.",
        "",
    ]
    return "\n".join(lines)


def _median(rows: Sequence[Row], name: str) -> float:
    return statistics.median(float(row[name]) for row in rows)


def _signed(share: float) -> str:
    return f"{share:+.1%}".replace("%", " %")


def _share(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--model", default="gpt2-tiny")
    return parser.parse_args()


if __name__ == "__main__":
    main()
