"""Answer of `forecast`: when a job ends, where its time goes, how often to save, and what would end it sooner."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.expected import ExpectedStep, expected_step
from cost_models.files.loading import read_price, read_tokens
from cost_models.question import Question
from cost_models.reliability import Forecast, Job, changes_of, daly, ends_of, first_order_ratio, job_of, young
from cost_models.reliability import forecast as forecast_of
from cost_models.specs.cluster import OperationsSpec
from cost_models.units import format_count, format_days, format_seconds, grouped
from meshwright.inputs.goals import DEFAULT_OPERATIONS, operations_of
from meshwright.inputs.options import Operations
from meshwright.inputs.plans import plan_of
from meshwright.inputs.problems import Problems, read_flag
from meshwright.pages.chapters import Chapter, Picture
from meshwright.records import fields_of
from meshwright.render.estimates import expected_record
from meshwright.render.goals import gpus_in_words
from meshwright.render.tables import Table, table_of
from meshwright.render.words import Fact, money, part_label, percent, spaced, wrapped
from meshwright.terminal.answers import Answer
from meshwright.verbs.forecast import ForecastOptions
from meshwright.verbs.ran import operations_spec, time_label
from planner.objectives import Objective
from planner.plan import AnyPlan, Plan, priced_again

if TYPE_CHECKING:
    from meshwright.plots.drawing import Drawing

_UNREAD = "the job cannot be read"


def ask(options: ForecastOptions) -> Forecasted:
    """Read the options of `forecast`; operations and price default to the plan's.

    The job is forecast when its outlook is first asked for.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    plan = plan_of(options.plan)
    objective, problems = plan.objective or Objective(), Problems()
    if options.operations is None and objective.operations is not None:
        options = replace(options, operations=objective.operations)
    question = problems.read(_to_train_on, plan.question, options.tokens)
    operations = problems.read(lambda: operations_of(_read(options)))
    price = problems.read(read_flag, "--price", options.price, read_price, _UNREAD)
    start = problems.read(read_flag, "--start", options.start, _date, _UNREAD)
    problems.require()
    assumed = f"failures, restarts and storage of `{DEFAULT_OPERATIONS}` where you state none (--operations)"
    job, expected = _job(question, plan)
    return Forecasted(
        question=question,
        job=job,
        expected=expected,
        price=objective.price if options.price is None else price,
        start=start,
        operations=operations,
        every=options.every,
        assumptions=() if options.operations is not None else (assumed,),
    )


def _job(question: Question, plan: Plan) -> tuple[Job, ExpectedStep | None]:
    """Training job of a plan for the forecast, and the step time expected in a real run (None if only the predicted
    one is known)."""
    priced = priced_again(plan)
    expected = expected_step(question, priced)
    seconds = priced.step_seconds if expected is None else expected.seconds
    return job_of(question, seconds, plan.layout), expected


def _date(day: str | date) -> date:
    """Parse a date. Raises ValueError."""
    try:
        return day if isinstance(day, date) else date.fromisoformat(day.strip())
    except ValueError:
        reason = f"`{printable(str(day), limit=60)}` is no date"
        raise ValueError(f"{reason}; write it like `2027-01-04`") from None


def steps_between_checkpoints(
    plan: AnyPlan, steps: int, operations: str | OperationsSpec | None = None, *, restarts: int | None = None
) -> tuple[int, str]:
    """Best number of steps between checkpoints, and the name of the operations (failure rates and storage) that were
    assumed.

    The operations are those given, else those that the plan counts, else `llama3`. A plan without a number of tokens
    trains for `steps`. `restarts` is how often the run restarts lost ranks; None: without limit.

    Raises:
        InputError: a plan that is no transformer's, operations that cannot be read, or neither spares nor restarts.
        InfeasibleError: the job never ends.
    """
    if not isinstance(plan, Plan):
        raise InputError("--every auto forecasts transformers only", hint="say how many steps")
    base = (plan.objective or Objective()).operations
    spec = operations_of(_read(Operations(operations=operations or base)))
    if spec.spares == 0 and restarts == 0:
        text = f"`{spec.name}` has no spare node, and nothing starts the run again"
        hint = "--restarts 3, or a spare; without either save by hand: --every 100"
        raise InputError(f"the first failure ends the run: {text}", hint=hint)
    question = plan.question
    goal = _to_train_on(question, question.training.tokens or steps * question.training.tokens_per_step)
    return forecast_of(_job(goal, plan)[0], spec).interval, spec.name


