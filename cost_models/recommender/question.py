"""Questions about recommenders: a model, a cluster, a training job and the constants of the hardware."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.files.catalog import embedding_profile_of
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.constants import EmbeddingProfile, RecommenderStack
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec

DATASHEET = EmbeddingProfile()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommenderQuestion:
    """Everything that a price depends on except the sharding."""

    model: RecommenderSpec
    cluster: ClusterSpec
    training: RecommenderTraining
    stack: StackSpec
    hardware: HardwareProfile
    embedding: EmbeddingProfile = DATASHEET
    """Constants of lookups and updates; those of the catalogue for the GPU where nobody gives any."""

    def __post_init__(self) -> None:
        if self.embedding is DATASHEET:
            object.__setattr__(self, "embedding", embedding_profile_of(self.cluster.gpu.name))

    @property
    def kernel_seconds(self) -> float:
        """Seconds that a kernel takes at least."""
        mine = self.embedding.kernel_seconds
        return self.hardware.kernel_seconds if mine is None else mine

    @property
    def facts(self) -> RecommenderStack:
        """How the stack trains recommenders."""
        return self.stack.recommender or RecommenderStack()
