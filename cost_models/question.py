"""A question holds all inputs that determine the price of a layout (model, cluster, training job, software
stack, hardware constants)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from cost_models.errors import InputError
from cost_models.risk import EVEN, Risk
from cost_models.specs.choices import Recompute
from cost_models.specs.cluster import AnyCluster, ClusterSpec, GpuSpec, LinkSpec, MixedCluster
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.kinds import Kinds, kinds_in, of_each_kind
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All inputs that determine the price (step time and memory) of a layout."""

    model: TransformerSpec
    cluster: ClusterSpec
    training: TrainingSpec
    stack: StackSpec
    hardware: HardwareProfile
    confidence: float = EVEN
    """Minimum probability of fitting in memory that a plan must have."""
    risk: Risk = "none"
    """Rule by which layouts are compared over a profile's scenarios (plausible sets of constants); "none": by
    predicted step."""
    full_model: TransformerSpec | None = None
    """Model with blocks of every kind, if `model` is a copy with one kind of block only; None: `model`
    itself."""
    mixed: MixedCluster | None = None
    """Cluster of several pools (groups of equal GPUs), with measured rates where a profile has them; None:
    one kind of GPU. `cluster` and `hardware` then hold the common limits (rules of legality, the weakest
    trust), and prices come from the pools' questions."""
    measured: MeasuredStep | None = None
    """Step that the user measured; None: none. It moves no price, but expected steps (`cost_models.expected`)."""
    members: tuple[Question, ...] = ()
    """Question of each pool of GPUs, in the order of the cluster; empty with one kind of GPU."""

    def __post_init__(self) -> None:
        if self.mixed is None:
            return
        assert self.cluster == self.mixed.common_limits, "change each pool: see `each_pool`"
        shared = {name: getattr(self, name) for name in ("model", "training", "stack", "confidence")}
        object.__setattr__(self, "members", tuple(replace(pool, **shared) for pool in self.members))

    @property
    def by_kind(self) -> tuple[Question, ...]:
        """Copies of the question, one for each kind of transformer block, in which all blocks are of that
        kind; only this question if there is a single kind."""
        if self.kinds.number == 1 and not self.training.freeze:
            return (self,)
        kinds = of_each_kind(self.model, self.training)
        return tuple(replace(self, model=one, training=job, full_model=self.model) for _, one, job in kinds)

    @property
    def kinds(self) -> Kinds:
        """Kind of each transformer block of the model, such as dense or with experts. With several pools all
        blocks have one kind, as their prices are averaged."""
        return Kinds((0,) * self.model.num_layers) if self.has_pools else kinds_in(self.model, self.training)

    @property
    def pools(self) -> tuple[Question, ...]:
        """Question of each pool (group of equal GPUs); only this question if all GPUs are equal."""
        return self.members or (self,)

    @property
    def has_pools(self) -> bool:
        """Whether the cluster has several pools of different GPUs."""
        return bool(self.members)

    @property
    def pool_link(self) -> LinkSpec:
        """Network link between GPUs of two different pools."""
        assert self.mixed is not None
        return self.mixed.link

    @property
    def pool_names(self) -> tuple[str, ...]:
        """Name of each pool of GPUs, in the order of the cluster."""
        return tuple(pool.cluster.name for pool in self.pools)

    def updated(self, part: str, **fields: Any) -> Self:
        """Copy of the question with some fields of one `part` (model, cluster, training, stack or hardware)
        replaced."""
        return replace(self, **{part: getattr(self, part).model_copy(update=fields)})

    def recomputing(self, policy: Recompute) -> Self:
        """Copy of the question in which the search may use only the given recompute policy."""
        return self.updated("training", recompute=(policy,))

    @property
    def memory_error(self) -> float:
        """Relative error of predicted peak memory that nine in ten runs under the stack do not exceed, for
        dense models or for mixtures of experts."""
        of_mixtures = self.stack.mixture_memory_error if self.model.has_experts else None
        return self.stack.memory_error if of_mixtures is None else of_mixtures

    @property
    def scored_share(self) -> float:
        """Share of a sequence's tokens whose logits are computed; below 1 if the stack skips padding and
        prompts, which have no loss."""
        job = self.training
        if not self.stack.skips_ignored_tokens or job.reference is not None:
            return 1.0
        real_share = 1.0 if job.lengths is None else job.tokens_counted / job.sequence_length
        return real_share * (1.0 if job.answers is None else job.answers)

    @property
    def dropout(self) -> float:
        """Dropout probability of hidden activations: the training job's, else the stack's default."""
        if self.training.dropout is not None:
            return self.training.dropout
        return _USUAL_DROPOUT if self.stack.usual_dropout and not self.model.gated_mlp else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Step time of a layout that the user measured, with the question whose job it was."""

    question: Question
    layout: str
    """Layout with the number of blocks of every stage, in the notation of layouts."""
    seconds: float


_USUAL_DROPOUT = 0.1
"""Default of Megatron-LM's `--hidden-dropout` and `--attention-dropout`."""


