"""Objectives of a plan (step time, MFU, GPU-hours, money, peak memory, or the fewest GPUs that meet a
deadline), and the certificate of its optimality, or of the gap that its proof reached.

On a fixed number of GPUs GPU-hours and money are the step time times a constant, so they have the same
optimum. MFU does not quite: its numerator counts the output layer over the vocabulary as padded for tensor
parallelism, so it is the step time times a constant only among layouts with the same padding.

A training run takes ⌈tokens / tokens per step⌉ steps, one after another; with operations, failures, restarts
and checkpoints are counted too (`cost_models.reliability`). That time grows with the step's, so a bound on
the step time gives a bound on it. Search and proof leave out a layout's start-up, seconds against days; the
value of the chosen plan includes it, as in `forecast`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import Field

from cost_models.axes.layout import Layout
from cost_models.base import Spec
from cost_models.errors import InputError, Problem
from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.reliability.forecast import forecast
from cost_models.reliability.job import job_of
from cost_models.risk import Risk
from cost_models.specs.cluster import OperationsSpec

Proof = Literal["search", "ilp"]
PROOFS: tuple[Proof, ...] = get_args(Proof)
"""Provers of an answer: the search, or one integer program over all layouts."""
Effort = Literal[Proof, "bounds", "any"]
"""Extent of a search: to a proof; to one without the closing integer program, as curves of many searches have it; or
to the first plan that fits."""


class Settled(Spec):
    """Optimum of the integer program over the layouts whose bounds are below the best step time, which closes
    a proof."""

    solver: str
    layouts: int
    """Number of layouts in the program."""
    columns: int
    """Number of binary variables that place blocks on stages."""
    objective: float
    """Optimum in seconds: the best step time."""


class Certificate(Spec):
    """Proof that no other layout covered by the search is better, with counts of layouts and the proven bound.

    Its derivation (k, the reason for excluding each layout, the prover) is not part of a plan file: it
    depends on the search's state, so nobody could check it.
    """

    top: int = Field(default=1, ge=1)
    """Number of best layouts that were searched for, k."""

    space: str
    """The covered space, in words."""
    layouts: int
    """Legal layouts enumerated."""
    infeasible: int = 0
    """Layouts discarded because no placement fits in memory."""
    pruned: int = 0
    """Layouts discarded because their lower bound cannot beat the k-th best."""
    solved: int = 0
    """Layouts decided exactly: by the ILP, or by a placement that meets its lower bound."""
    undecided: int = 0
    """Layouts left open when the search was stopped; 0 if it ended."""
    bound: float
    """Proven lower bound on the step time of any covered layout, seconds."""
    gap: float
    """(best − bound) / best; 0 proves that the plan is optimal."""
    minimised: Risk = "none"
    """Quantity that was minimised: the step on paper, or what this risk weighs of it over `scenarios`."""
    scenarios: int = 0
    """Number of scenarios in the minimised mean; 0: none."""
    settled: Settled | None = None
    """Optimum of the closing integer program; None if the search was stopped before."""
    proved_by: Proof = Field(default="search", exclude_if=lambda prover: prover == "search")
    """Prover; saved only if it is not the search."""
    seconds: float = 0.0
    """Search time."""


ObjectiveName = Literal["time", "mfu", "gpu-hours", "cost", "memory", "gpus"]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
Unit = Literal["seconds", "share", "GPU-hours", "money", "bytes", "GPUs"]

_HOUR = 3600.0
DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Goal of a search (such as time or cost), with the price and the deadline that the goal needs."""

    name: ObjectiveName = "time"
    price: float | None = None
    """Dollars for one GPU-hour."""
    deadline: float | None = None
    """Seconds in which training on all tokens must end; slower plans are excluded."""
    operations: OperationsSpec | None = None
    """Failures and restarts that training time counts; None: none."""

    @property
    def measure(self) -> Measure:
        """Measure by which this objective compares plans."""
        return MEASURES[self.name]

    def value(self, question: Question, estimate: Estimate) -> float:
        """Value of a plan under the objective, in the unit of the measure."""
        return self.measure.of(question, estimate, self)

    def loss(self, question: Question, estimate: Estimate) -> float:
        """Value of a plan under the objective, negated if higher is better, so that the least is best."""
        return self.measure.loss(self.value(question, estimate))

    def meets_deadline(self, question: Question, step_seconds: float) -> bool:
        """Whether training with steps of `step_seconds` meets the deadline, if any; True for an empty bound of
        0."""
        if self.deadline is None or step_seconds <= 0:
            return True
        return self.training_seconds(question, step_seconds) <= self.deadline

    def training_seconds(
        self, question: Question, step_seconds: float, layout: Layout | None = None
    ) -> float:
        """Seconds of training on all tokens; with operations also failures and, given a `layout`, its
        start-ups.

        Raises InfeasibleError if failures leave no time for training.
        """
        if self.operations is None:
            return training_steps(question) * step_seconds
        return forecast(job_of(question, step_seconds, layout), self.operations).seconds

    def gpu_hours(self, question: Question, step_seconds: float) -> float:
        """GPU-hours that training on all tokens takes. Raises InfeasibleError if failures leave no time for
        training."""
        return self.training_seconds(question, step_seconds) * question.cluster.num_gpus / _HOUR

    def require_complete(self, question: Question, *, alone: bool = True) -> None:
        """Raise InputError unless tokens, price and deadline that the objective needs are given; as one of two
        of a frontier (`alone=False`) it needs no deadline.

        Raises:
            InputError: tokens, a price or a deadline is missing, or a given one has no effect.
        """
        name, price, no_tokens = self.name, self.price, question.training.tokens is None
        uses_of_tokens = {
            "to meet a deadline with": self.deadline is not None,
            f"`{name}` is that of a whole training run": name in ("gpu-hours", "cost"),
            "failures lengthen a whole training run": self.operations is not None,
        }
        use = next((words for words, is_use in uses_of_tokens.items() if is_use), "")
        no_deadline = alone and name == "gpus" and self.deadline is None
        rules = (
            ("--tokens", no_tokens and bool(use), f"missing: {use}"),
            ("--price", name == "cost" and price is None, "missing: what a GPU costs an hour"),
            ("--deadline", no_deadline, "missing: the fewest GPUs for what?"),
            ("--price", price is not None and name != "cost", f"means nothing to `--objective {name}`"),
        )
        problems = [Problem(flag, words) for flag, broken, words in rules if broken]
        if problems:
            raise InputError(
                f"`--objective {name}` cannot be answered",
                problems=problems,
                hint="for example --objective cost --tokens 1.4T --price 2.50, or --objective gpus --deadline 30d",
            )


