"""`run`: train with a plan on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cost_models.units import counted
from executor.measure.observed_run import tells_of_its_device
from meshwright.answers.run import Ran
from meshwright.cli.output import Output
from meshwright.records import JSON_SCHEMA
from meshwright.records.run_comparison import comparison
from meshwright.render.runs.run import (
    built_table,
    comparison_table,
    next_step,
    of_another_stack,
    on_other_devices,
    routers_line,
    step_line,
)
from meshwright.render.words import percent, wrapped
from planner.plan_files import load_plan


def run(
    path: Path,
    train: Callable[..., Ran],
    *,
    steps: int,
    nodes: int,
    compiled: bool,
    out: Path,
    trace: Path | None,
    output: Output,
) -> None:
    """Train, say every step on stderr, and end with predicted beside measured.

    `train` is `meshwright.answers.run.run` with everything that was asked for, but for who is told.

    Under torchrun every rank trains and rank 0 speaks; of several nodes the one that has rank 0.

    Raises:
        InputError: a broken plan, or one that cannot be trained, or not with these flags.
        HostError: this machine has too few devices.
        RunError: the run failed.
        StoppedError: it was asked to stop, and did.
    """
    plan = load_plan(path)
    prediction = plan.prediction
    note = of_another_stack(plan.stack.name, compiled=compiled)
    if note and os.environ.get("RANK", "0") == "0":
        output.note(note)
    spoken = False

    def say(step: dict[str, Any]) -> None:
        nonlocal spoken
        spoken = True
        output.note(
            step_line(step["step"], step["loss"], step["seconds"], prediction, warm_up=not step["measured"])
        )

    earlier = _version(trace)
    report = train(plan, on_step=say, on_note=output.note).report
    if os.environ.get("RANK", "0") != "0" or (nodes > 1 and not spoken):
        return
    lines = comparison(report)
    rows = [
        {
            "quantity": line.quantity,
            "predicted": line.predicted,
            "measured": line.measured,
            "noise": line.noise,
            "beyond_noise": line.beyond_noise if line.noise is not None else None,
        }
        for line in lines
    ]
    output.answer(
        {"schema": JSON_SCHEMA, "comparison": rows, "report": report.model_dump(mode="json")},
        rows,
        wrapped(
            f"{report.model}, {report.layout}, {counted(steps, 'step')} on {report.environment.device} "
            f"({report.environment.backend}); steps vary by {percent(report.step_spread)}"
        ),
        "",
        comparison_table(lines),
        *([wrapped(routers_line(report.routers))] if report.routers else []),
        *([wrapped(elsewhere)] if (elsewhere := on_other_devices(plan, report.environment.device)) else []),
    )
    written = out / "run-report.json"
    if _version(trace) != earlier:
        output.note(f"Wrote {trace}: open it in ui.perfetto.dev or chrome://tracing")
    learns = lines if tells_of_its_device(report) else ()
    output.note(f"Wrote {written}. {next_step(learns, written)}")


def _version(file: Path | None) -> tuple[int, int] | None:
    """Another one once it is written again; None where there is none."""
    if file is None or not file.is_file():
        return None
    status = file.stat()
    return status.st_ino, status.st_mtime_ns


def dry_run(path: Path, *, output: Output) -> None:
    """Build the first rank of every stage without its devices and say what it holds.

    Raises:
        InputError: a broken plan, or one that cannot be trained.
        RunError: a rank cannot be built.
    """
    from executor.emulate.dry_run import build_without_devices

    plan = load_plan(path)
    layout = plan.layout
    built = build_without_devices(plan)
    rows = [asdict(rank) for rank in built]
    mesh = {axis: getattr(layout, axis) for axis in ("pp", "dp", "cp", "tp") if axis != "cp" or layout.cp > 1}
    degrees = " x ".join(f"{axis}{degree}" for axis, degree in mesh.items())
    output.answer(
        {"schema": JSON_SCHEMA, "mesh": mesh, "ranks": rows},
        rows,
        wrapped(
            f"{plan.model.name}, {layout}: built without devices on a mesh of {degrees}; the first rank of each"
            " stage holds"
        ),
        "",
        built_table(built),
    )
    output.note(f"Next: meshwright run {path}")
