"""The best plan over several clusters: each is searched on each of its numbers of GPUs, and the answers are ranked.

The best answer is proven where every search is: it is the best of proven optima.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.errors import InfeasibleError, Problem, RunError
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from cost_models.units import counted
from planner.answers.optimum import LATE_HINT, PROVEN, Optimum, no_plan_words, optimise
from planner.objectives import DAY, Measure, Objective
from planner.plan import Plan, PlanOffer
from planner.search.search import Budget
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
    written, question = plan.objective.offers if plan.objective is not None else (), plan.question
    return tuple(
        Offer(
            question=replace(question, cluster=one.cluster, hardware=one.hardware),
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
        question, step_seconds = self.optimum.question, self.optimum.result.best.step_seconds
        if question.training.tokens is None:
            return None
        return self.optimum.objective.training_seconds(question, step_seconds) / DAY

    @property
    def cost(self) -> float | None:
        """Dollars for the whole training run; None where the number of its tokens or the price is unknown."""
        question, step_seconds = self.optimum.question, self.optimum.result.best.step_seconds
        if question.training.tokens is None or self.offer.price is None:
            return None
        return self.optimum.objective.gpu_hours(question, step_seconds) * self.offer.price


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

        def surely_ahead(one: OfferAnswer, other: OfferAnswer) -> bool:
            """Whether no plan of another answer's search has a better value than one that was found."""
            value, bound = one.optimum.value, other.optimum.bound
            return other.optimum.gap <= PROVEN or self.measure.loss(value) <= self.measure.loss(bound)

        place = self.answers.index(answer)
        ahead = [surely_ahead(one, answer) for one in self.answers[:place]]
        behind = [surely_ahead(answer, one) for one in self.answers[place + 1 :]]
        return 1 + sum(ahead), len(self.answers) - sum(behind)

    @property
    def frontier(self) -> tuple[OfferAnswer, ...]:
        """Answers that no other beats in both days and cost, the soonest first; empty where either is unknown."""
        known = [(one.days, one.cost, place) for place, one in enumerate(self.answers)]
        unbeaten, least = [], math.inf
        for _, cost, place in sorted(
            (d, c, place) for d, c, place in known if d is not None and c is not None
        ):
            if cost < least:
                unbeaten.append(self.answers[place])
                least = cost
        return tuple(unbeaten)


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
    spending, answers, left_out, unanswered = budget or Budget(), list[OfferAnswer](), list[LeftOut](), 0
    pairs = [(offer, size) for offer in offers for size in offer.sizes]
    for number, (offer, size) in enumerate(pairs):
        spending.tell(f"{offer.name}, {counted(size, 'GPU')} ({number + 1} of {len(pairs)})")
        if objective.name == "gpus" and any(one.offer is offer for one in answers):
            continue  # fewer do
        if not spending.interrupted and spending.seconds_left > 0:
            share = spending.share(len(pairs) - number)
            try:
                optimum = optimise(
                    offer.question,
                    replace(objective, price=offer.price if objective.name == "cost" else None),
                    sizes=(size,),
                    precisions=precisions,
                    top=1,
                    restrictions=restrictions,
                    budget=share,
                )
                answers.append(OfferAnswer(offer=offer, optimum=optimum))
                spending.interrupted = share.interrupted
                continue
            except InfeasibleError as error:
                late = objective.deadline is not None and error.problems  # its days are in the only problem
                why = error.problems[0].what if late else error.headline
                left_out.append(LeftOut(cluster=offer.name, gpus=size, why=why))
                continue
            except RunError as error:
                spending.failure = error
            except KeyboardInterrupt:
                if not (spending.keep_on_interrupt and answers):
                    raise
                spending.interrupted = True
        unanswered += 1
        left_out.append(LeftOut(cluster=offer.name, gpus=size, why=spending.why_ended))
    if not answers:
        if unanswered:
            raise spending.nothing_found()
        headline = f"{no_plan_words(offers[0].question, objective.deadline)} on any of these clusters"
        problems = [Problem(f"{one.cluster}, {counted(one.gpus, 'GPU')}", one.why) for one in left_out]
        unfit = "more GPUs or shorter sequences would do"
        hint = unfit if objective.deadline is None else LATE_HINT
        raise InfeasibleError(headline, problems=problems, hint=hint)

    def order(answer: OfferAnswer) -> tuple[float, float, float]:
        optimum = answer.optimum
        loss = objective.measure.loss(optimum.value)
        gpus = optimum.question.cluster.num_gpus
        return loss, answer.cost or gpus, optimum.result.best.step_seconds

    return Ranking(
        objective=objective,
        offers=tuple(offers),
        answers=tuple(sorted(answers, key=order)),
        left_out=tuple(left_out),
        unanswered=unanswered,
        seconds=spending.seconds_spent,
    )
