"""`measure`: compare another trainer's job, from its logs and traces, with a plan's predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.documents import printable
from cost_models.errors import InputError, UnknownNameError
from cost_models.flags import Options, argument, flag, plan_file
from meshwright.verbs.contract import command, read_plan

if TYPE_CHECKING:
    from meshwright.families.transformer.run import Measured
    from meshwright.inputs.plans import HasPlan
    from meshwright.terminal.output import Output
    from planner.plan import AnyPlan

Paths = str | Path | Sequence[str | Path]


def measure(plan: AnyPlan | HasPlan | str | Path, log: Paths = (), trace: Paths = ()) -> Measured:
    """Compare a job of another trainer with its plan's predictions, from its `log` (rotated files in any order), its
    `trace` of some ranks, or both.

    The answer's report has the form that `run` writes. The trainer is recognised by its log lines; the layout, batch
    and model that it prints must be the plan's.

    Raises:
        InputError: a file cannot be read, is of no known trainer, or of another job.
    """
    from meshwright.families.transformer.run import measure
    from meshwright.inputs.plans import plan_of

    loaded, _ = read_plan(plan, "measure")
    logs, traces = _paths(log), _paths(trace)
    if not logs and not traces:
        hint = "--log train.log, --trace trace.json.gz, or both"
        raise InputError("there is nothing to measure", hint=hint)
    return measure(plan_of(loaded), logs, traces)


def _paths(paths: Paths) -> tuple[Path, ...]:
    """One path or several, as a tuple of paths."""
    return (Path(paths),) if isinstance(paths, (str, Path)) else tuple(map(Path, paths))


def _table(kind: str | None) -> str | None:
    """Check the kind of table: products or collectives. Raises UnknownNameError."""
    from meshwright.render.measured import TABLES

    if kind is not None and kind not in TABLES:
        raise UnknownNameError("table", printable(kind), TABLES, hint=f"there are {' and '.join(TABLES)}")
    return kind


class MeasureFlags(Options, kw_only=True):
    """Options of `meshwright measure`: the plan that ran, the job's logs and traces, and the table to print."""

    plan: Path = field(metadata=plan_file())
    """What ran: a plan file, as `import -o` writes it."""
    log: tuple[Path, ...] = flag("FILE", kind=list[Path], default=())
    """Log of the job, compressed or not; repeatable."""
    trace: tuple[Path, ...] = flag("FILE", kind=list[Path], default=())
    """Trace of one rank by torch.profiler or Nsight; repeatable."""
    more: tuple[Path, ...] = field(default=(), metadata=argument("[FILE]...", kind=list[Path]))
    """More logs; more traces (.json, .json.gz, .sqlite)."""
    table: str | None = flag("KIND", check=_table)
    """Show products or collectives of traces."""


@command(MeasureFlags, out="Write the report, as `run` does.")
def measure_command(options: MeasureFlags, output: Output) -> None:
    """Set what another trainer's job took beside its plan."""
    output.check_places()
    traced = [path for path in options.more if path.name.endswith((".json", ".json.gz", ".sqlite"))]
    logged = [path for path in options.more if path not in traced]
    plan = output.load(options.plan)
    answer = measure(plan, [*options.log, *logged], [*options.trace, *traced])
    if options.table is None:
        output.finish(answer)
        return
    file = output.out
    output.show(answer.table(options.table), files=[] if file is None else [partial(answer.save, file)])
    output.wrote(file, answer.next_commands)
