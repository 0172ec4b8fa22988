"""Forecasts: the day on which a training job ends, with failures, restarts and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from cost_models.errors import InputError, Problem
from cost_models.files.amounts import read_tokens
from cost_models.question import Question
from cost_models.reliability.forecast import Job, job_of
from cost_models.reliability.forecast import forecast as forecast_of
from cost_models.specs.operations import OperationsSpec
from meshwright.answers.forecasted import Forecasted
from meshwright.inputs.operations import USUAL, OperationsInputs, operations_of
from meshwright.inputs.plans import HasPlan, plan_of
from meshwright.inputs.problems import Problems
from meshwright.records.operations import operations_spec
from meshwright.records.run_reports import read_report
from planner.any_plan import AnyPlan
from planner.plan import Plan
from planner.repricing import priced_again


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastQuestion:
    """A job and its operations that were read: what is left is to forecast."""

    question: Question
    job: Job
    operations: OperationsSpec
    every: int | None
    assumptions: tuple[str, ...] = ()

    def answer(self) -> Forecasted:
        """Forecast the end of the job.

        Raises:
            InfeasibleError: it never ends.
            InputError: an interval that storage cannot keep up with.
        """
        found = forecast_of(self.job, self.operations, self.every)
        return Forecasted(question=self.question, found=found, assumptions=self.assumptions)


def forecast(
    plan: Plan | HasPlan | str | Path,
    tokens: str | float | None = None,
    *,
    operations: str | OperationsSpec | None = None,
    mtbf: str | None = None,
    restart: str | None = None,
    storage: str | None = None,
    spares: int | None = None,
    every: int | None = None,
) -> Forecasted:
    """Forecast when training a plan on so many tokens ends.

    Args:
        plan: a plan, an answer that can be written as one, or a plan file.
        tokens: to train on, e.g. "15T"; None: those of the plan's question.
        operations: failures, restarts and storage: a catalogue name, a file, a spec, or the report of a run that
            saved; None: `llama3`.
        mtbf: GPU-hours between failures in their place, e.g. "50000 h".
        restart: from the detection of a failure until the first step.
        storage: bandwidth at which checkpoints are written and read.
        spares: nodes that stand by.
        every: steps from one checkpoint to the next; None: as is best.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
        InfeasibleError: the job never ends.
    """
    inputs = OperationsInputs(
        operations=operations, mtbf=mtbf, restart=restart, storage=storage, spares=spares
    )
    return ask(plan_of(plan), tokens, inputs, every).answer()


def ask(
    plan: Plan, tokens: str | float | None, inputs: OperationsInputs, every: int | None = None
) -> ForecastQuestion:
    """Read everything that `forecast` is given.

    Raises:
        InputError: something is missing or wrong; everything that is, at once.
    """
    problems = Problems()
    question = problems.read(lambda: _to_train_on(plan.question, tokens))
    operations = problems.read(lambda: operations_of(_read(inputs)))
    problems.require()
    assert question is not None
    assert operations is not None
    assumed = f"operations `{USUAL}`, as nothing is said of yours (--operations)"
    return ForecastQuestion(
        question=question,
        job=job_of(question, priced_again(plan).step_seconds),
        operations=operations,
        every=every,
        assumptions=() if inputs.operations is not None else (assumed,),
    )


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
    counted = None if plan.objective is None else plan.objective.operations
    known = operations_of(_read(OperationsInputs(operations=operations or counted)))
    if known.spares == 0 and restarts == 0:
        raise InputError(
            f"the first failure ends the run: `{known.name}` has no spare node, and nothing starts the run again",
            hint="--restarts 3, or a spare; without either save by hand: --every 100",
        )
    question = plan.question
    asked = _to_train_on(question, question.training.tokens or steps * question.training.tokens_per_step)
    return forecast_of(job_of(asked, priced_again(plan).step_seconds), known).every, known.name


def _read(inputs: OperationsInputs) -> OperationsInputs:
    """The inputs, with what a run's report measured in the place of its name."""
    name = inputs.operations
    if not isinstance(name, str) or not name.endswith(".json"):
        return inputs
    report = read_report(Path(name))
    if report.operations is None:
        raise InputError(
            f"`{name}` tells nothing of saves and restarts", hint="run it with --checkpoint and --every"
        )
    return replace(inputs, operations=operations_spec(report.operations, len(report.ranks), name))


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