def _read(options: Operations) -> Operations:
    """Replace the name of a run report in the options by the operations (failures, restarts, storage) that the run
    measured."""
    name = options.operations
    if not isinstance(name, str) or not name.endswith(".json"):
        return options
    from meshwright.records.runs import read_report

    report = read_report(Path(name))
    if report.operations is None:
        hint = "run it with --checkpoint and --every"
        raise InputError(f"`{name}` tells nothing of saves and restarts", hint=hint)
    return replace(options, operations=operations_spec(report.operations, len(report.ranks), name))


def _to_train_on(question: Question, tokens: str | float | None) -> Question:
    """Question with this number of tokens to train on; None keeps the question's. Raises InputError if neither is
    given."""
    if tokens is None and question.training.tokens is None:
        missing = [Problem("--tokens", "missing: how many to train on")]
        hint = "for example --tokens 15T"
        raise InputError("nobody says for how long the job trains", problems=missing, hint=hint)
    count = read_flag("--tokens", tokens, read_tokens, _UNREAD) or question.training.tokens
    return replace(question, training=question.training.model_copy(update={"tokens": count}))


ENDS = ("p5", "expected", "p95")
"""Names of a job's ends: 5th percentile, expected end, 95th percentile."""
_DAY = 86400.0
_UNITS = (("days", _DAY), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_WORTH = 2.0
"""Fewest units in which a duration is written before a smaller unit is used."""


class Forecasted(Answer):
    """Answer of `forecast`: when a training job ends, and why."""

    question: Question
    """Question whose training job is forecast."""
    job: Job
    operations: OperationsSpec
    every: int | None
    """Fixed number of steps between checkpoints; None: the best number."""
    expected: ExpectedStep | None = None
    """Expected step time with its interval; None: the job's step time is used, without an interval."""
    price: float | None = None
    """Price of a GPU-hour in dollars."""
    start: date | None = None
    """First day of training."""
    assumptions: tuple[str, ...] = ()

    @cached_property
    def outlook(self) -> Forecast:
        """Forecast of the job with failures, restarts and checkpoints.

        Raises:
            InfeasibleError: it never ends.
            InputError: an interval that storage cannot keep up with.
        """
        return forecast_of(self.job, self.operations, self.every)

    @cached_property
    def ends(self) -> tuple[float, float, float]:
        """Seconds until the job ends: 5th percentile, expected, 95th percentile (`ENDS`)."""
        return ends_of(self.outlook, None if self.expected is None else self.expected.likely_steps)

    @cached_property
    def changes(self) -> dict[str, Forecast]:
        """Change that would end the job sooner → forecast with the change."""
        return changes_of(self.outlook, self.every)

    def plot(self) -> Drawing:
        """Draw days until the end against the checkpoint interval, and goodput against GPUs."""
        from meshwright.plots.pictures import draw_forecast

        return draw_forecast(self.question, self.outlook, self.expected)

    def chapter(self, words: str) -> Chapter:
        """Chapter of an HTML page on the end of the job; `words` complete the command that draws its picture: plan
        file and flags."""
        assumed = [f"Assumed: {one}." for one in self.assumptions]
        picture = Picture(drawing=self.plot(), command=f"meshwright plot forecast {words}")
        return Chapter(title="When it ends", blocks=[*self.text, *assumed, picture])

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each part of the job's time."""
        return [
            {"part": part, "seconds": seconds, "share": seconds / self.outlook.seconds}
            for part, seconds in self.outlook.parts.items()
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: job, ends, costs, parts of the time, checkpoints and changes."""
        outlook, expected, price = self.outlook, self.expected, self.price
        segment, job = outlook.segment, outlook.job
        return {
            "assumptions": list(self.assumptions),
            "operations": outlook.operations.model_dump(mode="json", exclude_none=True),
            "job": {
                "model": self.question.model.name,
                **fields_of(job, "gpus", "steps", "step_seconds"),
                "step_seconds_on_paper": job.step_seconds if expected is None else expected.on_paper,
                "checkpoint_bytes": job.checkpoint_bytes,
            },
            "expected": expected_record(self.question, None, expected),
            "seconds": outlook.seconds,
            "deviation_seconds": outlook.deviation,
            "ends_seconds": dict(zip(ENDS, self.ends, strict=True)),
            "dates": dict(zip(ENDS, map(str, self._dates), strict=True)) if self.start else None,
            "price": price,
            "costs": None if price is None else dict(zip(ENDS, self._costs, strict=True)),
            **fields_of(outlook, "goodput", "parts", "failures"),
            "seconds_between_failures": segment.mtbf,
            "restart_seconds": segment.restart,
            **({} if job.start is None else {"start": dict(job.start)}),
            **({} if outlook.resumes is None else {"resume": dict(outlook.resumes)}),
            "checkpoint": {
                "every_steps": outlook.interval,
                "work_seconds": segment.work,
                "waits_seconds": segment.saving,
                "flush_seconds": outlook.flush,
                "young_seconds": young(segment.saving, segment.mtbf),
                "daly_seconds": daly(segment.saving, segment.mtbf),
                "first_order_ratio": first_order_ratio(segment),
            },
            **fields_of(outlook, "gpu_hours", "kilowatt_hours"),
            "replaces_slow_hosts": outlook.evicts,
            "changes": [
                {"change": name, "seconds": after.seconds, "saved_seconds": outlook.seconds - after.seconds}
                for name, after in self.changes.items()
            ],
        }

    def view(self) -> tuple[str | Table, ...]:
        """Text: end of the job, parts of its time, checkpoints, failures, and changes that would end it sooner."""
        outlook, question, expected = self.outlook, self.question, self.expected
        step, steps = format_seconds(outlook.job.step_seconds), grouped(outlook.job.steps)
        if expected is not None:
            low, high = map(format_seconds, expected.interval)
            step += f" (90 % interval {low} to {high}; {format_seconds(expected.on_paper)} on paper)"
        tokens = format_count(question.training.tokens or 0)
        job = f"{question.model.name} on {gpus_in_words(question)}: {tokens} tokens take {steps} steps of {step}"
        end = ". ".join(f"{fact.name.capitalize()} {fact.value}" for fact in self.facts)
        end += f". Goodput {percent(outlook.goodput)}, {format_count(outlook.gpu_hours)} GPU-hours"
        if outlook.kilowatt_hours is not None:
            end += f", {outlook.kilowatt_hours / 1e6:,.2f} GWh at the GPUs' power limit"
        sooner: tuple[str | Table, ...] = ()
        if self.changes:
            columns = {
                "change": list(self.changes),
                "ends after": [_time(after.seconds) for after in self.changes.values()],
                "sooner by": [_time(outlook.seconds - after.seconds) for after in self.changes.values()],
            }
            sooner = "", "Would end it sooner:", table_of(columns, words=("change",))
        header = wrapped(f"{job}; operations {outlook.operations.name}")
        words = wrapped(self._interval()), wrapped(self._failures())
        blocks: tuple[str | Table, ...] = header, wrapped(end), self._parts(), *words
        return *spaced(*blocks), *sooner

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """Facts on the end of training and, if a GPU-hour has a price, on the cost."""
        early, middle, late = map(_time, self.ends)
        ends = f"after {middle}{_interval_words(early, late)}"
        if self.start is not None:
            first, day, last = self._dates
            ends = f"on {day}{_interval_words(str(first), str(last))} ({middle} from {self.start})"
        if self.price is None:
            return (Fact(name="ends", value=ends),)
        low, cost, high = map(money, self._costs)
        costs = f"{cost}{_interval_words(low, high)}, at {money(self.price)} a GPU-hour"
        return Fact(name="ends", value=ends), Fact(name="costs", value=costs)

    @property
    def _dates(self) -> list[date]:
        """Days on which the job ends: 5th percentile, expected, 95th percentile."""
        assert self.start is not None
        last = (date.max - self.start).days
        return [self.start + timedelta(days=min(last, int(end // _DAY))) for end in self.ends]

    @property
    def _costs(self) -> list[float]:
        """Dollars for all GPU-hours until the job ends: 5th percentile, expected, 95th percentile."""
        assert self.price is not None
        return [self.price * self.outlook.job.gpus * end / 3600 for end in self.ends]

    def _parts(self) -> Table:
        """Table with a row for each part of the job's time, and the total."""
        total = self.outlook.seconds
        unit, length = next(one for one in _UNITS if total >= _WORTH * one[1] or one[1] == 1)
        parts = {time_label(part): seconds for part, seconds in self.outlook.parts.items() if seconds > 0}
        parts["expected"] = total
        columns = {
            "where time goes": list(parts),
            unit: [f"{seconds / length:,.2f}" for seconds in parts.values()],
            "share": [percent(seconds / total) for seconds in parts.values()],
        }
        return table_of(columns, names=("where time goes",))

    def _interval(self) -> str:
        """Sentence on the checkpoint interval, and on the effect of saving ten times less often."""
        outlook, segment = self.outlook, self.outlook.segment
        wait = f"GPUs wait {format_seconds(segment.saving)}" if segment.saving else "GPUs do not wait"
        readable = f", readable {format_seconds(segment.lag)} later" if segment.lag else ""
        words = f"Save every {grouped(outlook.interval)} steps ({_time(segment.work)}): {wait}{readable}"
        longer = replace(outlook, interval=min(10 * outlook.interval, outlook.job.steps))
        if longer.interval > outlook.interval:
            later = longer.seconds - outlook.seconds
            words += f"; ten times less often ends it {f'{_time(later)} later' if later >= 1 else 'no later'}"
        return words

    def _failures(self) -> str:
        """Sentence on expected failures, what each costs, spare nodes and slow hosts."""
        outlook, segment = self.outlook, self.outlook.segment
        lost = _time(segment.lost * outlook.segments / max(outlook.failures, 1e-9))
        words = f"{outlook.failures:,.0f} failures are expected, one every {_time(segment.mtbf)}; each costs"
        words += f" {_time(segment.restart)} to restart and {lost} of work done again"
        if outlook.waiting.chance:
            words += f"; {percent(outlook.waiting.chance)} find no spare node and wait {_time(outlook.waiting.seconds)}"
        if outlook.resumes is not None:
            parts = [f"{part_label(part)} {format_seconds(s)}" for part, s in outlook.resumes.items() if s]
            words += f"; of the restart, the trainer's start takes {_time(outlook.resumes.total)} ({', '.join(parts)})"
        if outlook.operations.slow_hosts:
            words += "; slow hosts are " + ("replaced as they are found" if outlook.evicts else "kept")
        return words


def _time(seconds: float) -> str:
    """Duration as text: "12.3 s", "18.6 min", "3.1 h", "2 days"."""
    if seconds < 120:
        return format_seconds(seconds)
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * _DAY else format_days(seconds)


def _interval_words(low: str, high: str) -> str:
    """Words on an interval: ", 90 % interval 2027-06-07 to 2027-06-29"; empty if both ends read the same."""
    return "" if low == high else f", 90 % interval {low} to {high}"
