"""One emulated rank as text: what it held beside what the model has for it, and why a plan may say something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.records.run_comparison import emulated, planned_memory
from meshwright.render.runs.run import error_text, quantity_label, quantity_text
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped
from planner.plan import Plan

if TYPE_CHECKING:
    from executor.emulate.one_rank import EmulationReport


def emulation_text(report: EmulationReport, plan: Plan) -> Iterator[str | Table]:
    """What was emulated, the figures, and what to know of them."""
    yield wrapped(
        f"{report.model}, {report.layout}: rank {report.rank} of {report.layout.num_gpus} (stage"
        f" {report.pipeline_rank}) {'alone on ' + report.device if report.on_a_device else 'without a device'}"
    )
    yield ""
    yield _table(report)
    for sentence in _reasons(report, plan):
        yield wrapped(sentence)


def _table(report: EmulationReport) -> Table:
    """With a column for the plan where it is for something else than what ran."""
    planned = planned_memory(report)
    cells = [
        (
            quantity_label(line.quantity),
            quantity_text(line.quantity, planned.get(line.quantity, line.predicted)),
            quantity_text(line.quantity, line.predicted),
            quantity_text(line.quantity, line.measured),
            error_text(line),
        )
        for line in emulated(report)
    ]
    if report.runs_otherwise:
        return table(("", "plan", "as run", "emulated", "error"), cells, words=("",))
    return table(("", "predicted", "emulated", "error"), [(one[0], *one[2:]) for one in cells], words=("",))


def _reasons(report: EmulationReport, plan: Plan) -> Iterator[str]:
    """Why columns differ, and what none of them has."""
    if report.runs_otherwise:
        here = report.device if report.on_a_device else "a CPU"
        yield (
            f"The plan is for stack {plan.stack.name} on {plan.question.cluster.gpu.name}. What was followed are the"
            f" executor's own operators as they are on {here}, which keep other tensors: `as run` is the model's"
            " price of these, and the error is against it."
        )
    if not report.on_a_device:
        yield "Without a device nothing is seen of what kernels and libraries allocate inside themselves."
        if report.layout.tp > 1:
            yield (
                "Under tp, gathered activations that are on their way count differently than with values: 3 to 13 % of"
                " the peak where it was tried."
            )
    elif not report.on_planned_device:
        yield "Compute on another kind of device than the plan's says nothing of it, so none is shown."
