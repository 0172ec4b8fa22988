"""Where the explorer starts: the question of a plan file, or of a model on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster
from cost_models.flags import part_of
from cost_models.specs.cluster import ClusterSpec, MixedCluster, OperationsSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.explorer.controls import OFFLOAD
from meshwright.explorer.verb import ExploreOptions
from meshwright.inputs.goals import restrictions_of
from meshwright.inputs.options import Limits
from meshwright.inputs.questions import question_of, single_count
from planner.answers.optimum import answered_question
from planner.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the explorer was started with: the question of controls that nobody turned."""

    model: TransformerSpec
    cluster: ClusterSpec
    training: TrainingSpec
    stack: StackSpec
    profile: HardwareProfile | None = None
    """Of the start's own cluster; others take the catalogue's nearest."""
    limits: Limits = field(default_factory=Limits)
    trainer: str | None = None
    tokens: str | float | None = None
    operations: str | OperationsSpec | None = None
    plan: Plan | None = None
    """The plan whose question it is: shown as it is while no control is turned."""

    @property
    def names(self) -> Mapping[str, str]:
        """What the controls say that hold a name, a choice or words."""
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "stack": self.stack.name,
            "precision": self.training.precision,
            "fix": " ".join(self.limits.fix),
            "forbid": " ".join(self.limits.forbid),
            OFFLOAD: "on" if OFFLOAD in ",".join(self.limits.allow).split(",") else "off",
        }


def start_of(options: ExploreOptions) -> Start:
    """What the command line asks, read whole.

    Raises:
        InputError: what `plan` would refuse, and clusters of several GPUs.
    """
    question, _ = question_of(options)
    restrictions_of(options, options.trainer)
    return Start(
        model=question.model,
        cluster=_of_one_gpu(resolve_cluster(options.cluster, single_count(options.gpus))),
        training=question.training,
        stack=question.stack,
        profile=question.hardware if options.profile else None,
        limits=part_of(options, Limits),
        trainer=options.trainer,
        tokens=options.tokens,
        operations=options.operations,
    )


def start_of_plan(
    plan: Plan, *, tokens: str | float | None, operations: str | OperationsSpec | None
) -> Start:
    """The question of a plan file, within its restrictions. Raises InputError."""
    question, told = answered_question(plan), plan.recommendation
    asked = plan.restrictions if told is None else told.asked
    size = asked.max_memory
    return Start(
        model=question.model,
        cluster=_of_one_gpu(plan.cluster),
        training=question.training,
        stack=question.stack,
        profile=question.hardware,
        limits=Limits(
            fix=asked.fix,
            forbid=asked.forbid,
            allow=asked.allow,
            max_memory=None if size is None else f"{size!r} B",
        ),
        trainer=asked.trainer,
        tokens=tokens,
        operations=operations,
        plan=plan,
    )


def _of_one_gpu(cluster: ClusterSpec | MixedCluster) -> ClusterSpec:
    if isinstance(cluster, MixedCluster):
        raise InputError(
            f"`{cluster.name}` has several pools; the explorer turns the controls of one kind of GPU",
            hint="meshwright plan answers of pools, meshwright report writes their page",
        )
    return cluster
