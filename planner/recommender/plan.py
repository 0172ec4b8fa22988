"""Plan file of a recommender: everything needed to train with a sharding, to check its prediction and to plan
again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cost_models.base import Spec
from cost_models.errors import InputError, Problem
from cost_models.recommender.prices import RecommenderEstimate, estimate
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.constants import EmbeddingProfile
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.sharding import Sharding, parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec
from planner.plan import AnyPlan, package_version
from planner.recommender.restrictions import ShardingLimits
from planner.recommender.search import ShardingCertificate

_QUESTION = ("model", "cluster", "training", "stack", "hardware", "embedding")
"""Fields that a plan has in common with its question."""
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ShardingPrediction(Spec):
    """Predicted step time, stages and memory of a recommender plan."""

    step_seconds: float = Field(gt=0, allow_inf_nan=False)
    busiest_sum_seconds: _Seconds
    """Seconds of a step without barriers between stages, the largest sum of a GPU's seconds over stages."""
    samples_per_second: float
    mfu: float
    """Model FLOPs utilisation, in which only FLOPs of the dense network count."""
    stages: dict[str, _Seconds]
    """Seconds of each stage on its busiest GPU; they sum to `step_seconds`."""
    busiest: tuple[int, ...]
    """GPU that each stage waits for."""
    device_bytes: tuple[float, ...]
    """Bytes of each GPU's memory at its fullest moment of a step."""
    device_parts: dict[str, tuple[float, ...]]
    """Bytes of each part of device memory on each GPU at the fullest moment, by part."""
    fullest_moment: tuple[str, ...] = ()
    """Moment of a step at which each GPU's memory is fullest; () in plans that were written when there was one."""
    device_memory: float
    """Bytes of memory that each GPU has."""
    host_bytes: tuple[float, ...]
    """Bytes of each host's memory that tables fill."""
    host_memory: float
    """Bytes of memory that each host has; 0 if unknown."""

    @classmethod
    def of(cls, priced: RecommenderEstimate) -> ShardingPrediction:
        """Convert an estimate into the prediction that a plan file stores."""
        fields = {name: getattr(priced, name) for name in cls.model_fields}
        parts = {name: tuple(size.tolist()) for name, size in priced.device_parts.items()}
        sizes = {name: tuple(fields[name].tolist()) for name in ("device_bytes", "host_bytes")}
        return cls(**fields | sizes | {"stages": dict(priced.stages), "device_parts": parts})


class RecommenderPlan(AnyPlan):
    """Plan file of a recommender: question, sharding of all tables, prediction and certificate."""

    kind: Literal["recommender-plan"] = "recommender-plan"
    model: RecommenderSpec
    cluster: ClusterSpec
    training: RecommenderTraining
    stack: StackSpec
    hardware: HardwareProfile
    embedding: EmbeddingProfile
    """Measured constants of embedding lookups and updates."""
    restrictions: ShardingLimits = ShardingLimits()
    """Restrictions of the search that found the sharding."""
    layout: str
    """Sharding as text: `table:0-3=column2@0,4 table:4=row`."""
    prediction: ShardingPrediction
    certificate: ShardingCertificate | None = None
    """Proof of the sharding's quality; None for a sharding given by the user."""

    @model_validator(mode="after")
    def _of_these_tables(self) -> RecommenderPlan:
        """Check that the sharding in `layout` can be read for the model's tables."""
        _ = self.sharding
        return self

    @property
    def sharding(self) -> Sharding:
        """Sharding option and places of every table, parsed from `layout`."""
        return parse_sharding(self.layout, self.model.num_tables)

    @property
    def question(self) -> RecommenderQuestion:
        """Planning question (model, cluster, training, stack, hardware) that the plan answers."""
        return RecommenderQuestion(**{name: getattr(self, name) for name in _QUESTION})

    @property
    def num_ranks(self) -> int:
        """Number of GPUs of the plan."""
        return self.cluster.num_gpus

    def require_readable(self) -> None:
        """Raise InputError unless the restrictions can be parsed for the model's tables."""
        _ = self.restrictions.read(self.model)

    def problems(self) -> list[Problem]:
        """Reasons why the plan's sharding cannot be priced; empty if it can."""
        try:
            estimate(self.question, self.sharding)
        except InputError as error:
            return [*error.problems] or [Problem("", error.headline)]
        return []


def make_recommender_plan(
    question: RecommenderQuestion,
    sharding: Sharding,
    limits: ShardingLimits | None = None,
    certificate: ShardingCertificate | None = None,
) -> RecommenderPlan:
    """Create the plan that trains with a sharding; a sharding given by the user has no certificate."""
    return RecommenderPlan(
        meshwright_version=package_version(),
        **{name: getattr(question, name) for name in _QUESTION},
        restrictions=limits or ShardingLimits(),
        layout=str(sharding),
        prediction=ShardingPrediction.of(estimate(question, sharding)),
        certificate=certificate,
    )