def mixed_question(mixed: MixedCluster, pools: tuple[Question, ...]) -> Question:
    """Create the question of a cluster of several pools from the pools' questions."""
    measured = mixed.model_copy(update={"pools": tuple(pool.cluster for pool in pools)})
    weakest, limits = max((pool.hardware for pool in pools), key=by_uncertainty), measured.common_limits
    return replace(pools[0], cluster=limits, hardware=weakest, risk="none", mixed=measured, members=pools)


_TIERS = ("measured", "profile", "datasheet")


def by_uncertainty(profile: HardwareProfile) -> tuple[int, float]:
    """Sort key that puts the most trusted hardware profiles first: by tier, then by median error against
    measured runs."""
    error = profile.median_error
    return _TIERS.index(profile.tier), float("inf") if error is None else error


def require_tiles(profile: HardwareProfile, gpu: GpuSpec) -> None:
    """Raise InputError if the profile lacks the measured tile sizes that price matrix products on the GPU.

    Raises:
        InputError: the GPU computes them in tiles, and the profile, as one of a CPU, knows none.
    """
    if gpu.sm_count > 1 and not profile.gemm_tiles:
        raise InputError(
            f"profile `{profile.name}` has no `gemm_tiles`, which price matrix products on the {gpu.sm_count}"
            f" multiprocessors of `{gpu.name}`: it is of another kind of device",
            hint="leave out the profile for the catalogue's nearest",
        )


Profiles = HardwareProfile | tuple[HardwareProfile, ...]
"""Hardware profile of a question or, with several pools of GPUs, a profile for each."""


def parts_of(question: Question) -> tuple[AnyCluster, Profiles]:
    """Cluster and hardware profile of a question as a plan file stores them; with several pools of GPUs, one
    profile for each."""
    if question.mixed is None:
        return question.cluster, question.hardware
    return question.mixed, tuple(pool.hardware for pool in question.pools)


SHARED_PARTS = ("model", "training", "stack", "confidence", "risk")
"""Names of the fields of a question that have one value for all its pools."""


def question_of_parts(cluster: AnyCluster, hardware: Profiles, **shared: Any) -> Question:
    """Create a question from the parts in a plan file, the inverse of `parts_of`; `shared` are the fields in
    `SHARED_PARTS`.

    Raises:
        InputError: a profile of another kind of device.
    """
    clusters = cluster.pools if isinstance(cluster, MixedCluster) else (cluster,)
    profiles = hardware if isinstance(hardware, tuple) else (hardware,)
    pools = list[Question]()
    for pool_cluster, profile in zip(clusters, profiles, strict=True):
        require_tiles(profile, pool_cluster.gpu)
        pools.append(Question(cluster=pool_cluster, hardware=profile, **shared))
    return mixed_question(cluster, tuple(pools)) if isinstance(cluster, MixedCluster) else pools[0]


def each_pool(question: Question, change: Callable[[Question], Question | None]) -> Question | None:
    """Copy of the question in which `change` was applied to every pool; None if `change` returns None for all
    pools."""
    changed = [change(pool) for pool in question.pools]
    if not any(changed):
        return None
    pools = tuple(new or old for new, old in zip(changed, question.pools, strict=True))
    return pools[0] if question.mixed is None else mixed_question(question.mixed, pools)
