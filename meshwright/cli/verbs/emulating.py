"""`emulate`: one rank of a plan alone on this machine, or without a device."""

from __future__ import annotations

from pathlib import Path

from meshwright.cli.output import Output, check_places
from meshwright.records import JSON_SCHEMA
from meshwright.records.run_comparison import emulated, planned_memory
from meshwright.render.runs.emulation import emulation_text
from planner.plan_files import load_plan


def emulate(path: Path, *, rank: int, steps: int, fake: bool, out: Path | None, output: Output) -> None:
    """Predicted beside emulated: memory by part, and compute where there is a device.

    Raises:
        InputError: a broken plan, one that cannot be trained, or one without this rank.
        HostError: the device has too little memory.
        RunError: the rank failed or ran out of memory.
    """
    check_places(("-o", out), ("--csv", output.csv))
    plan = load_plan(path)

    from executor.emulate.one_rank import emulate as run_alone
    from executor.emulate.one_rank import save_emulation

    report = run_alone(plan, rank, steps=steps, fake=fake)
    lines, planned = emulated(report), planned_memory(report)
    rows = [
        {
            "quantity": line.quantity,
            "plan": planned.get(line.quantity, line.predicted),
            "predicted": line.predicted,
            "emulated": line.measured,
        }
        for line in lines
    ]
    output.answer(
        {"schema": JSON_SCHEMA, "comparison": rows, "report": report.model_dump(mode="json")},
        rows,
        *emulation_text(report, plan),
    )
    if out is not None:
        save_emulation(report, out)
        output.note(f"Wrote {out}")
