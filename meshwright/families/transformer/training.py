"""Duration and cost of a plan's training run, on paper and with the step time expected in a real run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.estimate import Estimate
from cost_models.expected import ExpectedStep
from cost_models.question import Question
from cost_models.reliability import ends_of, forecast, job_of
from cost_models.units import counted, format_count, format_days, grouped
from meshwright.render.goals import value_text
from meshwright.render.words import money, percent
from meshwright.verbs.forecast.forecasted import ENDS
from planner.objectives import Objective, training_steps

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """Training on all tokens with one layout: duration in seconds, and cost."""

    question: Question
    objective: Objective
    layout: Layout
    step_seconds: float
    """Step time on paper."""
    ends: tuple[float, ...]
    """Early, expected and late end of the job in seconds (see `ENDS`), with failures if the objective counts them;
    empty without an expected step."""

    @property
    def on_paper(self) -> float:
        """Seconds of the training job at the predicted step time. If the objective counts failures, start-up time and
        failures are included. Search and proof compare these seconds."""
        return self.objective.training_seconds(self.question, self.step_seconds, self.layout)

    def cost(self, seconds: float) -> float:
        """Cost in dollars of all GPUs for `seconds`."""
        assert self.objective.price is not None
        return self.objective.price * self.question.cluster.num_gpus * seconds / _HOUR

    @property
    def words(self) -> str:
        """Words on duration and cost: "300 B tokens in 95,368 steps: 20.7 days on 1,024 GPUs, 508.0 k GPU-hours,
        $1.27 M at $2.50 each on paper; expected 21.5 days and $1.32 M (90 % interval $1.23 M to $1.47 M), without
        failures"."""
        question, price, operations = self.question, self.objective.price, self.objective.operations
        steps, gpus = training_steps(question), question.cluster.num_gpus
        words = (
            f"{format_count(question.training.tokens or 0)} tokens in {grouped(steps)} steps:"
            f" {format_days(self.on_paper)} on {counted(gpus, 'GPU')},"
            f" {value_text(gpus * self.on_paper / _HOUR, 'GPU-hours')} GPU-hours"
        )
        if price is not None:
            words += f", {money(self.cost(self.on_paper))} at {money(price)} each"
        if self.ends:
            low, _, high = (format_days(end) if price is None else money(self.cost(end)) for end in self.ends)
            words += f"{self.expected_words} (90 % interval {low} to {high})"
        if operations is None:
            return f"{words}, without failures"
        goodput = steps * self.step_seconds / self.on_paper
        return f"{words}, with the failures of {operations.name} (goodput {percent(goodput)})"

    @property
    def expected_words(self) -> str:
        """Words that follow a duration on paper: " on paper; expected 21.5 days and $1.32 M"; empty without an
        expected step."""
        if not self.ends:
            return ""
        middle = self.ends[1]
        cost = "" if self.objective.price is None else f" and {money(self.cost(middle))}"
        return f" on paper; expected {format_days(middle)}{cost}"

    def record(self) -> dict[str, Any]:
        """JSON object: steps, seconds, dollars; `ends_seconds` and `costs` as in `forecast`."""
        priced = self.objective.price is not None
        costs = [self.cost(end) for end in self.ends] if priced else []
        return {
            "steps": training_steps(self.question),
            "seconds_on_paper": self.on_paper,
            "cost_on_paper": self.cost(self.on_paper) if priced else None,
            "operations": None if self.objective.operations is None else self.objective.operations.name,
            "ends_seconds": dict(zip(ENDS, self.ends, strict=False)) or None,
            "costs": dict(zip(ENDS, costs, strict=False)) or None,
        }


def training_run(
    question: Question, objective: Objective, picked: Estimate, expected: ExpectedStep | None
) -> TrainingRun | None:
    """Training run of a layout; None if the question has no number of tokens. Its ends follow from the expected step,
    and from failures if the objective counts them; they are empty if failures leave no time for training."""
    if question.training.tokens is None:
        return None
    ends: tuple[float, ...] = ()
    if expected is not None and objective.operations is None:
        steps = training_steps(question)
        ends = steps * expected.low, steps * expected.seconds, steps * expected.high
    elif expected is not None and objective.operations is not None:
        with suppress(InfeasibleError):
            outlook = forecast(job_of(question, expected.seconds, picked.layout), objective.operations)
            ends = ends_of(outlook, expected.likely_steps)
    layout, seconds = picked.layout, picked.step_seconds
    return TrainingRun(question=question, objective=objective, layout=layout, step_seconds=seconds, ends=ends)
