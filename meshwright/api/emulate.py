"""Emulation: one rank of a plan alone on this machine, or without a device."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from meshwright.answers.emulated import Emulated
from meshwright.families import verbs_of_plan
from meshwright.families.options import require_options
from meshwright.inputs.plans import HasPlan, any_plan_of
from planner.any_plan import AnyPlan


def emulate(
    plan: AnyPlan | HasPlan | str | Path, rank: int = 0, *, steps: int = 3, fake: bool = False
) -> Emulated:
    """Run one rank of a plan for any number of GPUs: its memory by part, and its compute where there is a device.

    `fake` follows memory only, and needs no device.

    Raises:
        InputError: a broken plan, one that cannot be trained, or one without this rank.
        HostError: no torch, or the device has too little memory.
        RunError: the rank failed or ran out of memory.
    """
    loaded = any_plan_of(plan)
    verbs = verbs_of_plan(loaded)
    require_options(verbs, "emulate", ["fake"] if fake else [])
    return cast(Emulated, verbs.running(loaded).alone(rank, steps=steps, fake=fake))
