"""Questions: a model, a cluster, a training job, the stack that runs it and the constants of the hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from cost_models.errors import InputError
from cost_models.risk import EVEN, Risk
from cost_models.specs.choices import Recompute
from cost_models.specs.cluster import ClusterSpec, GpuSpec, MixedCluster
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.kinds import Kinds, kinds_in, of_each_kind
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that a price depends on except the layout."""

    model: TransformerSpec
    cluster: ClusterSpec
    training: TrainingSpec
    stack: StackSpec
    hardware: HardwareProfile
    confidence: float = EVEN
    """Least probability of fitting that a plan must have."""
    risk: Risk = "none"
    """What of the steps in a profile's scenarios layouts are compared by; none: the step on paper."""
    whole: TransformerSpec | None = None
    """The model, where `model` is what it would be if all its blocks were of one kind; None: `model` itself."""

    @property
    def by_kind(self) -> tuple[Question, ...]:
        """The question as if all blocks were of one kind, for each kind of block; of one kind this question alone."""
        if self.kinds.number == 1 and not self.training.freeze:
            return (self,)
        each = of_each_kind(self.model, self.training)
        return tuple(replace(self, model=one, training=job, whole=self.model) for one, job in each)

    @property
    def kinds(self) -> Kinds:
        """Which block is of which kind; in several pools of GPUs all are priced as their mean."""
        return kinds_in(self.model, self.training)

    @property
    def by_pool(self) -> tuple[Question, ...]:
        """The question of each pool; on one kind of GPU this question alone."""
        return (self,)

    def updated(self, part: str, **fields: Any) -> Self:
        """The question with some fields of its model, cluster, training, stack or hardware replaced."""
        return replace(self, **{part: getattr(self, part).model_copy(update=fields)})

    def recomputing(self, policy: Recompute) -> Self:
        """The question where all stages recompute under one policy."""
        return self.updated("training", recompute=(policy,))

    def of_pools(self, pools: tuple[Question, ...]) -> Question:
        """The question with other questions of its pools."""
        return pools[0]

    @property
    def memory_error(self) -> float:
        """Relative error that nine in ten peaks predicted for the stack stay within, of such a model."""
        own = self.stack.mixture_memory_error if self.model.has_experts else None
        return self.stack.memory_error if own is None else own

    @property
    def scored_share(self) -> float:
        """Share of a sequence's tokens whose logits are computed: without padding and prompts where the stack skips
        what no loss counts."""
        job = self.training
        if not self.stack.skips_ignored_tokens or job.reference is not None:
            return 1.0
        there = 1.0 if job.lengths is None else job.tokens_counted / job.sequence_length
        return there * (1.0 if job.answers is None else job.answers)

    @property
    def dropout(self) -> float:
        """Probability of dropping a hidden activation: the training job's, else the stack's usual one."""
        if self.training.dropout is not None:
            return self.training.dropout
        return _USUAL_DROPOUT if self.stack.usual_dropout and not self.model.gated_mlp else 0.0


_USUAL_DROPOUT = 0.1
"""Megatron-LM's default of `--hidden-dropout` and `--attention-dropout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedQuestion(Question):
    """A question about a cluster of several pools.

    Its `cluster` and `hardware` are what holds for all pools (rules of legality, the weakest trust); prices come from
    the questions of the pools.
    """

    mixed: MixedCluster
    """The cluster; its pools are those of `pools`, with rates as measured where a profile has measured them."""
    pools: tuple[Question, ...]
    """The question of each pool, in the order of the cluster; model, training and stack are the same in all."""

    def __post_init__(self) -> None:
        assert self.cluster == self.mixed.as_one, (
            "what is asked of each pool is changed there: see `each_pool`"
        )
        pools = tuple(
            replace(
                pool,
                model=self.model,
                training=self.training,
                stack=self.stack,
                confidence=self.confidence,
            )
            for pool in self.pools
        )
        object.__setattr__(self, "pools", pools)

    @property
    def by_pool(self) -> tuple[Question, ...]:
        """The questions of the pools, as `pools`."""
        return self.pools

    @property
    def kinds(self) -> Kinds:
        return Kinds((0,) * self.model.num_layers)

    def of_pools(self, pools: tuple[Question, ...]) -> Question:
        return mixed_question(self.mixed, pools)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the pools, in the order of the cluster."""
        return tuple(pool.cluster.name for pool in self.pools)


def mixed_question(mixed: MixedCluster, pools: tuple[Question, ...]) -> MixedQuestion:
    """One question about several pools, from the questions of the pools."""
    known = mixed.model_copy(update={"pools": tuple(pool.cluster for pool in pools)})
    first = pools[0]
    return MixedQuestion(
        model=first.model,
        cluster=known.as_one,
        training=first.training,
        stack=first.stack,
        hardware=max((pool.hardware for pool in pools), key=by_uncertainty),
        confidence=first.confidence,
        mixed=known,
        pools=pools,
    )


_TIERS = ("measured", "profile", "datasheet")


def by_uncertainty(profile: HardwareProfile) -> tuple[int, float]:
    """Sort key of profiles, larger for one that is trusted less: by tier, then by the error it has shown."""
    error = profile.median_error
    return _TIERS.index(profile.tier), float("inf") if error is None else error


def require_tiles(profile: HardwareProfile, gpu: GpuSpec) -> None:
    """Check that a profile can price matrix products on a GPU.

    Raises:
        InputError: the GPU computes them in tiles, and the profile, as one of a CPU, knows none.
    """
    if gpu.sm_count > 1 and not profile.gemm_tiles:
        raise InputError(
            f"profile `{profile.name}` has no `gemm_tiles`, which price matrix products on the {gpu.sm_count}"
            f" multiprocessors of `{gpu.name}`: it is of another kind of device",
            hint="leave out the profile for the catalogue's nearest",
        )


def parts_of(
    question: Question,
) -> tuple[ClusterSpec | MixedCluster, HardwareProfile | tuple[HardwareProfile, ...]]:
    """The cluster and the profile (of several pools one each), as a plan file holds them."""
    if isinstance(question, MixedQuestion):
        return question.mixed, tuple(pool.hardware for pool in question.pools)
    return question.cluster, question.hardware


def question_of_parts(
    model: TransformerSpec,
    training: TrainingSpec,
    stack: StackSpec,
    cluster: ClusterSpec | MixedCluster,
    hardware: HardwareProfile | tuple[HardwareProfile, ...],
    confidence: float = EVEN,
    risk: Risk = "none",
) -> Question:
    """A question from the parts of a plan file; the inverse of `parts_of`.

    Raises:
        InputError: a profile of another kind of device.
    """
    clusters = cluster.pools if isinstance(cluster, MixedCluster) else (cluster,)
    profiles = hardware if isinstance(hardware, tuple) else (hardware,)
    for one, profile in zip(clusters, profiles, strict=True):
        require_tiles(profile, one.gpu)
    questions = tuple(
        Question(
            model=model,
            cluster=one,
            training=training,
            stack=stack,
            hardware=profile,
            confidence=confidence,
            risk=risk,
        )
        for one, profile in zip(clusters, profiles, strict=True)
    )
    return mixed_question(cluster, questions) if isinstance(cluster, MixedCluster) else questions[0]


def each_pool(question: Question, change: Callable[[Question], Question | None]) -> Question | None:
    """The question with `change` made to each pool where it means something; None where it means nothing to any."""
    changed = [change(pool) for pool in question.by_pool]
    if not any(changed):
        return None
    return question.of_pools(tuple(new or old for new, old in zip(changed, question.by_pool, strict=True)))
