"""Forecasts: the day on which a training job ends, with failures, restarts and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.expected import ExpectedStep, expected_step
from cost_models.files.loading import read_price, read_tokens
from cost_models.question import Question
from cost_models.reliability.forecast import forecast as forecast_of
from cost_models.reliability.job import Job, job_of
from cost_models.specs.cluster import OperationsSpec
from meshwright.inputs.operations import USUAL, operations_of
from meshwright.inputs.options import Operations
from meshwright.inputs.plans import plan_of
from meshwright.inputs.problems import Problems
from meshwright.records.runs import read_report
from meshwright.verbs.contract.any_run import operations_spec
from meshwright.verbs.forecast import ForecastOptions
from meshwright.verbs.forecast.forecasted import Forecasted
from planner.objectives import Objective
from planner.plan import AnyPlan, Plan, priced_again

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastQuestion:
    """A job and its operations that were read: what is left is to forecast."""

    question: Question
    job: Job
    operations: OperationsSpec
    every: int | None
    expected: ExpectedStep | None = None
    price: float | None = None
    """Of a GPU-hour."""
    start: date | None = None
    assumptions: tuple[str, ...] = ()

    def answer(self) -> Forecasted:
        """Forecast the end of the job.

        Raises:
            InfeasibleError: it never ends.
            InputError: an interval that storage cannot keep up with.
        """
        found = forecast_of(self.job, self.operations, self.every)
        return Forecasted(
            question=self.question,
            found=found,
            every=self.every,
            expected=self.expected,
            price=self.price,
            start=self.start,
            assumptions=self.assumptions,
        )


def ask(options: ForecastOptions) -> ForecastQuestion:
    """Read everything that `forecast` is given; operations and price are the plan's where they are not said.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    plan = plan_of(options.plan)
    asked, problems = plan.objective or Objective(), Problems()
    if options.operations is None and asked.operations is not None:
        options = replace(options, operations=asked.operations)
    question = problems.read(lambda: _to_train_on(plan.question, options.tokens))
    operations = problems.read(lambda: operations_of(_read(options)))
    price = problems.read(lambda: _said("--price", options.price, read_price))
    price = asked.price if options.price is None else price
    start = problems.read(lambda: _said("--start", options.start, _date))
    problems.require()
    assert question is not None
    assert operations is not None
    assumed = f"operations `{USUAL}`, as nothing is said of yours (--operations)"
    job, expected = _job(question, plan)
    return ForecastQuestion(
        question=question,
        job=job,
        expected=expected,
        price=price,
        start=start,
        operations=operations,
        every=options.every,
        assumptions=() if options.operations is not None else (assumed,),
    )


def _job(question: Question, plan: Plan) -> tuple[Job, ExpectedStep | None]:
    """The job of a plan, at the step that is expected of it."""
    priced = priced_again(plan)
    expected = expected_step(question, priced)
    seconds = priced.step_seconds if expected is None else expected.seconds
    return job_of(question, seconds, plan.layout), expected


def _said(flag: str, said: Any, read: Callable[[Any], T]) -> T | None:
    """What a flag says, None where it says nothing. Raises InputError with its name."""
    try:
        return None if said is None else read(said)
    except ValueError as error:
        raise InputError("the job cannot be read", problems=[Problem(flag, str(error))]) from None


def _date(said: str | date) -> date:
    try:
        return said if isinstance(said, date) else date.fromisoformat(said.strip())
    except ValueError:
        raise ValueError(
            f"`{printable(str(said), limit=60)}` is no date; write it like `2027-01-04`"
        ) from None


def steps_between_checkpoints(
    plan: AnyPlan, steps: int, operations: str | OperationsSpec | None = None, *, restarts: int | None = None
) -> tuple[int, str]:
    """The best number of steps from one checkpoint to the next, and the operations that it is best for.

    They are those given, else those that the plan counts, else `llama3`. A plan that says nothing of tokens trains for
    `steps`. `restarts`: how often the run starts lost ranks again; None: as often as it takes.

    Raises:
        InputError: a plan that is no transformer's, operations that cannot be read, or neither spares nor restarts.
        InfeasibleError: the job never ends.
    """
    if not isinstance(plan, Plan):
        raise InputError("--every auto forecasts transformers only", hint="say how many steps")
    counted = (plan.objective or Objective()).operations
    known = operations_of(_read(Operations(operations=operations or counted)))
    if known.spares == 0 and restarts == 0:
        raise InputError(
            f"the first failure ends the run: `{known.name}` has no spare node, and nothing starts the run again",
            hint="--restarts 3, or a spare; without either save by hand: --every 100",
        )
    question = plan.question
    asked = _to_train_on(question, question.training.tokens or steps * question.training.tokens_per_step)
    return forecast_of(_job(asked, plan)[0], known).interval, known.name


def _read(options: Operations) -> Operations:
    """The inputs, with what a run's report measured in the place of its name."""
    name = options.operations
    if not isinstance(name, str) or not name.endswith(".json"):
        return options
    report = read_report(Path(name))
    if report.operations is None:
        raise InputError(
            f"`{name}` tells nothing of saves and restarts", hint="run it with --checkpoint and --every"
        )
    return replace(options, operations=operations_spec(report.operations, len(report.ranks), name))


def _to_train_on(question: Question, tokens: str | float | None) -> Question:
    """The question with so many tokens to train on."""
    if tokens is None and question.training.tokens is None:
        raise InputError(
            "nobody says for how long the job trains",
            problems=[Problem("--tokens", "missing: how many to train on")],
            hint="for example --tokens 15T",
        )
    if tokens is None:
        return question
    try:
        count = read_tokens(tokens)
    except ValueError as error:
        raise InputError("the job cannot be read", problems=[Problem("--tokens", str(error))]) from None

    return replace(question, training=question.training.model_copy(update={"tokens": count}))
