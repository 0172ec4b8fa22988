"""The best plans for an objective, with their proofs: ranked, over numbers of GPUs, as a plan file has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from planner.certificate import Certificate
from planner.objectives import Objective
from planner.plan import Plan, PlanObjective
from planner.search.branching import BranchAndBound
from planner.search.result import SearchResult, by_speed
from planner.space.gpu_counts import resized

PROVEN = 2e-9
"""A gap no larger than this is rounding: the least peak is known to a billionth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best plans for an objective, best first, and how far that is proven."""

    question: Question
    """The question on the best plan's number of GPUs and in its precision."""
    result: SearchResult
    """The plans; the certificate counts the layouts of all searches, its `bound` and `gap` are of the step time."""
    objective: Objective
    sizes: tuple[int, ...]
    """Numbers of GPUs there were to choose from; empty: only the question's own."""
    value: float
    """Objective value of the best plan, in the unit of its measure."""
    bound: float
    """No covered plan has a better value than this."""
    precisions: tuple[Precision, ...] = ()
    """Precisions of matrix products there were to choose from; empty: only the question's own."""
    left_out: tuple[tuple[int, str], ...] = ()
    """Numbers of GPUs without an answer, and why."""
    others: tuple[tuple[Question, Estimate], ...] = ()
    """The best plan in every other precision."""

    @property
    def gap(self) -> float:
        """Share of the value that could still be gained; 0 is proof."""
        return self.objective.measure.gap(self.value, self.bound)

    def value_of(self, estimate: Estimate) -> float:
        """Objective value of one of the ranked plans, on its own number of GPUs."""
        return self.objective.value(resized(self.question, estimate.layout.num_gpus), estimate)

    @property
    def plain(self) -> bool:
        """Whether just the fastest step on the question's own GPUs was searched for."""
        return self.objective == Objective() and not self.sizes

    def written(self, gpus_per_node: int) -> PlanObjective | None:
        """The objective as a plan file holds it, for nodes of `gpus_per_node` GPUs; None for the fastest step on the
        question's own GPUs and precision."""
        asked = self.objective
        if self.plain and not self.precisions:
            return None
        return PlanObjective(
            name=asked.name,
            price=asked.price,
            deadline=None if asked.deadline is None else f"{asked.deadline!r} s",  # type: ignore[arg-type]
            operations=asked.operations,
            gpus=self.sizes,
            precisions=self.precisions,
            gpus_per_node=gpus_per_node,
            value=self.value,
            bound=self.bound if self.gap < 1 else None,
        )


def answered_question(plan: Plan) -> Question:
    """The question that a plan answers: on whole nodes where the number of GPUs was part of the answer."""
    question, objective = plan.question, plan.objective
    if objective is None or not objective.gpus:
        return question
    nodes = question.cluster.model_copy(update={"gpus_per_node": objective.gpus_per_node, "nodes": 1})
    return replace(question, cluster=nodes)


@dataclass(frozen=True, slots=True)
class BestPlans:
    """The best plans on one number of GPUs in one precision."""

    question: Question
    estimates: tuple[Estimate, ...]
    certificate: Certificate
    bound: float
    """No covered plan has a better value than this; in the unit of the objective's measure."""
    searches: tuple[BranchAndBound, ...] = ()
    """The searches behind it, as they ended."""

    @property
    def gpus(self) -> int:
        """GPUs of the question's cluster."""
        return self.question.cluster.num_gpus

    def value(self, objective: Objective) -> float:
        """Objective value of the best plan; the fastest may not be it while the least peak is unproven."""
        values = (objective.value(self.question, estimate) for estimate in self.estimates)
        return min(values, key=objective.measure.loss)


def ranked_plans(
    question: Question, objective: Objective, found: Sequence[SearchResult], top: int, *, everywhere: bool
) -> BestPlans | None:
    """One answer from several searches of a question; None where time ran out before they decided anything."""
    in_time = [e for result in found for e in result.estimates if objective.meets_deadline(question, e)]
    if not in_time:
        soonest = min((result.certificate.bound for result in found), default=0.0)
        if not everywhere or objective.may_meet_deadline(question, soonest):
            return None
        certificate = merged([result.certificate for result in found])
        return BestPlans(question, (), certificate.model_copy(update={"bound": soonest}), 0.0)
    measure = objective.measure
    ranked = sorted(in_time, key=lambda e: (measure.loss(objective.value(question, e)), *by_speed(e)))
    loss = min(_least_loss(question, objective, result) for result in found)
    best = ranked[0]
    by_best = sorted(found, key=lambda result: all(one is not best for one in result.estimates))
    certificate = merged([result.certificate for result in by_best])
    if len(found) > 1:
        gap = measure.gap(objective.value(question, best), measure.loss(loss)) if everywhere else 1.0
        certificate = certificate.model_copy(update={"gap": gap, "bound": best.compared_seconds * (1 - gap)})
    return BestPlans(
        question,
        tuple(ranked[:top]),
        certificate,
        measure.loss(loss) if everywhere else measure.open,
        tuple(search for result in found for search in result.searches),
    )


def _least_loss(question: Question, objective: Objective, result: SearchResult) -> float:
    """What no plan of a search is below; of one that proved nothing, nothing."""
    measure = objective.measure
    if result.certificate.bound <= 0:
        return measure.loss(measure.open)
    return measure.loss(objective.value(question, _at_bound(result)))


def _at_bound(result: SearchResult) -> Estimate:
    """The best plan as if its step took only the proven bound."""
    best, bound = result.best, result.certificate.bound
    faster = best.compared_seconds / bound
    shares = {name: getattr(best, name) * faster for name in ("mfu", "hfu", "causal_mfu")}
    return replace(best, step_seconds=bound, weighed_seconds=None, **shares)


def merged(certificates: Sequence[Certificate]) -> Certificate:
    """One certificate with the counts of all; its bound and gap are those of the first."""
    counts = ("layouts", "infeasible", "pruned", "solved", "undecided", "seconds")
    sums = {name: sum(getattr(one, name) for one in certificates) for name in counts}
    return certificates[0].model_copy(update=sums)
