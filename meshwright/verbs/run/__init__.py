"""`run` and `emulate`: train with a plan on this machine, or run one rank of it alone; predicted beside measured.

Flags of `run` are the fields of `executor.run_config.RunConfig`, which is imported when `run` is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from cost_models.flags import Options, as_keywords, flag, plan_file, switch
from meshwright.inputs.options import AUTO
from meshwright.verbs.contract import command, read_plan, require_options, verbs_of_plan

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.answers import SavedAnswer
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan

_FAMILY_FLAGS = (
    *("rate_warm_up", "rate_decay", "clip", "compile", "trace", "profiler", "dry_run"),
    *("weights", "save_weights"),
)
"""Flags of `run` that not every family of models accepts."""


class RunFlags(Options, kw_only=True):
    """Options of `meshwright run`: the plan, and in `config` the fields of `RunConfig`."""

    plan: Path = field(metadata=plan_file())
    """Plan file written by `meshwright plan -o`."""
    dry_run: bool = switch(listed_after="profiler")
    """Build every stage without its devices; train nothing."""
    operations: str | None = flag("NAME", completion="operations", listed_after="every")
    """Failure rates and storage: catalogue name or file."""
    config: Mapping[str, Any]


@command(RunFlags, nested="executor.run_config:RunConfig")
def run_command(options: RunFlags, output: Output) -> None:
    """Train with a plan here and set measured beside predicted."""
    from meshwright.verbs.run.training import run
    from planner.plan import load_any_plan

    config = dict(options.config)
    loaded = load_any_plan(options.plan)
    verbs = verbs_of_plan(loaded)
    flags = {**config, "dry_run": options.dry_run}
    require_options(verbs, "run", [name for name in _FAMILY_FLAGS if flags[name]])
    speaks = os.environ.get("RANK", "0") == "0"  # under torchrun every rank trains, and rank 0 tells of it
    if speaks:
        output.remark(loaded.notes)
    if options.dry_run:
        output.show(verbs.build(loaded, config))
        output.note(f"Next: meshwright run {options.plan}")
        return
    output.check_places()
    if speaks and (note := verbs.caution(loaded, compiled=config["compile"])):
        output.note(note)
    steps: list[int] = []

    def tell(step: dict[str, Any]) -> None:
        """Print a line on a training step, and remember its number."""
        steps.append(step["step"])
        output.note(verbs.step_line(loaded, step))

    trace = config["trace"]
    earlier = _version(trace)
    config["every"] = _steps(config["every"])
    name, operations = options.plan.name, options.operations
    answer = run(loaded, on_step=tell, on_note=output.note, name=name, operations=operations, **config)
    if not speaks or (config["nodes"] > 1 and not steps):  # of several nodes the one with rank 0 tells of it
        return
    output.show(answer)
    written = config["out"] / "run-report.json"
    if _version(trace) != earlier:
        output.note(f"Wrote {trace}: open it in ui.perfetto.dev or chrome://tracing")
    if config["save_weights"] is not None:
        output.note(f"Wrote the weights to {config['save_weights']}")
    output.note(f"Wrote {written}. {verbs.next_step(answer.report, written)}")


def _steps(every: str) -> int | str:
    """Parse the steps between checkpoints: "100" → 100; `auto` stays."""
    from cost_models.documents import printable

    if every == AUTO:
        return every
    if not (every.isdecimal() and every.isascii() and int(every[:12]) > 0 and len(every) <= 12):
        raise InputError(f"--every: `{printable(every)}` is neither a number of steps nor `{AUTO}`")
    return int(every)


def _version(file: Path | None) -> tuple[int, int] | None:
    """Inode and modification time of a file, which change when it is written again; None without a file."""
    if file is None or not file.is_file():
        return None
    status = file.stat()
    return status.st_ino, status.st_mtime_ns


class EmulateOptions(Options):
    """Options of `emulate`: the plan, the rank, the number of steps, and whether to follow memory only."""

    plan: AnyPlan | HasPlan | str | Path = field(metadata=plan_file())
    """Plan file written by `meshwright plan -o`."""
    rank: int = flag("R", default=0)
    """Rank of the plan to run."""
    _: KW_ONLY
    fake: bool = switch()
    """Follow sizes only, without a device."""
    steps: int = flag("N", default=3, minimum=1)
    """Timed steps."""


@as_keywords(EmulateOptions)
def emulate(options: EmulateOptions) -> SavedAnswer:
    """Run one rank of a plan alone: its memory by part and, on a device, its compute, predicted beside emulated.

    `fake` follows memory only, and needs no device.

    Raises:
        InputError: a broken plan, one that cannot be trained, or one without this rank.
        HostError: no torch, or the device has too little memory.
        RunError: the rank failed or ran out of memory.
    """
    loaded, verbs = read_plan(options.plan, "emulate", ["fake"] if options.fake else [])
    return verbs.emulate(loaded, options.rank, steps=options.steps, fake=options.fake)


@command(EmulateOptions, out="Write a JSON report.")
def emulate_command(options: EmulateOptions, output: Output) -> None:
    """Run one rank of a plan alone, for any number of GPUs."""
    output.check_places()
    plan = output.load(options.plan)
    output.finish(emulate(plan, options.rank, fake=options.fake, steps=options.steps))
