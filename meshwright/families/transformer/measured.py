"""`measure` of a transformer's plan: what another trainer's log and traces tell, beside what was predicted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.measured.logs import Log, TypicalSteps, Work, read_logs, typical_steps
from cost_models.measured.traces.job import (
    Achieved,
    Job,
    RankTrace,
    collectives_of,
    job_of,
    products,
    read_traces,
)
from cost_models.question import Question
from cost_models.units import counted, format_seconds, grouped
from executor.measure.any_report import save_report
from executor.measure.observed_run import foreign_report, tells_of_its_device
from meshwright.families.transformer.run import Ran
from meshwright.records.runs import comparison, time_parts
from meshwright.render.achieved import TABLES, achieved_rows, achieved_text
from meshwright.render.causes import Cause, causes, findings
from meshwright.render.measured import error_text
from meshwright.render.tables import Table
from meshwright.render.words import percent, sentence_list, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.formats.log_sizes import contradictions
from planner.plan import Plan

_HINT = (
    "Where the time of a step goes only a trace tells: profile two or three steps and give --trace ({}: {})"
)
_LEAST_LOST = 0.001
"""Share of the time that is worth a word."""
_FAR_FROM_THE_LOG = 0.05
"""Share by which traced steps may differ from those of the log without a word."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Measured(Ran):
    """A job of another trainer, beside what was predicted; its report is as `run` writes it."""

    read: Mapping[str, Any] = field(default_factory=dict)
    """What was read: trainer, files, lines of steps, lines left out by reason."""
    hint: str = ""
    """How to learn more."""
    products: tuple[Achieved, ...] = ()
    """Matrix products of the traces by shape."""
    collectives: tuple[Achieved, ...] = ()
    """Collectives of a step by axis and size."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The parts that explain most of the difference; none without traces."""
        return causes(time_parts(self.report), self.report.step_seconds)

    def save(self, path: str | Path) -> None:
        """Write the report, for `calibrate --from-run`, `plot accuracy` and `report`."""
        save_report(self.report, Path(path))

    def next_commands(self, path: Path) -> str:
        """What to do with the report in this file."""
        if tells_of_its_device(self.report):
            return f"meshwright calibrate --from-run {path} -o profile.yaml"
        return f"meshwright plot accuracy {path}"

    def document(self) -> dict[str, Any]:
        explained = [asdict(one) | {"cause": one.why} for one in self.causes]
        tables = {kind: achieved_rows(getattr(self, kind)) for kind in TABLES}
        return super().document() | {"read": dict(self.read), "explained": explained, **tables}

    def table(self, kind: str) -> Tabled:
        """`products` or `collectives` of the traces, beside what the profile expects."""
        return Tabled(kind=kind, achieved=getattr(self, kind))

    def told(self) -> Iterable[str | Table]:
        yield from super().told()
        yield ""
        for note in self.report.notes:
            yield wrapped(note)
        if found := self.causes:
            line = comparison(self.report)[0]
            yield ""
            yield f"The prediction is off by {error_text(line)}. What explains most of it:"
            for number, one in enumerate(found, start=1):
                yield wrapped(f"{number}. {one.words}", indent="   ")
        if self.hint:
            yield wrapped(self.hint)


@dataclass(frozen=True, kw_only=True, repr=False)
class Tabled(AnswerBase):
    """Products or collectives of traces, beside what the profile expects."""

    kind: str
    achieved: Sequence[Achieved]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return achieved_rows(self.achieved)

    def document(self) -> dict[str, Any]:
        return {self.kind: self.rows}

    @property
    def text(self) -> tuple[str | Table, ...]:
        return achieved_text(self.kind, self.achieved)


