"""`run`: train with a plan on this machine."""

from __future__ import annotations

from pathlib import Path

from executor.launch import run_plan

from meshwright.output import Output
from meshwright.render.run import Step, comparison_table, step_line
from planner.plan import load_plan


def run(path: Path, *, steps: int, backend: str | None, out_dir: Path, output: Output) -> None:
    """Train, say every step on stderr, and end with predicted beside measured.

    Raises:
        InputError: a broken plan.
        HostError: this machine has too few devices, or not the backend.
        RunError: the run failed.
    """
    prediction = load_plan(path).prediction

    def say(step: Step) -> None:
        output.note(step_line(step, prediction.step_seconds, prediction.mfu))

    report = run_plan(path, steps=steps, out_dir=out_dir, backend=backend, on_step=say)
    rows = [
        {"quantity": line.quantity, "predicted": line.predicted, "measured": line.measured}
        for line in report.comparison
    ]
    output.answer(report.as_dict(), rows, comparison_table(report.comparison))
    output.note(
        f"Wrote {out_dir / 'run-report.json'}. Next: meshwright plot accuracy {out_dir / 'run-report.json'}"
    )
