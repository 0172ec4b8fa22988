"""Objectives of a plan (step time, MFU, GPU-hours, cost, peak memory, fewest GPUs that meet a deadline), and
the certificate, which proves that a plan is optimal or states the gap that the proof reached.

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
from cost_models.reliability import forecast, job_of
from cost_models.risk import Risk
from cost_models.specs.cluster import OperationsSpec

Proof = Literal["search", "ilp"]
PROOFS: tuple[Proof, ...] = get_args(Proof)
"""Names of the methods that prove optimality: `search` (branch and bound), or `ilp`, one integer program over
all layouts."""
Effort = Literal[Proof, "bounds", "any"]
"""Effort of a search, which says how far it goes. `search`, `ilp`: to a proof; `bounds`: to one without the
closing integer program, as in curves of many searches; `any`: to the first plan that fits."""


class ClosingProgram(Spec):
    """Result of the integer program that closes a proof, by deciding together all layouts whose lower bound
    is below the best step time."""

    solver: str
    layouts: int
    """Number of layouts in the integer program."""
    columns: int
    """Number of binary variables in the integer program, each for a number of blocks on a stage."""
    objective: float
    """Optimal step time, seconds."""


class Certificate(Spec):
    """Proof that no other layout covered by the search is better: the proven lower bound, and counts of
    layouts.

    Its derivation (k, the reason for excluding each layout, the prover) is not part of a plan file: it
    depends on the search's state, so nobody could check it.
    """

    top: int = Field(default=1, ge=1)
    """Number k of best layouts that were searched for."""

    space: str
    """Description of the set of layouts that the search covered."""
    layouts: int
    """Number of legal layouts that were enumerated."""
    infeasible: int = 0
    """Number of layouts discarded because no placement of blocks fits in memory."""
    pruned: int = 0
    """Number of layouts discarded because their lower bound cannot beat the k-th best step."""
    solved: int = 0
    """Number of layouts solved exactly: by the integer program, or by a placement that meets its lower
    bound."""
    undecided: int = 0
    """Number of layouts left open when the search was stopped; 0 if it ended."""
    bound: float
    """Proven lower bound on the step time of every covered layout, seconds."""
    gap: float
    """Relative gap (best − bound) / best of the step time; 0 proves that the plan is optimal."""
    minimised: Risk = "none"
    """Risk under which step times were minimised over `scenarios`; "none": the predicted step was
    minimised."""
    scenarios: int = 0
    """Number of scenarios (plausible sets of constants) in the minimised mean; 0: none."""
    settled: ClosingProgram | None = None
    """Result of the integer program that closed the proof; None if the search needed none, or was stopped
    before."""
    proved_by: Proof = Field(default="search", exclude_if=lambda prover: prover == "search")
    """Method that proved the answer; saved only if it is not the search."""
    seconds: float = 0.0
    """Duration of the search, seconds."""


ObjectiveName = Literal["time", "mfu", "gpu-hours", "cost", "memory", "gpus"]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
Unit = Literal["seconds", "share", "GPU-hours", "money", "bytes", "GPUs"]

_HOUR = 3600.0
DAY = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Quantity that a search optimises (such as step time or cost), with the price and deadline that it
    needs."""

    name: ObjectiveName = "time"
    price: float | None = None
    """Dollars per GPU-hour; None if no price is given."""
    deadline: float | None = None
    """Seconds within which training on all tokens must end, so that slower plans are excluded; None: no
    deadline."""
    operations: OperationsSpec | None = None
    """Failures and restarts that lengthen training; None: they are not counted."""

    @property
    def measure(self) -> Measure:
        """Measure (label, unit, and function of a plan) by which this objective compares plans."""
        return MEASURES[self.name]

    @property
    def ranks_by_step(self) -> bool:
        """Whether the layouts of one cluster rank by the objective as they do by step time."""
        return self.deadline is None and self.name in ("time", "gpu-hours", "cost")

    def value(self, question: Question, estimate: Estimate) -> float:
        """Value of a plan under the objective, in the unit of the measure."""
        return self.measure.of(question, estimate, self)

    def loss(self, question: Question, estimate: Estimate) -> float:
        """Value of a plan under the objective, negated if higher is better, so that lower is always better."""
        return self.measure.loss(self.value(question, estimate))

    def meets_deadline(self, question: Question, step_seconds: float) -> bool:
        """Whether training with steps of `step_seconds` ends before the deadline; True without a deadline,
        and for `step_seconds` of 0 (no bound yet)."""
        if self.deadline is None or step_seconds <= 0:
            return True
        return self.training_seconds(question, step_seconds) <= self.deadline

    def training_seconds(
        self, question: Question, step_seconds: float, layout: Layout | None = None
    ) -> float:
        """Seconds of training on all tokens. With `operations` failures count too and, given a `layout`, its
        start-up times.

        Raises InfeasibleError if failures leave no time for training.
        """
        if self.operations is None:
            return training_steps(question) * step_seconds
        return forecast(job_of(question, step_seconds, layout), self.operations).seconds

    def gpu_hours(self, question: Question, step_seconds: float) -> float:
        """GPU-hours of training on all tokens with steps of `step_seconds`. Raises InfeasibleError if
        failures leave no time for training."""
        return self.training_seconds(question, step_seconds) * question.cluster.num_gpus / _HOUR

    def require_complete(self, question: Question, *, single: bool = True) -> None:
        """Raise InputError unless the tokens, price and deadline that the objective needs are given. As one
        of two objectives of a frontier (`single=False`) it needs no deadline.

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
        no_deadline = single and name == "gpus" and self.deadline is None
        rules = (
            ("--tokens", no_tokens and bool(use), f"missing: {use}"),
            ("--price", name == "cost" and price is None, "missing: what a GPU costs an hour"),
            ("--deadline", no_deadline, "missing: the fewest GPUs for what?"),
            ("--price", price is not None and name != "cost", f"means nothing to `--objective {name}`"),
        )
        if problems := [Problem(flag, words) for flag, broken, words in rules if broken]:
            hint = (
                "for example --objective cost --tokens 1.4T --price 2.50, or --objective gpus --deadline 30d"
            )
            raise InputError(f"`--objective {name}` cannot be answered", problems=problems, hint=hint)


@dataclass(frozen=True, slots=True)
class Measure:
    """Quantity by which an objective compares plans: label, unit, and the function that computes it."""

    label: str
    unit: Unit
    of: Callable[[Question, Estimate, Objective], float]
    highest: bool = False
    """Whether a higher value is better; else a lower one."""

    def loss(self, value: float) -> float:
        """Convert a value of the measure to a loss, negated if higher is better, so that lower is always
        better."""
        return -value if self.highest else value

    def best(self, values: Iterable[float]) -> float:
        """Best of several values: the highest if higher is better, else the lowest."""
        return max(values) if self.highest else min(values)

    @property
    def open(self) -> float:
        """Bound on the measure before anything is proved: infinity if higher is better, else 0."""
        return math.inf if self.highest else 0.0

    def gap(self, value: float, bound: float) -> float:
        """Largest relative improvement over `value` that `bound` leaves possible; 0 proves that `value` is
        optimal."""
        if self.highest:
            return max(0.0, bound / value - 1) if math.isfinite(bound) else 1.0
        return max(0.0, 1 - bound / value)


def training_steps(question: Question) -> int:
    """Number of optimizer steps for training on all tokens of the question."""
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
