"""The best plans for an objective, and how far that is proven."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.specs.cluster import Precision
from planner.objectives import Objective
from planner.plan import Plan, PlanObjective
from planner.search.result import SearchResult
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
