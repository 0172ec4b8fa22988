"""`run`, `emulate` and `measure` for transformers: predicted beside measured quantities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.units import counted, format_bytes, format_count, format_seconds, grouped
from executor.measure.observed_run import foreign_report, tells_of_its_device
from executor.measure.report import RunReport, save_report
from meshwright.inputs.problems import refuse
from meshwright.records import fields_of, frame_of
from meshwright.records.runs import comparison, emulated, planned_memory, time_parts
from meshwright.render.measured import (
    TABLES,
    Cause,
    achieved_rows,
    achieved_text,
    causes,
    comparison_table,
    error_text,
    findings,
    quantity_label,
    quantity_text,
    run_text,
)
from meshwright.render.tables import Table, table_of
from meshwright.render.words import percent, sentence_list, wrapped
from meshwright.terminal.answers import Answer, SavedAnswer
from meshwright.verbs.ran import AnyEmulated, AnyRan
from planner.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

    from cost_models.measured.logs import Log, TypicalSteps
    from cost_models.measured.traces.job import Achieved, Job, RankTrace
    from executor.emulate.dry_run import BuiltRank
    from executor.emulate.one_rank import EmulationReport


class Ran(AnyRan[RunReport]):
    """Answer of `run` for a transformer: predicted beside measured quantities."""

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each quantity: predicted, measured, and noise among steps."""
        return [
            fields_of(line, "quantity", "predicted", "measured", "noise")
            | {"beyond_noise": line.beyond_noise if line.noise is not None else None}
            for line in comparison(self.report)
        ]

    def document(self) -> dict[str, Any]:
        """JSON document of the run, with its slow ranks."""
        first = self.report.first_measured_step
        slow = [
            {**fields_of(one, "rank", "part", "excess"), "since_step": first + one.since, "z": one.z}
            for one in self.report.slow_ranks
        ]
        return super().document() | {"slow_ranks": slow}

    def body(self) -> Iterable[str | Table]:
        """Text: table of predicted beside measured quantities, slow ranks, load of experts."""
        return run_text(self.report, self.steps)

    def to_frame(self) -> pd.DataFrame:
        """Frame with a row per quantity: `quantity`, `predicted`, `measured`, in base units, and `noise`, the share
        of `measured` that the middle half of the steps spans."""
        return frame_of([asdict(line) for line in comparison(self.report)])

    def __repr__(self) -> str:
        """Table of predicted beside measured quantities, as text."""
        return str(comparison_table(comparison(self.report)))


class Built(Answer):
    """Answer of `run --dry-run` for a transformer: ranks built without devices."""

    plan: Plan
    ranks: Sequence[BuiltRank]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each rank that was built."""
        return [asdict(rank) for rank in self.ranks]

    @property
    def mesh(self) -> dict[str, int]:
        """Degree of each parallel axis of the device mesh; `cp` only if above 1."""
        layout = self.plan.layout
        axes = ("pp", "dp", "cp", "tp") if layout.cp > 1 else ("pp", "dp", "tp")
        return {axis: getattr(layout, axis) for axis in axes}

    def document(self) -> dict[str, Any]:
        """JSON document: the mesh, and the built ranks."""
        return {"mesh": self.mesh, "ranks": self.rows}

    def view(self) -> tuple[str | Table, ...]:
        """Text: table of built ranks, with blocks, parameters and bytes of weights."""
        degrees = " x ".join(f"{axis}{degree}" for axis, degree in self.mesh.items())
        built = f"built without devices on a mesh of {degrees}; the first rank of each stage holds:"
        words = f"{self.plan.model.name}, {self.plan.layout}: {built}"
        columns = {
            "rank": [str(rank.rank) for rank in self.ranks],
            "stage": [str(rank.pipeline_rank) for rank in self.ranks],
            "blocks": [" + ".join(map(str, rank.blocks)) for rank in self.ranks],
            "parameters": [format_count(rank.parameters) for rank in self.ranks],
            "weights": [format_bytes(rank.weights_bytes) for rank in self.ranks],
        }
        return wrapped(words), "", table_of(columns)


class Emulated(AnyEmulated):
    """Answer of `emulate` for a transformer: memory and compute of one rank, predicted beside emulated."""

    report: EmulationReport

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each quantity, with three values: predicted for the plan's stack, predicted for the stack that ran,
        and emulated."""
        planned = planned_memory(self.report)
        return [
            {"quantity": line.quantity, "plan": planned.get(line.quantity, line.predicted)}
            | {"predicted": line.predicted, "emulated": line.measured}
            for line in emulated(self.report)
        ]

    def view(self) -> Iterator[str | Table]:
        """Text on the emulated rank: table of predicted beside emulated quantities, and reasons why they differ."""
        report = self.report
        alone = f"alone on {report.device}" if report.on_a_device else "without a device"
        ranks = f"{report.layout.num_gpus} (stage {report.pipeline_rank})"
        yield wrapped(f"{report.model}, {report.layout}: rank {report.rank} of {ranks} {alone}")
        device = report.device if report.on_a_device else "a CPU"
        operators = f"The executor's own operators ran, on {device}, and keep other tensors: `as run` is the prediction"
        yield from self.compared(quantity_label, quantity_text, f"{operators} for these")
        if not report.on_a_device:
            kernels = "memory that kernels and libraries allocate for themselves is not counted."
            yield wrapped(f"Without a device, {kernels}")
            if report.layout.tp > 1:
                differently = "count differently than on a device: 3 to 13 % of the peak where it was tried."
                yield wrapped(f"Under tp, activations being gathered {differently}")
        elif not report.on_planned_device:
            reason = "says nothing of it, so none is shown."
            yield wrapped(f"Compute on another kind of device than the plan's {reason}")


