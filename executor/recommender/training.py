"""Training recommenders: checks before a run starts, the call on each rank, and the report.

Report of a recommender's run: stages, bytes sent and memory of both tiers, beside the plan's predictions.
"""

from __future__ import annotations

from typing import Any

from cost_models.base import Spec
from cost_models.errors import InputError
from executor.families import OnNote, Training
from executor.measure.report import AnyReport
from executor.run_config import RunConfig
from planner.recommender.plan import RecommenderPlan


class RecommenderTraining(Training[RecommenderPlan]):
    """Training of recommenders: sharded tables and a dense network, on clicks."""

    trainer = "executor.recommender.train:train"

    def require_trainable(self, plan: RecommenderPlan, config: RunConfig, on_note: OnNote) -> RunConfig:
        """Raise InputError where precision, batch, flags, sharding or clicks rule out training; returns the flags."""
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
        """Do nothing: any device multiplies in fp32 and bf16."""

    def of_rank(self, plan: RecommenderPlan, rank: int) -> dict[str, Any]:
        """Fields that describe a rank that ran out of memory: its GPU, and predicted bytes by part."""
        parts = {name: each[rank] for name, each in plan.prediction.device_parts.items()}
        return {"place": f"GPU {rank}", "predicted": parts}


class SharedRank(Spec):
    """Measured time, bytes and memory of one rank of a recommender's run."""

    rank: int
    wall_seconds: tuple[float, ...]
    """Seconds of each measured step."""
    data_seconds: tuple[float, ...] = ()
    """Seconds that each measured step waited for its batch at its start; empty in older reports."""
    stage_seconds: dict[str, float]
    """Median seconds of each stage of a step, which ranks begin together; empty if not measured."""
    sent_bytes: dict[str, int]
    """Bytes that this rank sent to others in one of these steps, by stage; sums of the loss are left out."""
    formula_bytes: dict[str, int]
    """Bytes that the formula gives, by stage, for these tables, sharding and ids."""
    up_bytes: int
    """Bytes of rows copied from host memory to the device in one of these steps."""
    down_bytes: int
    """Bytes of rows and gradients copied from the device to host memory in one of these steps."""
    lookups: int
    """Number of ids looked up in tables that have rows in host memory."""
    hits: int
    """Number of these ids whose rows are on the device."""
    memory: dict[str, int]
    """Measured bytes by part at this rank's peak: tables, optimizer, dense, rest; empty if not measured."""
    predicted_memory: dict[str, float]
    """Bytes of device memory by part that the plan predicts."""
    host_bytes: int
    """Bytes of rows and states in host memory."""


class RecommenderReport(AnyReport):
    """Report of a run of a recommender's plan: measurements beside predictions."""

    sharding: str
    auc: float | None = None
    """Area under the curve of clicks on samples that were not trained on, of rank 0; None if there are none."""
    samples_per_second: float
    stage_seconds: dict[str, float]
    """Seconds of each stage of a step on the rank that takes longest; empty if not measured."""
    ranks: tuple[SharedRank, ...]
    plan: RecommenderPlan
