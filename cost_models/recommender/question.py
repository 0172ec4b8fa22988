"""Questions about recommenders: a model, a cluster, a training job and the constants of the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderQuestion:
    """Everything that a price depends on except the sharding."""

    model: RecommenderSpec
    cluster: ClusterSpec
    training: RecommenderTraining
    stack: StackSpec
    hardware: HardwareProfile