@dataclass(frozen=True, slots=True)
class Measure:
    """Quantity by which plans are compared under one objective."""

    label: str
    unit: Unit
    of: Callable[[Question, Estimate, Objective], float]
    highest: bool = False
    """Whether a higher value is better."""

    def loss(self, value: float) -> float:
        """The value, negated if higher is better, so that the least is best."""
        return -value if self.highest else value

    def best(self, values: Iterable[float]) -> float:
        """Best of the values, the highest or the lowest."""
        return max(values) if self.highest else min(values)

    @property
    def open(self) -> float:
        """Bound that holds before anything is proved, infinity or 0."""
        return math.inf if self.highest else 0.0

    def gap(self, value: float, bound: float) -> float:
        """Largest relative gain over `value` that `bound` leaves possible; 0 proves that none is."""
        if self.highest:
            return max(0.0, bound / value - 1) if math.isfinite(bound) else 1.0
        return max(0.0, 1 - bound / value)


def training_steps(question: Question) -> int:
    """Number of optimizer steps to train on all tokens."""
    assert question.training.tokens is not None
    return math.ceil(question.training.tokens / question.training.tokens_per_step)


MEASURES: dict[ObjectiveName, Measure] = {
    "time": Measure("step", "seconds", lambda q, e, o: e.compared_seconds),
    "mfu": Measure("MFU", "share", lambda q, e, o: e.mfu, highest=True),
    "gpu-hours": Measure("GPU-hours", "GPU-hours", lambda q, e, o: o.gpu_hours(q, e.step_seconds)),
    "cost": Measure("cost", "money", lambda q, e, o: o.gpu_hours(q, e.step_seconds) * (o.price or 0.0)),
    "memory": Measure("peak mem", "bytes", lambda q, e, o: e.peak_bytes),
    "gpus": Measure("GPUs", "GPUs", lambda q, e, o: float(q.cluster.num_gpus)),
}
