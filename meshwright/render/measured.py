"""Text on measured runs and traces: predicted beside measured, tables of kernels, and likely causes of
differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cost_models.units import counted, format_bandwidth, format_bytes, format_count, format_seconds, grouped
from meshwright.records.runs import ComparedQuantity, comparison
from meshwright.render.goals import changes_sentence
from meshwright.render.tables import Table, table_of
from meshwright.render.words import percent, sentence_list, wrapped

if TYPE_CHECKING:
    from cost_models.measured.traces.job import Achieved, Job
    from executor.measure.report import RouterReport, RunReport

SHARES = ("mfu", "hfu")
"""Quantities that are shares, whose error is written in percentage points."""
_FAR_OFF = 10.0
"""Relative error from which text says only `> 10 x`."""


def step_line(step: Mapping[str, Any], predicted_seconds: float, speed: str) -> str:
    """Line on one training step, measured with predictions in brackets: "step   12  loss 3.4120  1.24 s (predicted
    1.20 s)  MFU 41.0 % (42.3 %)"."""
    seconds = f"{format_seconds(step['seconds'])} (predicted {format_seconds(predicted_seconds)})"
    warm_up = "" if step["measured"] else "  warm-up"
    return f"step {step['step']:>4}  loss {step['loss']:.4f}  {seconds}  {speed}{warm_up}"


def run_text(report: RunReport, steps: int) -> Iterator[str | Table]:
    """Text on a run: table of predicted beside measured quantities, then slow ranks and load of experts."""
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
    if report.plan is not None:
        gpu, device = report.plan.question.cluster.gpu, environment.device
        if (gpu.kind == "cpu") != (device == "cpu"):
            reason = "its times and memory cannot be judged by this run"
            yield wrapped(f"The plan is for {gpu.name} but ran on {device}: {reason}.")


def comparison_table(lines: Sequence[ComparedQuantity]) -> Table:
    """Table of predicted beside measured quantities, with errors, and the noise among steps if the run has
    several."""
    columns = {
        "": [quantity_label(line.quantity) for line in lines],
        "predicted": [quantity_text(line.quantity, line.predicted) for line in lines],
        "measured": [quantity_text(line.quantity, line.measured) for line in lines],
        "error": list(map(error_text, lines)),
    }
    if any(line.noise is not None for line in lines):
        columns["noise"] = ["" if line.noise is None else percent(line.noise) for line in lines]
    return table_of(columns, words=("",))


def routers_line(routers: Sequence[RouterReport]) -> str:
    """Line on how unevenly tokens spread over experts, in the mixture blocks with the highest and lowest load."""
    most = max(routers, key=lambda router: router.largest_load)
    least = min(routers, key=lambda router: router.smallest_load)
    highest = f"highest {most.largest_load:.1f} x the mean (block {most.layer})"
    lowest = f"lowest {least.smallest_load:.1f} x (block {least.layer})"
    entropy = min(router.entropy for router in routers)
    return f"load of experts: {highest}, {lowest}; entropy at least {entropy:.2f} of an even load's"


def quantity_label(quantity: str) -> str:
    """Name of a quantity as words without its unit: `thread_cpu_seconds` → "thread cpu"."""
    words = quantity.replace("_seconds", "").replace("_bytes", "")
    words = words.replace("_", " ").replace(" per second", "/s")
    return words.upper() if quantity in SHARES else words


def quantity_text(quantity: str, value: float) -> str:
    """Value of a quantity as text: seconds or bytes if its name says so, percent for `mfu` and `hfu`, else a
    count."""
    if quantity in SHARES:
        return percent(value)
    if "_seconds" in quantity:
        return format_seconds(value)
    if "_bytes" in quantity:
        return format_bytes(value)
    return format_count(value)


def error_text(line: ComparedQuantity) -> str:
    """Prediction's error as text: "-3.2 %" of the measured value, "+1.4 pt" for shares; "-" if nothing was
    measured."""
    if not line.measured:
        return "-"
    if line.quantity in SHARES:
        return f"{100 * (line.predicted - line.measured):+.1f} pt"
    error = line.predicted / line.measured - 1
    return percent(error, "+.1%") if error < _FAR_OFF else f"> {_FAR_OFF:.0f} x"


TABLES = ("products", "collectives")
"""Kinds of kernels in traces that get a table: matrix products and collectives."""
_MAX_ROWS = 20
_TERA = 1e12


def achieved_rows(kernels: Sequence[Achieved]) -> list[dict[str, Any]]:
    """Flat rows of kernels in traces, in base units, with the seconds lost beyond the prediction."""
    rows = [{name: value for name, value in one._asdict().items() if value != ""} for one in kernels]
    return [row | {"excess_seconds": one.excess} for row, one in zip(rows, kernels, strict=True)]


