"""A run as text: one live line per step, predicted beside measured at the end, or what a dry run built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.defaults import OWN_COMPILED, OWN_STACK
from cost_models.units import counted, format_bytes, format_count, format_seconds
from meshwright.records.runs import ComparedQuantity, comparison
from meshwright.render.goals import changes_sentence
from meshwright.render.tables import Table, table
from meshwright.render.words import percent, sentence_list, wrapped
from planner.plan import Plan, Prediction

if TYPE_CHECKING:
    from executor.emulate.dry_run import BuiltRank
    from executor.measure.report import RouterReport, RunReport

SHARES = ("mfu", "hfu")
"""Quantities whose error is in points."""
_FAR_OFF = 10.0
"""From this relative error on, its digits say nothing."""


def step_line(
    step: int, loss: float, seconds: float, prediction: Prediction, *, warm_up: bool = False
) -> str:
    """ "step 12  loss 3.4120  1.24 s (predicted 1.20 s)  MFU 41.0 % (42.3 %)" """
    mfu = prediction.mfu * prediction.step_seconds / seconds
    note = "  warm-up" if warm_up else ""
    return (
        f"step {step:>4}  loss {loss:.4f}  {format_seconds(seconds)} "
        f"(predicted {format_seconds(prediction.step_seconds)})  MFU {percent(mfu)} ({percent(prediction.mfu)}){note}"
    )


def run_text(report: RunReport, steps: int) -> Iterator[str | Table]:
    """What ran, predicted beside measured, and what to know of the comparison."""
    environment = report.environment
    yield wrapped(
        f"{report.model}, {report.layout}, {counted(steps, 'step')} on {environment.device} "
        f"({environment.backend})"
        + (f"; steps vary by {percent(report.step_spread)}" if len(report.all_step_seconds) > 1 else "")
    )
    if report.plan is not None and (changed := changes_sentence(report.plan.question)):
        yield changed
    yield ""
    yield comparison_table(comparison(report))
    from executor.measure.slow_ranks import sentence

    for slow in report.slow_ranks:
        yield wrapped(f"{sentence(slow, report.first_measured_step)}; meshwright doctor tests its node")
    if report.routers:
        yield wrapped(routers_line(report.routers))
    if report.plan is not None and (elsewhere := on_other_devices(report.plan, environment.device)):
        yield wrapped(elsewhere)


def of_another_stack(stack: str, *, compiled: bool = False) -> str | None:
    """What to know of a plan made for this software stack before it is compared with what the executor does."""
    runs = OWN_COMPILED if compiled or stack == OWN_COMPILED else OWN_STACK
    if stack == runs:
        return None
    return (
        f"note: the plan is for stack {stack} but {runs} runs it, whose memory and times differ;"
        f" `plan --stack {runs}` makes a plan for it"
    )


def on_other_devices(plan: Plan, device: str) -> str:
    """Why errors say nothing of a plan for GPUs that ran on a CPU, or the other way round; else nothing."""
    gpu = plan.question.cluster.gpu
    if (gpu.kind == "cpu") == (device == "cpu"):
        return ""
    return (
        f"The plan is for {gpu.name} but ran on {device}: its times and memory cannot be judged by this run."
    )


def comparison_table(lines: Sequence[ComparedQuantity]) -> Table:
    """Predicted beside measured, and how far steps of a run are from one another where it has several."""
    headers = ["", "predicted", "measured", "error", "noise"]
    if all(line.noise is None for line in lines):
        headers.pop()
    return table(headers, [row[: len(headers)] for row in comparison_rows(lines)], words=("",))


def next_step(lines: Sequence[ComparedQuantity], report: Path) -> str:
    """What to do with a report: learn from it where its plan was further off than steps are from one another."""
    if far := [line for line in lines if line.beyond_noise]:
        off = sentence_list([f"{quantity_label(line.quantity)} {error_text(line)}" for line in far])
        return f"Off by more than the noise: {off}. Next: meshwright calibrate --from-run {report} -o profile.yaml"
    return f"Next: meshwright plot accuracy {report}"


def routers_line(routers: Sequence[RouterReport]) -> str:
    """How unevenly the experts of the worst mixtures were loaded."""
    busiest = max(routers, key=lambda router: router.largest_load)
    idlest = min(routers, key=lambda router: router.smallest_load)
    least = min(router.entropy for router in routers)
    return (
        f"load of experts: highest {busiest.largest_load:.1f} x the mean (block {busiest.layer}), lowest"
        f" {idlest.smallest_load:.1f} x (block {idlest.layer}); entropy at least {least:.2f} of an even load's"
    )


def built_table(ranks: Sequence[BuiltRank]) -> Table:
    """What a dry run built."""
    rows = [
        (
            str(rank.rank),
            str(rank.pipeline_rank),
            " + ".join(map(str, rank.blocks)),
            format_count(rank.parameters),
            format_bytes(rank.weights_bytes),
        )
        for rank in ranks
    ]
    return table(("rank", "stage", "blocks", "parameters", "weights"), rows)


def comparison_rows(lines: Sequence[ComparedQuantity]) -> list[tuple[str, str, str, str, str]]:
    """Cells of the comparison table; shares differ in points, everything else relative to what was measured."""
    return [
        (
            quantity_label(line.quantity),
            quantity_text(line.quantity, line.predicted),
            quantity_text(line.quantity, line.measured),
            error_text(line),
            "" if line.noise is None else percent(line.noise),
        )
        for line in lines
    ]


def quantity_label(quantity: str) -> str:
    """`thread_cpu_seconds` → "thread cpu"; the unit is in the value."""
    words = (
        quantity.replace("_seconds", "").replace("_bytes", "").replace("_", " ").replace(" per second", "/s")
    )
    return words.upper() if quantity in SHARES else words


def quantity_text(quantity: str, value: float) -> str:
    """Write a value in the unit that its quantity's name says."""
    if quantity in SHARES:
        return percent(value)
    if "_seconds" in quantity:
        return format_seconds(value)
    if "_bytes" in quantity:
        return format_bytes(value)
    return format_count(value)


def error_text(line: ComparedQuantity) -> str:
    """ "-3.2 %", of shares "+1.4 pt"; "-" where nothing was measured."""
    if not line.measured:
        return "-"
    if line.quantity in SHARES:
        return f"{100 * (line.predicted - line.measured):+.1f} pt"
    error = line.predicted / line.measured - 1
    return percent(error, "+.1%") if error < _FAR_OFF else f"> {_FAR_OFF:.0f} x"
