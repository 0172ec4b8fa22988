"""Training recommenders: checks before a run starts, and the call on each rank.

Report of a recommender's run: stages, bytes sent and memory of both tiers, beside the plan's predictions.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from cost_models.base import Spec
from cost_models.errors import InputError
from executor.families import OnNote, Training
from executor.measure.report import AnyReport, Course, seconds_of_steps
from executor.run_config import RunConfig
from planner.recommender.plan import RecommenderPlan


class RecommenderTraining(Training[RecommenderPlan]):
    """Sharded tables and a dense network, on clicks."""

    trainer = "executor.recommender.train:train"

    def require_trainable(self, plan: RecommenderPlan, config: RunConfig, on_note: OnNote) -> RunConfig:
        from executor.embeddings.collection import all_slices
        from executor.embeddings.exchanges import Places
        from executor.recommender.train import clicks_of

        precision, batch = plan.training.precision, plan.training.global_batch
        if precision not in ("fp32", "bf16"):
            raise InputError(f"recommenders are trained in fp32 or bf16, the plan asks for {precision}")
        if batch % plan.num_ranks:
            raise InputError(f"global batch {batch} is not a multiple of {plan.num_ranks} GPUs")
        if config.compile:
            raise InputError("a recommender is not compiled", hint="leave out `compile`")
        tables = [plan.model.classes[index] for index in plan.model.class_of_table]
        all_slices(tables, plan.sharding, Places(plan.num_ranks, plan.cluster.gpus_per_node))
        clicks_of(plan, config)
        return config

    def require_devices(self, plan: RecommenderPlan, name: str, *, on_gpu: bool) -> None:
        """Any device multiplies in fp32 and bf16."""

    def of_rank(self, plan: RecommenderPlan, rank: int) -> dict[str, Any]:
        parts = {name: each[rank] for name, each in plan.prediction.device_parts.items()}
        return {"place": f"GPU {rank}", "predicted": parts}


class SharedRank(Spec):
    """One rank's clock, bytes and memory."""

    rank: int
    wall_seconds: tuple[float, ...]
    """Seconds of each measured step."""
    data_seconds: tuple[float, ...] = ()
    """At the start of each, until its batch was there; empty in older reports."""
    stage_seconds: dict[str, float]
    """Median seconds by stage, from separate steps in which ranks begin each stage together. Empty: not measured."""
    sent_bytes: dict[str, int]
    """Bytes sent to other ranks in one of these steps, by stage; what tells of the loss left out."""
    formula_bytes: dict[str, int]
    """Bytes sent by stage as the formula gives them for these tables, sharding and ids."""
    up_bytes: int
    """Rows that came from host memory in that step."""
    down_bytes: int
    """Rows and gradients that went there."""
    lookups: int
    """Ids of tables that have rows in host memory."""
    hits: int
    """Lookups whose rows are on the device."""
    memory: dict[str, int]
    """Bytes on the device by part at this rank's peak: tables, optimizer, dense, rest. Empty: not measured."""
    predicted_memory: dict[str, float]
    """Bytes by part as the plan has them."""
    host_bytes: int
    """Rows and states in host memory."""


class RecommenderReport(AnyReport):
    """A run of a recommender's plan."""

    sharding: str
    auc: float | None = None
    """Area under the curve of clicks on samples that nothing was learned from, of rank 0; None: no such samples."""
    samples_per_second: float
    stage_seconds: dict[str, float]
    """Seconds by stage of the rank that the stage waits for. Empty: not measured."""
    ranks: tuple[SharedRank, ...]
    plan: RecommenderPlan


def make_report(
    plan: RecommenderPlan,
    ranks: Sequence[SharedRank],
    course: Course,
    *,
    auc: float | None,
    step_seconds: Sequence[float] = (),
) -> RecommenderReport:
    """Put the ranks' measurements together; `step_seconds` of every measured step, where ranks list only some."""
    steps = step_seconds or seconds_of_steps(rank.wall_seconds for rank in ranks)
    names = ranks[0].stage_seconds
    return RecommenderReport(
        **course.fields(plan.model.name, steps),
        sharding=plan.layout,
        auc=auc,
        samples_per_second=plan.training.global_batch / statistics.median(steps),
        stage_seconds={name: max(one.stage_seconds[name] for one in ranks) for name in names},
        ranks=tuple(ranks),
        plan=plan,
    )
