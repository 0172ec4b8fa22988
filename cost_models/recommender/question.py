"""Planning question about a recommender: model, cluster, training job and constants of the hardware."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from cost_models.defaults import measured_cluster, resolve_stack
from cost_models.errors import InputError
from cost_models.files.catalog import embedding_profile_of
from cost_models.specs.cluster import ClusterSpec, MixedCluster
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.recommender.constants import EmbeddingProfile, RecommenderStack
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.stack import StackSpec

_SHARED = {"kernel_seconds", "gemm_efficiency", "link_efficiency", "network_efficiency", "collective_seconds"}
"""Constants that both profiles of a GPU may state."""


@dataclass(frozen=True, slots=True)
class RecommenderQuestion:
    """Inputs of a recommender's price except the sharding: model, cluster, training, stack and constants of
    the hardware."""

    model: RecommenderSpec
    cluster: ClusterSpec
    training: RecommenderTraining
    stack: StackSpec
    hardware: HardwareProfile
    embedding: EmbeddingProfile
    """Constants of lookups and updates."""

    @property
    def samples(self) -> float:
        """Number of samples that each GPU trains in a step."""
        return self.training.global_batch / self.cluster.num_gpus

    @property
    def profile(self) -> HardwareProfile:
        """Hardware profile in which constants that the embedding profile also states have the values stated
        there."""
        return self.hardware.model_copy(update=self.embedding.model_dump(include=_SHARED, exclude_none=True))

    def updated(self, part: str, **fields: Any) -> RecommenderQuestion:
        """Copy of the question with some fields of one `part` (model, cluster, training, ...) replaced."""
        return replace(self, **{part: getattr(self, part).model_copy(update=fields)})

    @property
    def facts(self) -> RecommenderStack:
        """Facts of the software stack that concern recommenders."""
        return self.stack.recommender or RecommenderStack()


USUAL_STACK = "torchrec"
"""The stack of clusters unless `--stack` says otherwise: the library that most recommenders are sharded with."""


def complete_recommender(
    model: RecommenderSpec,
    cluster: ClusterSpec | MixedCluster,
    training: RecommenderTraining,
    *,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
) -> RecommenderQuestion:
    """Complete a recommender question with a stack and the nearest profiles. Without `stack` it is this
    project's own on CPUs, TorchRec on clusters.

    Raises:
        UnknownNameError: no such stack or profile.
        InputError: a cluster of several pools.
    """
    if isinstance(cluster, MixedCluster):
        words = f"`{cluster.name}` has several pools of GPUs, over which tables are not sharded"
        raise InputError(words, hint="plan for one of them")
    stack_spec, hardware = resolve_stack(cluster, stack, profile, usual=USUAL_STACK)
    measured = measured_cluster(hardware, cluster)
    embedding = embedding_profile_of(measured.gpu.name)
    return RecommenderQuestion(model, measured, training, stack_spec, hardware, embedding)
