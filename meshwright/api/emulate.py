"""Emulation: one rank of a plan alone on this machine, or without a device."""

from __future__ import annotations

from pathlib import Path

from meshwright.answers.emulated import Emulated
from meshwright.inputs.plans import HasPlan, plan_of
from planner.plan import Plan


def emulate(
    plan: Plan | HasPlan | str | Path, rank: int = 0, *, steps: int = 3, fake: bool = False
) -> Emulated:
    """Run one rank of a plan for any number of GPUs: its memory by part, and its compute where there is a device.

    `fake` follows memory only, and needs no device.

    Raises:
        InputError: a broken plan, one that cannot be trained, or one without this rank.
        HostError: the device has too little memory.
        RunError: the rank failed or ran out of memory.
    """
    from executor.emulate.one_rank import emulate as run_alone

    loaded = plan_of(plan)
    return Emulated(plan=loaded, report=run_alone(loaded, rank, steps=steps, fake=fake))
