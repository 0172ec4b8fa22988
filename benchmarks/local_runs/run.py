"""Predicted against measured on this machine: plans of several layouts, trained through the executor, repeated.

    python benchmarks/local_runs/run.py OUT [--repeats 5] [--steps 8] [--model gpt2-tiny]

Calibrates the machine once for each number of processes, predicts, then trains every layout, repeatedly. Writes
OUT/runs.csv and prints medians. Wall time is the step's median over the measured steps; thread CPU time is compared
with the predicted busy time (compute, recompute, optimizer, host).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import pandas as pd

from cost_models.asking import ask
from cost_models.estimate import Estimate
from cost_models.estimating import estimate
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.layout import Layout, parse_layout
from cost_models.specs.loading import resolve_cluster, resolve_model
from cost_models.specs.training import TrainingSpec
from cost_models.whole_files import write_whole
from executor.calibrate import calibrate
from executor.launch import run_plan
from meshwright.output import as_csv
from planner.plan import make_plan

LAYOUTS = (
    "mbs4",
    "tp2 mbs4",
    "pp2 mbs2",
    "dp2 mbs4 zero3",
    "tp2 pp2 mbs2",
)
BUSY = ("compute", "recompute", "optimizer", "host")


def main() -> None:
    """Run every layout `--repeats` times."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    layouts = [parse_layout(text) for text in options.layouts.split(";")]
    profiles = {count: calibrate(count, quick=True) for count in {layout.num_gpus for layout in layouts}}
    rows: list[dict[str, object]] = []
    for repeat in range(options.repeats):
        for layout in layouts:
            rows.append({"repeat": repeat} | _one(layout, profiles[layout.num_gpus], options))
            print(_line(rows[-1]), flush=True)
            write_whole(options.out / "runs.csv", as_csv(rows))
    _summary(pd.DataFrame(rows))


def _one(layout: Layout, profile: HardwareProfile, options: argparse.Namespace) -> dict[str, object]:
    """One layout, predicted and trained."""
    training = TrainingSpec(global_batch=8, sequence_length=256, precision="fp32")
    cluster = resolve_cluster("local", layout.num_gpus)
    question = ask(resolve_model(options.model).spec, cluster, training, profile=profile)
    predicted = estimate(question, layout)
    report = run_plan(make_plan(question, predicted), steps=options.steps, out_dir=options.out / "last")
    return {
        "layout": predicted.layout.brief,
        "processes": layout.num_gpus,
        "predicted_step_seconds": predicted.step_seconds,
        "measured_step_seconds": report.step_seconds,
        "predicted_busy_seconds": _busy(predicted),
        "measured_cpu_seconds": report.thread_seconds,
        "measured_spread": report.step_spread,
        "predicted_peak_bytes": predicted.peak_bytes,
        "measured_peak_bytes": report.peak_bytes,
    }


def _busy(predicted: Estimate) -> float:
    return sum(seconds for part, seconds in predicted.time if part in BUSY)


def _line(row: dict[str, object]) -> str:
    errors = " ".join(f"{name} {_error(row, *pair):+.1%}" for name, pair in PAIRS.items())
    return f"{row['layout']}: step {row['measured_step_seconds']:.3f} s  {errors}"


PAIRS = {
    "wall": ("predicted_step_seconds", "measured_step_seconds"),
    "cpu": ("predicted_busy_seconds", "measured_cpu_seconds"),
    "peak": ("predicted_peak_bytes", "measured_peak_bytes"),
}


def _error(row: dict[str, object], predicted: str, measured: str) -> float:
    return float(row[predicted]) / float(row[measured]) - 1  # type: ignore[arg-type]


def _summary(frame: pd.DataFrame) -> None:
    """Median errors by layout, and the median of their absolute values over all."""
    for name, (predicted, measured) in PAIRS.items():
        frame[name] = frame[predicted] / frame[measured] - 1
    print(frame.groupby("layout", sort=False)[list(PAIRS)].median().map(lambda x: f"{x:+.1%}").to_string())
    for name in PAIRS:
        print(f"{name}: median absolute error {frame[name].abs().median():.1%} over {len(frame)} runs")
    noise = statistics.median(frame["measured_spread"].astype(float))
    print(f"noise floor: steps of one run vary by {noise:.1%} (median)")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--model", default="gpt2-tiny")
    parser.add_argument("--layouts", default=";".join(LAYOUTS), help="separated by ;")
    return parser.parse_args()


if __name__ == "__main__":
    main()
