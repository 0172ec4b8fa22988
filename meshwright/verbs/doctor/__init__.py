"""`doctor`: looks at every device and link before a job starts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.flags import Options, as_keywords, flag
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.output import Output
    from meshwright.verbs.doctor.examined import Examined
    from planner.plan import AnyPlan


class DoctorOptions(Options):
    """Options of `doctor`."""

    plan: AnyPlan | HasPlan | str | Path | None = flag(
        "PLAN", "Compare the devices with the constants this plan assumes.", kind=Path, completion="plans"
    )
    """Plan to compare devices with; None: devices are compared with one another only."""
    processes: int | None = flag(
        "N", "Processes; default: one per device, or the plan's.", kind=int, minimum=1, kw_only=True
    )
    """Processes measured at once; None: those of the job, or of the plan, as far as devices allow."""


@as_keywords(DoctorOptions)
def doctor(options: DoctorOptions) -> Examined:
    """Measure products, memory, launches and links of every device, and say which is slower than it should be.

    Started by torchrun on every node it examines all of them, and every rank gets the answer; else this machine.

    Raises:
        InputError: not a plan file, or no process.
        HostError: no torch, too few devices, or another number than the job has.
        RunError: a process failed.
    """
    from meshwright.verbs.doctor.examined import examine_machine

    return examine_machine(options)


@command(DoctorOptions, name="doctor")
def doctor_command(options: DoctorOptions, output: Output) -> None:
    """Look for slow devices and links before a job."""
    from meshwright.inputs.plans import any_plan_of
    from meshwright.terminal.progress import progress
    from meshwright.verbs.doctor.examined import examine_machine

    loaded = None if options.plan is None else any_plan_of(options.plan)
    with progress(output) as reporter:
        reporter.say("examining devices and links")
        answer = examine_machine(replace(options, plan=loaded))
    if os.environ.get("RANK", "0") == "0":  # under torchrun every rank examines, and rank 0 tells of it
        output.show(answer)
    if not answer.passed:
        output.end_with_no()