def measure(plan: Plan, logs: Sequence[Path], traces: Sequence[Path]) -> Measured:
    """Read what a job of the plan left behind.

    Raises:
        InputError: a file cannot be read, or is of another job than the plan's; everything that contradicts it.
    """
    log = _log_of(plan, logs) if logs else None
    job = _job_of(plan, traces) if traces else None
    traced = () if job is None else job.traced
    steps = None if log is None else typical_steps(log.steps.lines)
    notes = [*(_of_the_log(log, logs, steps) if log and steps else []), *_of_traces(traced, steps)]
    notes += [] if job is None else findings(job)
    seconds = [line.seconds for line in steps.lines] if steps else [max(one.seconds for one in traced)]
    report = foreign_report(plan, seconds, log=log, steps=steps, job=job, notes=notes)
    read: dict[str, Any] = {"logs": _named(logs), "traces": _named(traces)}
    if log is not None and steps is not None:
        left_out = dict(steps.left_out) | ({"other batch": log.ramped} if log.ramped else {})
        read |= {"trainer": log.format.called, "lines": log.steps.count, "left_out": left_out}
        read |= {"lost_share": steps.lost, "starts": log.steps.attempts + 1}
    read["kernels_known"] = min((one.covered for one in traced), default=None)
    hint = "" if log is None or traced else _HINT.format(log.format.called, log.format.profile)
    tables: dict[str, Any] = {}
    if job is not None:
        question = plan.question
        assert isinstance(question, Question), "traces of several pools are refused"
        tables = {
            "products": tuple(products(job, question)),
            "collectives": tuple(collectives_of(job, question, plan.layout)),
        }
    return Measured(report=report, steps=len(seconds), read=read, hint=hint, **tables)


def _job_of(plan: Plan, traces: Sequence[Path]) -> Job:
    """What the traces tell together."""
    question = plan.question
    if question.has_pools:
        raise InputError("traces of a job over several pools of GPUs are not read", hint="give --log alone")
    on_cpu = question.cluster.gpu.kind == "cpu"
    return job_of(read_traces(traces, plan.layout, on_cpu=on_cpu), question, plan.layout)


def _log_of(plan: Plan, logs: Sequence[Path]) -> Log:
    """The log, which is of the plan's job."""
    training = plan.training
    work = Work(tokens=training.tokens_per_step, sequences=training.global_batch, gpus=plan.layout.num_gpus)
    log = read_logs(logs, work)
    if wrong := [*contradictions(log, plan)]:
        raise InputError(
            f"the log is of another job than the plan ({plan.layout.brief})",
            problems=wrong,
            hint="measure the plan of what ran: meshwright import COMMAND CLUSTER -o mine.yaml",
        )
    return log


def _named(paths: Sequence[Path]) -> list[str]:
    return [printable(str(path)) for path in paths]


def _of_the_log(log: Log, logs: Sequence[Path], steps: TypicalSteps) -> list[str]:
    """What was read, and what of it was left out."""
    told = log.steps.count
    notes = [
        f"Read from {sentence_list(_named(logs))}: {counted(told, 'line')} of steps of {log.format.called}"
    ]
    out = [f"{grouped(lines)} {why}" for why, lines in steps.left_out.items()]
    out += [f"{grouped(log.ramped)} of another batch"] if log.ramped else []
    if out:
        lost = f"; slow ones cost {percent(steps.lost)} of the time" if steps.lost > _LEAST_LOST else ""
        notes.append(f"Left out: {sentence_list(out)}{lost}")
    if log.steps.attempts:
        notes.append(f"The job started again {counted(log.steps.attempts, 'time')}")
    if log.format.assumes:
        notes.append(f"Assumed: {log.format.assumes}")
    if told == 1:
        notes.append("A single line tells no usual step: warm-up may be in it")
    return notes


def _of_traces(traced: Sequence[RankTrace], steps: TypicalSteps | None) -> list[str]:
    """Whose traces were read, how long their steps were beside the log's, and kernels that nothing names."""
    if not traced:
        return []
    ranks, most = sentence_list([grouped(one.rank) for one in traced]), max(one.steps for one in traced)
    notes = [f"Parts from {counted(len(traced), 'trace')} (rank {ranks}): {counted(most, 'step')}"]
    slowest = max(one.seconds for one in traced)
    if steps is not None and steps.lines:
        middle = median(line.seconds for line in steps.lines)
        if abs(slowest / middle - 1) > _FAR_FROM_THE_LOG:
            notes.append(
                f"A traced step took {format_seconds(slowest)}, one of the log {format_seconds(middle)}: parts are"
                " shares of the traced one"
            )
    least = min(traced, key=lambda one: one.covered)
    if least.covered < 1 - _LEAST_LOST:
        names = sentence_list([f"`{printable(name, limit=40)}`" for name in list(least.unknown)[:3]])
        which = f", most of it in {names}" if least.unknown else ", in groups of ranks that are of no axis"
        notes.append(f"{percent(1 - least.covered)} of the time of kernels is of no part known here{which}")
    return notes
