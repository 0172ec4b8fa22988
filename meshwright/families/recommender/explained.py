"""`explain` of a recommender's plan: what binds it; and the plan priced and proved again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cost_models.recommender.prices import RecommenderEstimate, estimate
from meshwright.families.recommender.records import estimate_record, question_record
from meshwright.families.recommender.text import (
    binding_table,
    gpus_table,
    memory_text,
    precise,
    proof_text,
    question_text,
    stages_table,
    step_text,
)
from meshwright.render.tables import Table
from meshwright.render.words import change, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.recommender.advice import BindingStage, binding_stages
from planner.recommender.plan import RecommenderPlan, ShardingPrediction
from planner.recommender.problem import limited
from planner.recommender.restrictions import covered_options
from planner.search.search import Budget
from planner.verify import Check, check_equal
from planner.verify.recommenders import verify_sharding

_DRIFT = 1e-6
"""Relative difference between a plan's prediction and its price today that is not rounding."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ShardingExplained(AnswerBase):
    """What binds a sharding."""

    plan: RecommenderPlan
    estimate: RecommenderEstimate
    stages: Sequence[BindingStage]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each table of a GPU that ends a stage."""
        names = self.plan.model.table_names
        return [
            {
                "stage": stage.stage,
                "gpu": stage.gpu,
                "stage_seconds": stage.seconds,
                "mean_seconds": stage.mean_seconds,
                "table": names[one.table],
                "held_as": str(one.placement.option),
                "seconds": one.seconds,
                "step_without_seconds": one.without_seconds,
                "otherwise": None if one.otherwise is None else str(one.otherwise.option),
                "step_otherwise_seconds": one.otherwise_seconds,
            }
            for stage in self.stages
            for one in stage.tables
        ]

    def document(self) -> dict[str, Any]:
        told = self.plan.certificate
        return {
            "question": question_record(self.plan.question),
            "layout": self.plan.layout,
            "estimate": estimate_record(self.estimate),
            "certificate": None if told is None else told.model_dump(mode="json"),
            "bottleneck": self.rows,
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        question, told = self.plan.question, self.plan.certificate
        return (
            question_text(question, self.estimate),
            "",
            step_text(question, self.estimate),
            memory_text(self.estimate),
            "",
            stages_table(self.estimate),
            "",
            gpus_table(self.estimate),
            "",
            wrapped(self._longest),
            "",
            binding_table(question, self.stages),
            *(() if told is None else ("", proof_text(told, seconds=False))),
        )

    @property
    def _longest(self) -> str:
        """The stage that takes most, and the table that makes it do so."""
        bound = [stage for stage in self.stages if stage.tables]
        if not bound:
            return "Bottleneck: the dense network; no table ends a stage."
        worst = max(bound, key=lambda stage: stage.seconds)
        first, names = worst.tables[0], self.plan.model.table_names
        step = self.estimate.step_seconds
        return (
            f"Bottleneck: {names[first.table]} (`{first.placement.option}`) with {precise(first.seconds)} of"
            f" {worst.stage} on GPU {worst.gpu}; without it the step would take"
            f" {precise(first.without_seconds)} ({change(step, first.without_seconds)})."
        )


def explain(plan: RecommenderPlan) -> ShardingExplained:
    """What binds a plan, stage by stage."""
    limits = plan.restrictions.read(plan.model)
    prices = limited(covered_options(plan.question, limits, plan.sharding), limits)
    return ShardingExplained(
        plan=plan,
        estimate=estimate(plan.question, plan.sharding),
        stages=binding_stages(prices, plan.sharding),
    )


def figures(plan: RecommenderPlan) -> dict[str, Any]:
    """The plan's price as JSON has it."""
    return {"estimate": estimate_record(estimate(plan.question, plan.sharding))}


def drift(plan: RecommenderPlan, name: object) -> str:
    """A note where the plan in a file is priced otherwise today; else nothing."""
    today, then = estimate(plan.question, plan.sharding).step_seconds, plan.prediction.step_seconds
    if abs(today / then - 1) <= _DRIFT:
        return ""
    return (
        f"note: {name} was written with a step of {precise(then)}; this version prices it at {precise(today)}"
    )


def verify(plan: RecommenderPlan, budget: Budget) -> Iterator[Check]:
    """The plan's price and its proof, again."""
    if problems := plan.problems():
        yield Check("layout", False, "; ".join(problem.what for problem in problems))
        return
    found = ShardingPrediction.of(estimate(plan.question, plan.sharding))
    yield check_equal("prediction", plan.prediction.model_dump(), found.model_dump())
    if plan.certificate is None:
        return
    limits = plan.restrictions.read(plan.model)
    yield from verify_sharding(
        covered_options(plan.question, limits, plan.sharding),
        plan.sharding,
        plan.certificate,
        restrictions=limits,
        time_limit=60.0 if budget.time_limit is None else budget.time_limit,
    )