_HINT = (
    "Only a trace tells where the time of a step goes: profile two or three steps and give --trace ({}: {})"
)
_LEAST_LOST = 0.001
"""Smallest share of time that a note mentions."""
_FAR_FROM_THE_LOG = 0.05
"""Relative difference of traced steps from the log's above which a note says so."""


class Measured(Ran, SavedAnswer):
    """Answer of `measure`: a job of another trainer, predicted beside measured; its report has the form of
    `run`'s."""

    read: Mapping[str, Any] = field(default_factory=dict)
    """Source of the report: trainer, files, lines of steps, lines left out by reason."""
    hint: str = ""
    """Hint on profiling the job to learn more; empty if there are traces."""
    products: tuple[Achieved, ...] = ()
    """Matrix products in the traces, by shape."""
    collectives: tuple[Achieved, ...] = ()
    """Collectives of a step in the traces, by axis and size."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Parts of the step that explain most of the prediction's error, with likely causes; empty without traces."""
        return causes(time_parts(self.report), self.report.step_seconds)

    def save(self, path: str | Path) -> None:
        """Write the run report to a file, for `calibrate --from-run`, `plot accuracy` and `report`."""
        save_report(self.report, Path(path))

    def next_commands(self, path: Path) -> str:
        """Commands to suggest for the run report at `path`."""
        if tells_of_its_device(self.report):
            return f"meshwright calibrate --from-run {path} -o profile.yaml"
        return f"meshwright plot accuracy {path}"

    def document(self) -> dict[str, Any]:
        """JSON document of the run, with its sources, causes of error, products and collectives."""
        explained = [asdict(one) | {"cause": one.reason} for one in self.causes]
        tables = {kind: achieved_rows(getattr(self, kind)) for kind in TABLES}
        return super().document() | {"read": dict(self.read), "explained": explained, **tables}

    def table(self, kind: str) -> Tabled:
        """Table of `products` or `collectives` in the traces, measured beside the profile's prediction."""
        return Tabled(kind=kind, achieved=getattr(self, kind))

    def body(self) -> Iterable[str | Table]:
        """Text: predicted beside measured quantities, notes, causes of error, and the hint."""
        yield from super().body()
        yield ""
        for note in self.report.notes:
            yield wrapped(note)
        if causes := self.causes:
            line = comparison(self.report)[0]
            yield ""
            yield f"The prediction is off by {error_text(line)}. What explains most of it:"
            for number, cause in enumerate(causes, start=1):
                yield wrapped(f"{number}. {cause.words}", indent="   ")
        if self.hint:
            yield wrapped(self.hint)


