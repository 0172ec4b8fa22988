"""`emulate`: one rank of a plan alone on this machine, or without a device."""

from __future__ import annotations

from pathlib import Path

from meshwright.measured import emulated
from meshwright.output import JSON_SCHEMA, Output, check_places
from meshwright.render.run import comparison_table, of_another_stack
from meshwright.render.words import wrapped
from planner.plan import load_plan


def emulate(path: Path, *, rank: int, steps: int, fake: bool, out: Path | None, output: Output) -> None:
    """Predicted beside emulated: memory by part, and compute where there is a device.

    Raises:
        InputError: a broken plan, one that cannot be trained, or one without this rank.
        HostError: the device has too little memory.
        RunError: the rank failed or ran out of memory.
    """
    check_places(("-o", out), ("--csv", output.csv))
    plan = load_plan(path)
    if note := of_another_stack(plan.stack.name):
        output.note(note)

    from executor.emulate import NO_DEVICE, save_emulation
    from executor.emulate import emulate as run_alone

    report = run_alone(plan, rank, steps=steps, fake=fake)
    lines = emulated(report)
    rows = [
        {"quantity": line.quantity, "predicted": line.predicted, "emulated": line.measured} for line in lines
    ]
    where = "without a device" if report.device == NO_DEVICE else f"alone on {report.device}"
    output.answer(
        {"schema": JSON_SCHEMA, "comparison": rows, "report": report.model_dump(mode="json")},
        rows,
        wrapped(
            f"{report.model}, {report.layout}: rank {rank} of {report.layout.num_gpus}"
            f" (stage {report.pipeline_rank}) {where}"
        ),
        "",
        comparison_table(lines, "emulated"),
        *([wrapped(_ELSEWHERE)] if report.seconds and not report.on_planned_device else []),
    )
    if out is not None:
        save_emulation(report, out)
        output.note(f"Wrote {out}")


_ELSEWHERE = "The plan is for other devices than this one: memory compares, compute does not."
