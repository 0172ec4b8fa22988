"""What a run of a recommender measured, beside what its plan predicted: stages, bytes sent, memory of both tiers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pydantic import Field

from cost_models.base import Spec
from executor.measure.any_report import AnyReport, seconds_of_steps
from executor.measure.report import Environment, Watched
from planner.recommender.plan import RecommenderPlan

SCHEMA = 1


class SharedRank(Spec):
    """One rank's clock, bytes and memory."""

    rank: int
    wall_seconds: tuple[float, ...]
    """Of each measured step."""
    stage_seconds: dict[str, float]
    """Of steps apart, in which ranks begin each stage together: medians. Empty: not measured."""
    sent_bytes: dict[str, int]
    """Sent to other ranks in one of these steps, by stage; what tells of the loss left out."""
    formula_bytes: dict[str, int]
    """The same as tables, sharding and this rank's ids have it."""
    up_bytes: int
    """Rows that came from host memory in that step."""
    down_bytes: int
    """Rows and gradients that went there."""
    lookups: int
    """Ids of tables that have rows in host memory."""
    hits: int
    """Those whose rows are on the device."""
    memory: dict[str, int]
    """Bytes on the device by part at this rank's peak: tables, optimizer, dense, rest. Empty: not measured."""
    predicted_memory: dict[str, float]
    """Bytes by part as the plan has them."""
    host_bytes: int
    """Rows and states in host memory."""


class RecommenderReport(AnyReport):
    """A run of a recommender's plan."""

    schema_version: int = SCHEMA
    model: str
    sharding: str
    environment: Environment
    seed: int
    warm_up_steps: int
    first_step: int = 1
    losses: tuple[Watched, ...]
    """Mean loss of the samples of all ranks at every step, warm-up included."""
    gradient_norms: tuple[Watched, ...]
    """Of the dense network."""
    auc: float | None = None
    """Area under the curve of clicks on samples that nothing was learned from, of rank 0; None: no such samples."""
    step_seconds: float = Field(gt=0)
    """Median over the measured steps; a step ends when its slowest rank does."""
    quickest_step_seconds: float = Field(gt=0)
    samples_per_second: float
    stage_seconds: dict[str, float]
    """Of the rank that each stage waits for. Empty: not measured."""
    ranks: tuple[SharedRank, ...]
    plan: RecommenderPlan
    notes: tuple[str, ...] = ()

    def noted(self) -> tuple[str, ...]:
        return self.notes


def make_report(
    plan: RecommenderPlan,
    ranks: Sequence[SharedRank],
    *,
    environment: Environment,
    seed: int,
    warm_up: int,
    first_step: int,
    losses: Sequence[float],
    gradient_norms: Sequence[float],
    auc: float | None,
    notes: Sequence[str],
) -> RecommenderReport:
    """Put the ranks' measurements together."""
    steps = seconds_of_steps(ranks)
    median = statistics.median(steps)
    names = ranks[0].stage_seconds
    return RecommenderReport(
        model=plan.model.name,
        sharding=plan.layout,
        environment=environment,
        seed=seed,
        warm_up_steps=warm_up,
        first_step=first_step,
        losses=tuple(losses),
        gradient_norms=tuple(gradient_norms),
        auc=auc,
        step_seconds=median,
        quickest_step_seconds=min(steps),
        samples_per_second=plan.training.global_batch / median,
        stage_seconds={name: max(one.stage_seconds[name] for one in ranks) for name in names},
        ranks=tuple(ranks),
        plan=plan,
        notes=tuple(notes),
    )