class Tabled(Answer):
    """Answer of `measure --table`: matrix products or collectives of traces, measured beside the profile's
    prediction."""

    kind: str
    achieved: Sequence[Achieved]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each product or collective."""
        return achieved_rows(self.achieved)

    def document(self) -> dict[str, Any]:
        """JSON document: rows of products or collectives."""
        return {self.kind: self.rows}

    def view(self) -> tuple[str | Table, ...]:
        """Text: the table of products or collectives."""
        return achieved_text(self.kind, self.achieved)


def measure(plan: Plan, logs: Sequence[Path], traces: Sequence[Path]) -> Measured:
    """Compare a job of another trainer, read from its logs and traces, with the plan's predictions.

    Raises:
        InputError: a file cannot be read, or is of another job than the plan's; everything that contradicts it.
    """
    from cost_models.measured.logs import typical_steps
    from cost_models.measured.traces.job import collectives_of, products

    question, layout = plan.question, plan.layout
    log = _log_of(plan, logs) if logs else None
    job = _job_of(plan, traces) if traces else None
    traced = () if job is None else job.traced
    steps = None if log is None else typical_steps(log.steps.lines)
    notes = [*(_of_the_log(log, logs, steps) if log and steps else []), *_of_traces(traced, steps)]
    notes += [] if job is None else findings(job)
    seconds = [line.seconds for line in steps.lines] if steps else [max(one.seconds for one in traced)]
    read: dict[str, Any] = {"logs": _names(logs), "traces": _names(traces)}
    if log is not None and steps is not None:
        left_out = dict(steps.left_out) | ({"other batch": log.ramped} if log.ramped else {})
        read |= {"trainer": log.format.called, "lines": log.steps.count, "left_out": left_out}
        read |= {"lost_share": steps.lost, "starts": log.steps.attempts + 1}
    read["kernels_known"] = min((one.covered for one in traced), default=None)
    return Measured(
        report=foreign_report(plan, seconds, log=log, steps=steps, job=job, notes=notes),
        steps=len(seconds),
        read=read,
        hint="" if log is None or traced else _HINT.format(log.format.called, log.format.profile),
        products=() if job is None else tuple(products(job, question)),
        collectives=() if job is None else tuple(collectives_of(job, question, layout)),
    )


def _job_of(plan: Plan, traces: Sequence[Path]) -> Job:
    """Read the traces of several ranks as one job."""
    from cost_models.measured.traces.job import job_of, read_traces

    question = plan.question
    if question.has_pools:
        raise InputError("traces of a job over several pools of GPUs are not read", hint="give --log alone")
    on_cpu = question.cluster.gpu.kind == "cpu"
    return job_of(read_traces(traces, plan.layout, on_cpu=on_cpu), question, plan.layout)


def _log_of(plan: Plan, logs: Sequence[Path]) -> Log:
    """Read the logs. Raises InputError if they contradict the plan."""
    from cost_models.measured.logs import Work, read_logs
    from planner.formats.exporter import contradictions

    training = plan.training
    work = Work(tokens=training.tokens_per_step, sequences=training.global_batch, gpus=plan.layout.num_gpus)
    log = read_logs(logs, work)
    headline = f"the log is of another job than the plan ({plan.layout.brief})"
    hint = "measure the plan of what ran: meshwright import COMMAND CLUSTER -o mine.yaml"
    refuse(headline, [*contradictions(log, plan)], hint)
    return log


def _names(paths: Sequence[Path]) -> list[str]:
    """Paths as printable text."""
    return [printable(str(path)) for path in paths]


def _of_the_log(log: Log, logs: Sequence[Path], steps: TypicalSteps) -> list[str]:
    """Sentences on the log: how many lines were read, which were left out and why, and what was assumed."""
    count = log.steps.count
    lines = f"{counted(count, 'line')} of steps of {log.format.called}"
    notes = [f"Read from {sentence_list(_names(logs))}: {lines}"]
    out = [f"{grouped(lines)} {why}" for why, lines in steps.left_out.items()]
    out += [f"{grouped(log.ramped)} of another batch"] if log.ramped else []
    if out:
        lost = f"; slow ones cost {percent(steps.lost)} of the time" if steps.lost > _LEAST_LOST else ""
        notes.append(f"Left out: {sentence_list(out)}{lost}")
    if log.steps.attempts:
        notes.append(f"The job started again {counted(log.steps.attempts, 'time')}")
    if log.format.assumes:
        notes.append(f"Assumed: {log.format.assumes}")
    if count == 1:
        notes.append("A single line tells no usual step: warm-up may be in it")
    return notes


def _of_traces(traced: Sequence[RankTrace], steps: TypicalSteps | None) -> list[str]:
    """Sentences on whose traces were read, on how their steps differ from the log's, and on unknown kernels."""
    if not traced:
        return []
    ranks, total = sentence_list([grouped(run.rank) for run in traced]), max(run.step.count for run in traced)
    notes = [f"Parts from {counted(len(traced), 'trace')} (rank {ranks}): {counted(total, 'step')}"]
    slowest = max(run.seconds for run in traced)
    if steps is not None and steps.lines:
        middle = median(line.seconds for line in steps.lines)
        if abs(slowest / middle - 1) > _FAR_FROM_THE_LOG:
            times = f"{format_seconds(slowest)}, one of the log {format_seconds(middle)}"
            notes.append(f"A traced step took {times}: parts are shares of the traced one")
    worst = min(traced, key=lambda run: run.covered)
    if worst.covered < 1 - _LEAST_LOST:
        names = sentence_list([f"`{printable(name, limit=40)}`" for name in list(worst.unknown)[:3]])
        tail = f", most of it in {names}" if worst.unknown else ", in groups of ranks that are of no axis"
        notes.append(f"{percent(1 - worst.covered)} of the time of kernels is of no part known here{tail}")
    return notes
