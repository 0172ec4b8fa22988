"""One traced layout of this machine moves its profile; nine other layouts before and after → local.csv.

    python benchmarks/traces/local.py

The trace is read as another trainer's is: `measure --trace`, then `calibrate --from-run`. The training thread's CPU
time is compared beside the step, as others may be at work on the machine.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
from pathlib import Path

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.measured.calibration.refinement import quantities
from cost_models.pipeline.pricing import estimate
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import TrainingSpec
from executor.launch.launch import run_plan
from executor.run_config import RunConfig
from meshwright.families.transformer.measured import measure
from meshwright.verbs.calibrate.reading import calibrate_from_run
from planner.plan import Plan, make_plan

HERE = Path(__file__).parent
MODEL, STEPS, TRACED = "gpt2-mini", 6, "dp2 mbs2"
OTHERS = (
    "mbs4",
    "mbs2",
    "mbs2 recompute=full",
    "tp2 mbs4",
    "tp2 mbs2 sp",
    "pp2 mbs1",
    "pp2 mbs2 recompute=full",
    "dp2 mbs4 zero3",
    "dp2 mbs1 zero1",
)


def planned(layout: str, profile: HardwareProfile | None) -> Plan:
    """Eight sequences of 256 tokens a step."""
    parsed = parse_layout(layout)
    training = TrainingSpec(global_batch=8, sequence_length=256, precision="fp32")
    cluster = resolve_cluster("local", parsed.num_gpus)
    question = complete_question(resolve_model(MODEL).spec, cluster, training, profile=profile)
    return make_plan(question, estimate(question, parsed))


def main() -> None:
    """Trace one layout, run the others, write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        plan = planned(TRACED, None)
        run_plan(plan, RunConfig(steps=3, out=out / "traced", profiler=out / "traces"))
        answer = measure(plan, (), sorted((out / "traces").glob("*.json*")))
        learnt = calibrate_from_run(answer.report)
        for one in learnt.factors():
            print(one, flush=True)
        for layout in OTHERS:
            plans = {"before": planned(layout, None), "after": planned(layout, learnt.profile)}
            report = run_plan(plans["after"], RunConfig(steps=STEPS, out=out / "run"))
            row = {
                "layout": layout,
                "thread_seconds": report.thread_seconds,
                "step_seconds": report.step_seconds,
            }
            for when, one in plans.items():
                row[f"thread_{when}"] = (
                    quantities(estimate(one.question, one.layout))["thread"] / report.thread_seconds - 1
                )
                row[f"step_{when}"] = one.prediction.step_seconds / report.step_seconds - 1
            rows.append(
                {name: value if name == "layout" else round(float(value), 4) for name, value in row.items()}
            )
            print(rows[-1], flush=True)
    for what in ("thread_before", "thread_after", "step_before", "step_after"):
        print(what, statistics.median(abs(float(row[what])) for row in rows))
    with (HERE / "local.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
