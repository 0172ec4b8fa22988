"""Completing a question about a recommender: the stack, and the constants of the hardware and of its tables."""

from __future__ import annotations

from cost_models.curves import measured_cluster
from cost_models.defaults import OWN_STACK, nearest_profile
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.pools import MixedCluster
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.training import RecommenderTraining

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
    """The question with its stack (default: our own here and on CPUs, TorchRec on clusters) and the nearest profiles.

    Raises:
        UnknownNameError: no such stack or profile.
        InputError: a cluster of several pools.
    """
    if isinstance(cluster, MixedCluster):
        raise InputError(
            f"`{cluster.name}` has several pools of GPUs, over which tables are not sharded",
            hint="plan for one of them",
        )
    here = cluster.gpu.kind == "cpu" or cluster.name == LOCAL
    chosen = catalog.load_stack(stack or (OWN_STACK if here else USUAL_STACK))
    named = profile or cluster.profile
    if named is None:
        hardware = nearest_profile(cluster.gpu, chosen.name, family=chosen.family)
    else:
        hardware = named if isinstance(named, HardwareProfile) else catalog.load_profile(named)
    return RecommenderQuestion(
        model=model,
        cluster=measured_cluster(hardware, cluster),
        training=training,
        stack=chosen,
        hardware=hardware,
        embedding=catalog.embedding_profile_of(cluster.gpu.name),
    )
