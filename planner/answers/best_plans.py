"""The best plans of one question under an objective; several searches merged into one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.estimate import Estimate
from cost_models.question import Question
from planner.certificate import Certificate
from planner.objectives import Objective
from planner.search.result import SearchResult, by_speed


@dataclass(frozen=True, slots=True)
class BestPlans:
    """The best plans on one number of GPUs in one precision."""

    question: Question
    estimates: tuple[Estimate, ...]
    certificate: Certificate
    bound: float
    """No covered plan has a better value than this; in the unit of the objective's measure."""

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
    certificate = merged([result.certificate for result in found])
    if len(found) > 1:
        best = ranked[0]
        gap = measure.gap(objective.value(question, best), measure.loss(loss)) if everywhere else 1.0
        certificate = certificate.model_copy(update={"gap": gap, "bound": best.compared_seconds * (1 - gap)})
    return BestPlans(
        question, tuple(ranked[:top]), certificate, measure.loss(loss) if everywhere else measure.open
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
