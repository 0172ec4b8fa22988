"""`emulate`: one rank of a plan alone on this machine, or without a device."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.flags import as_keywords, flag, output_flag, plan_file, switch
from meshwright.verbs.contract.answers import SavedAnswer
from meshwright.verbs.contract.command import command
from meshwright.verbs.contract.family import read_plan

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan


@dataclass(frozen=True)
class EmulateOptions:
    """What `emulate` takes."""

    plan: AnyPlan | HasPlan | str | Path = field(metadata=plan_file())
    rank: int = flag("R", "Which of the plan's ranks.", default=0, kind=int)
    _: KW_ONLY
    fake: bool = switch("Memory only, and no device.")
    steps: int = flag("N", "Steps whose compute is timed.", default=3, kind=int, minimum=1)


@as_keywords(EmulateOptions)
def emulate(options: EmulateOptions) -> SavedAnswer:
    """Run one rank of a plan for any number of GPUs: its memory by part, and its compute where there is a device.

    `fake` follows memory only, and needs no device.

    Raises:
        InputError: a broken plan, one that cannot be trained, or one without this rank.
        HostError: no torch, or the device has too little memory.
        RunError: the rank failed or ran out of memory.
    """
    loaded, verbs = read_plan(options.plan, "emulate", ["fake"] if options.fake else [])
    return verbs.running(loaded).alone(options.rank, steps=options.steps, fake=options.fake)


@dataclass(frozen=True, kw_only=True)
class EmulateFlags(EmulateOptions):
    """What `meshwright emulate` takes."""

    out: Path | None = output_flag("Write a JSON report.")


@command(EmulateFlags, name="emulate")
def emulate_command(options: EmulateFlags, output: Output) -> None:
    """Run one rank of a plan alone, for any number of GPUs."""
    output.check_places(options.out)
    answer = emulate(output.load(options.plan), options.rank, fake=options.fake, steps=options.steps)
    output.show(answer)
    if options.out is not None:
        answer.save(options.out)
    output.wrote(options.out)
