"""The best plan over several clusters: each is searched on each of its numbers of GPUs, and the answers are ranked.

The best answer is proven where every search is: it is the best of proven optima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cost_models.errors import InfeasibleError, Problem, RunError
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from cost_models.units import counted, format_count, format_days
from planner.answers.optimising import optimise
from planner.answers.optimum import PROVEN, Optimum
from planner.objectives import DAY, Measure, Objective
from planner.plan import Plan, PlanOffer
from planner.search.budget import Budget
from planner.space.restrictions import Restrictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One cluster that the user may choose."""

    question: Question
    """The question on whole nodes of the cluster."""
    sizes: tuple[int, ...]
    """Numbers of the cluster's GPUs to choose from."""
    price: float | None = None
    """Dollars for one GPU-hour."""

    @property
    def name(self) -> str:
        """Name of the cluster."""
        return self.question.cluster.name

    @property
    def written(self) -> PlanOffer:
        """The offer as a plan file holds it."""
        question = self.question
        return PlanOffer(
            cluster=question.cluster, hardware=question.hardware, gpus=self.sizes, price=self.price
        )


def offers_of(plan: Plan) -> tuple[Offer, ...]:
    """The clusters that a plan was chosen from; empty where there was no choice."""
    written, asked = plan.objective.offers if plan.objective is not None else (), plan.question
    return tuple(
        Offer(
            question=replace(asked, cluster=one.cluster, hardware=one.hardware),
            sizes=one.gpus,
            price=one.price,
        )
        for one in written
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAnswer:
    """The best plans of one cluster on one number of GPUs."""

    offer: Offer
    optimum: Optimum

    @property
    def days(self) -> float | None:
        """Days of the whole training run; None where the number of its tokens is unknown."""
        question = self.optimum.question
        if question.training.tokens is None:
            return None
        return self.optimum.objective.training_seconds(question, self.optimum.result.best.step_seconds) / DAY

    @property
    def cost(self) -> float | None:
        """Dollars for the whole training run; None where the number of its tokens or the price is unknown."""
        question = self.optimum.question
        if question.training.tokens is None or self.offer.price is None:
            return None
        return (
            self.optimum.objective.gpu_hours(question, self.optimum.result.best.step_seconds)
            * self.offer.price
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A cluster and a number of GPUs without an answer, and why."""

    cluster: str
    gpus: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The best plans of all clusters and numbers of GPUs, best first, and how far that is proven."""

    objective: Objective
    """What plans are ranked by; without a price, since each cluster has its own."""
    offers: tuple[Offer, ...]
    answers: tuple[OfferAnswer, ...]
    left_out: tuple[LeftOut, ...]
    unanswered: int
    """Searches that ended before they had an answer; the others of `left_out` are proven to have none."""
    seconds: float

    @property
    def best(self) -> OfferAnswer:
        """The best answer of all clusters."""
        return self.answers[0]

    @property
    def measure(self) -> Measure:
        """How plans are compared."""
        return self.objective.measure

    @property
    def bound(self) -> float:
        """No covered plan on any of the clusters has a better value than this."""
        if self.unanswered:
            return self.measure.open
        return self.measure.loss(min(self.measure.loss(one.optimum.bound) for one in self.answers))

    @property
    def gap(self) -> float:
        """Share of the best value that could still be gained; 0 is proof."""
        return self.measure.gap(self.best.optimum.value, self.bound)

    def places(self, answer: OfferAnswer) -> tuple[int, int]:
        """The first and the last place that an answer may have, wherever between its bound and its value each optimum
        lies: the same where these intervals are apart."""
        place = self.answers.index(answer)
        ahead = [self._surely_ahead(one, answer) for one in self.answers[:place]]
        behind = [self._surely_ahead(answer, one) for one in self.answers[place + 1 :]]
        return 1 + sum(ahead), len(self.answers) - sum(behind)

    def _surely_ahead(self, one: OfferAnswer, other: OfferAnswer) -> bool:
        """Whether no plan of another answer's search has a better value than one that was found."""
        value, bound = one.optimum.value, other.optimum.bound
        return other.optimum.gap <= PROVEN or self.measure.loss(value) <= self.measure.loss(bound)

    @property
    def frontier(self) -> tuple[OfferAnswer, ...]:
        """Answers that no other beats in both days and cost, the soonest first; empty where either is unknown."""
        known = [(one.days, one.cost, one) for one in self.answers]
        pairs = sorted(
            (d, c, place) for place, (d, c, _) in enumerate(known) if d is not None and c is not None
        )
        kept, least = [], math.inf
        for _, cost, place in pairs:
            if cost < least:
                kept.append(self.answers[place])
                least = cost
        return tuple(kept)


def rank_offers(
    offers: Sequence[Offer],
    objective: Objective,
    *,
    precisions: Sequence[Precision] = (),
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> Ranking:
    """The best plans of each cluster on each of its numbers of GPUs, ranked by the objective.

    What is left of the budget's time is shared evenly among the searches to come.

    Raises:
        InputError: the objective lacks what it needs.
        InfeasibleError: nothing fits anywhere, or nothing meets the deadline.
        RunError: time ran out before there was any answer.
    """
    spending = budget or Budget()
    found = _Found(objective, tuple(precisions), restrictions or Restrictions(), spending)
    pairs = [(offer, size) for offer in offers for size in offer.sizes]
    for number, (offer, size) in enumerate(pairs):
        spending.tell(f"{offer.name}, {counted(size, 'GPU')} ({number + 1} of {len(pairs)})")
        found.ask(offer, size, len(pairs) - number)
    if not found.answers:
        raise found.nothing(offers[0].question)
    measure = objective.measure

    def order(answer: OfferAnswer) -> tuple[float, float, float]:
        step = answer.optimum.result.best.step_seconds
        return (
            measure.loss(answer.optimum.value),
            answer.cost or answer.optimum.question.cluster.num_gpus,
            step,
        )

    return Ranking(
        objective=objective,
        offers=tuple(offers),
        answers=tuple(sorted(found.answers, key=order)),
        left_out=tuple(found.left_out),
        unanswered=found.unanswered,
        seconds=spending.seconds_spent,
    )


@dataclass(slots=True)
class _Found:
    """The answers found so far."""

    objective: Objective
    precisions: tuple[Precision, ...]
    limits: Restrictions
    budget: Budget
    answers: list[OfferAnswer] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    unanswered: int = 0

    def ask(self, offer: Offer, size: int, searches_left: int) -> None:
        """Search one cluster on one number of GPUs, and keep the answer or why there is none."""
        if self.objective.name == "gpus" and any(one.offer is offer for one in self.answers):
            return  # fewer do
        if self.budget.interrupted or self.budget.seconds_left <= 0:
            self._leave_open(offer, size)
            return
        own = self.budget.share(searches_left)
        try:
            optimum = optimise(
                offer.question,
                replace(self.objective, price=offer.price if self.objective.name == "cost" else None),
                sizes=(size,),
                precisions=self.precisions,
                top=1,
                restrictions=self.limits,
                budget=own,
            )
        except InfeasibleError as error:
            late = self.objective.deadline is not None and error.problems  # its days are in the only problem
            why = error.problems[0].what if late else error.headline
            self.left_out.append(LeftOut(cluster=offer.name, gpus=size, why=why))
        except RunError as error:
            self.budget.failure = error
            self._leave_open(offer, size)
        except KeyboardInterrupt:
            if not (self.budget.keep_on_interrupt and self.answers):
                raise
            self.budget.interrupted = True
            self._leave_open(offer, size)
        else:
            self.answers.append(OfferAnswer(offer=offer, optimum=optimum))
            self.budget.interrupted = own.interrupted

    def _leave_open(self, offer: Offer, size: int) -> None:
        self.unanswered += 1
        self.left_out.append(LeftOut(cluster=offer.name, gpus=size, why=self.budget.why_ended))

    def nothing(self, question: Question) -> InfeasibleError | RunError:
        """The error to raise where no cluster has an answer."""
        if self.unanswered:
            return self.budget.nothing_found()
        problems = [Problem(f"{one.cluster}, {counted(one.gpus, 'GPU')}", one.why) for one in self.left_out]
        if self.objective.deadline is None:
            headline = f"no plan of {question.model.name} fits on any of these clusters"
            return InfeasibleError(
                headline, problems=problems, hint="more GPUs or shorter sequences would do"
            )
        return InfeasibleError(
            f"no plan of {question.model.name} trains on {format_count(question.training.tokens or 0.0)} tokens within"
            f" {format_days(self.objective.deadline)} on any of these clusters",
            problems=problems,
            hint="more GPUs, fewer tokens or a later deadline would do",
        )
