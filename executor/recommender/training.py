"""Training recommenders: checks before a run starts, and the call on each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cost_models.errors import InputError
from executor.families import Training
from executor.run_config import RunConfig
from planner.recommender.plan import RecommenderPlan


class RecommenderTraining(Training[RecommenderPlan]):
    """Sharded tables and a dense network, on clicks."""

    trainer = "executor.recommender.train:train"

    def require_trainable(
        self, plan: RecommenderPlan, config: RunConfig, on_note: Callable[[str], None]
    ) -> RunConfig:
        from executor.embeddings.collection import all_slices
        from executor.embeddings.places import Places
        from executor.recommender.train import clicks_of

        if plan.training.precision not in ("fp32", "bf16"):
            raise InputError(
                f"recommenders are trained in fp32 or bf16, the plan asks for {plan.training.precision}"
            )
        if plan.training.global_batch % plan.num_ranks:
            raise InputError(
                f"global batch {plan.training.global_batch} is not a multiple of {plan.num_ranks} GPUs"
            )
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