def achieved_text(kind: str, kernels: Sequence[Achieved]) -> tuple[str | Table, ...]:
    """Table of kernels of one kind from traces: measured and expected seconds, rates; those that lose most first."""
    if not kernels:
        reason = "with record_shapes=True a trace tells shapes" if kind == TABLES[0] else "none communicates"
        return (f"The traces tell no {kind}: {reason}",)
    rows = kernels[:_MAX_ROWS]
    remainder = f"; {grouped(len(kernels) - len(rows))} more in --json" if len(kernels) > len(rows) else ""
    note = f"(expected: by the profile; times: as long as that; those first that lose most{remainder})"
    times = {
        "count": [grouped(one.kernels) for one in rows],
        "each": [format_seconds(one.seconds) for one in rows],
        "expected": [format_seconds(one.predicted) if one.predicted else "-" for one in rows],
        "times": [f"{one.seconds / one.predicted:.2f}" if one.predicted else "-" for one in rows],
    }
    if kind == TABLES[0]:
        columns = {"rows x inner x columns": [one.what for one in rows]} | times
        columns["TFLOP/s"] = [f"{one.rate / _TERA:.1f}" for one in rows]
    else:
        columns = {
            "axis, operation": [f"{one.axis} {one.what.replace('_', '-')}" for one in rows],
            "ranks": [grouped(one.ranks) for one in rows],
            "size": [format_bytes(one.message_bytes) if one.message_bytes else "-" for one in rows],
            **times,
            "rate": [format_bandwidth(one.rate) if one.rate else "-" for one in rows],
        }
    return table_of(columns, words=tuple(columns)[:1]), wrapped(note, indent=" ")


MOST_CAUSES = 3
_SMALLEST = 0.002
"""Smallest difference, as a share of the step, that gets a cause. Smaller differences explain nothing."""
_CAUSES = {
    "compute": "kernels are slower than the profile's: power limit, kernels not fused, another attention kernel",
    "host": "the GPU waits for launches of small kernels, Python or synchronisation; CUDA graphs shorten it",
    "tp_comm": "tensor-parallel collectives are not hidden as planned, or a group's ranks do not share a node",
    "cp_comm": "keys and values are exchanged beside nothing, or over slower links than planned",
    "ep_comm": "experts are loaded unevenly, or their exchange crosses slower links than planned",
    "dp_comm": "gradients or weights are exchanged after compute, not behind it, or the network is slower",
    "pp_comm": "what stages send is not hidden, or the links between them are slower than planned",
    "bubble": "stages wait for one another: they are uneven, or have fewer microbatches than planned",
    "jitter": "ranks come to their collectives at different times; `plot ranks` draws who waits for whom",
    "offload": "copies to and from host memory are not hidden, or the host's link is slower than planned",
    "optimizer": "the update is not fused, or not sharded as planned",
    "other": "work that no part of a plan has",
    "data": "steps wait for their batches: more loader workers, or faster storage",
}
"""Part of a step → why it may take longer than predicted."""
_SHORTER = "it takes less than the profile says; `calibrate --from-run` learns that"


def findings(job: Job) -> list[str]:
    """Sentences on ranks that come late and stages that are slow, from traces of several ranks."""
    from cost_models.measured.traces.step_parts import LATE

    step = max(one.seconds for one in job.traced)
    sentences = [
        f"Rank {late.rank} comes last to {percent(late.share)} of its collectives; its peers wait"
        f" {_of_the_step(late.seconds, step)} for it: its GPU, host or link is slow; meshwright doctor tests its node"
        for late in job.late[:MOST_CAUSES]
    ]
    if (slow := job.slow_stage) is not None and slow.seconds >= LATE * step:
        sentences.append(
            f"Stage {slow.place} computes {slow.times:.2f} x as long as planned beside the others,"
            f" {_of_the_step(slow.seconds, step)} more: they wait for it; move blocks away, or its GPUs are slow"
        )
    if job.unfollowed:
        ranks = sentence_list([grouped(rank) for rank in job.unfollowed[:MOST_CAUSES]])
        reason = "are not those of the plan's schedule: no passes are told apart"
        sentences.append(f"Sends and receives of rank {ranks} {reason}")
    return sentences


def _of_the_step(seconds: float, step: float) -> str:
    """Seconds, also as a share of the step, as words."""
    return f"{format_seconds(seconds)} a step ({percent(seconds / step)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Likely cause for one part of a step that took longer or shorter than predicted."""

    part: str
    predicted: float
    measured: float
    share: float
    """Share of the measured step that would be saved, or added, if this part were as predicted."""

    @property
    def reason(self) -> str:
        """Likely cause of the difference, as words."""
        return _CAUSES[self.part] if self.share > 0 else _SHORTER

    @property
    def words(self) -> str:
        """Sentence on the difference and its cause: "dp comm takes 310.0 ms longer, 5.2 % of the step: gradients
        ..."."""
        much = format_seconds(abs(self.measured - self.predicted))
        comparison = "longer" if self.share > 0 else "less"
        label = quantity_label(f"{self.part}_seconds")
        return f"{label} takes {much} {comparison}, {percent(abs(self.share))} of the step: {self.reason}"


def causes(parts: Sequence[ComparedQuantity], step_seconds: float) -> tuple[Cause, ...]:
    """Parts of a step that explain most of the difference from the prediction, largest first, three at most; empty if
    parts were not measured."""
    found = []
    for one in parts:
        share, part = (one.measured - one.predicted) / step_seconds, one.quantity.removesuffix("_seconds")
        if abs(share) >= _SMALLEST:
            found.append(Cause(part=part, predicted=one.predicted, measured=one.measured, share=share))
    return tuple(sorted(found, key=lambda cause: -abs(cause.share))[:MOST_CAUSES])
