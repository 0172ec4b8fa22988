"""A plan: everything needed to run a layout, to check its prediction and to ask the same question again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from cost_models.base import GpuCount, Spec
from cost_models.errors import Problem
from cost_models.estimate import Estimate
from cost_models.question import Question, parts_of, question_of_parts
from cost_models.risk import EVEN, Risk
from cost_models.specs.cluster import ClusterSpec, GpuSpec, Precision
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.operations import OperationsSpec
from cost_models.specs.pools import AnyCluster, MixedCluster
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import Seconds
from planner.any_plan import AnyPlan, own_version
from planner.certificate import Certificate
from planner.objectives import Objective, ObjectiveName
from planner.plan_recommended import Confidence, LayoutText, PlanRecommendation, PlanRestrictions
from planner.rules.legality import check
from planner.space.layouts import Restrictions

_RENAMED = {"holes": "fragmentation"}
"""Parts of memory by the names that plan files of earlier versions have."""


def _named_as_today(parts: Any) -> Any:
    return (
        {_RENAMED.get(name, name): size for name, size in parts.items()} if isinstance(parts, dict) else parts
    )


class Prediction(Spec):
    """The cost model's prediction for the plan; see `cost_models.estimate.Estimate` for the fields."""

    step_seconds: float = Field(gt=0, allow_inf_nan=False)
    weighed_seconds: float | None = None
    """What `risk` weighs of the step; None: the step on paper."""
    mfu: float
    hfu: float
    tokens_per_second: float
    peak_bytes: float
    memory_limit: float
    host_bytes: float | None = None
    """Bytes in the memory of each host; None where nothing is offloaded."""
    host_limit: float | None = None
    """Bytes of a host's memory that blocks may fill."""
    drive_bytes: float | None = None
    """Bytes on the drive of each host; None where nothing is."""
    drive_limit: float | None = None
    """Bytes of a host's drive that states may fill."""
    time: dict[str, float]
    """Seconds by part; they sum to `step_seconds`."""
    rank_memory: tuple[Annotated[dict[str, float], BeforeValidator(_named_as_today)], ...]
    """Bytes by part for each pipeline rank."""
    trust: str
    """Tier of the constants and the error it has shown."""

    @classmethod
    def of(cls, estimate: Estimate) -> Prediction:
        """An estimate as a plan file holds it."""
        return cls(
            step_seconds=estimate.step_seconds,
            weighed_seconds=estimate.weighed_seconds,
            mfu=estimate.mfu,
            hfu=estimate.hfu,
            tokens_per_second=estimate.tokens_per_second,
            peak_bytes=estimate.peak_bytes,
            memory_limit=estimate.memory_limit,
            host_bytes=estimate.host_bytes or None,
            host_limit=estimate.host_limit if estimate.host_bytes else None,
            drive_bytes=estimate.drive_bytes or None,
            drive_limit=estimate.drive_limit if estimate.drive_bytes else None,
            time=estimate.time.as_dict(),
            rank_memory=tuple(rank.as_dict() for rank in estimate.rank_memory),
            trust=str(estimate.trust),
        )


class PlanOffer(Spec):
    """One of several clusters that the plan was chosen from."""

    cluster: ClusterSpec
    """The cluster, of whole nodes."""
    hardware: HardwareProfile
    gpus: tuple[GpuCount, ...]
    """Numbers of its GPUs that were to choose from."""
    price: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Dollars for one GPU-hour."""


class PlanObjective(Spec):
    """An objective other than the fastest step on the cluster's GPUs, and the plan's value at it."""

    name: ObjectiveName
    price: float | None = None
    """Dollars for one GPU-hour."""
    deadline: Seconds | None = None
    """Time in which training on all tokens must end."""
    operations: OperationsSpec | None = None
    """Failures and restarts that the time of training counts; None: none."""
    gpus: tuple[GpuCount, ...] = ()
    """Numbers of GPUs that were to choose from; the cluster has the chosen one. Empty: no choice."""
    precisions: tuple[Precision, ...] = ()
    """Precisions that were to choose from; the training job has the chosen one. Empty: no choice."""
    gpus_per_node: GpuCount
    """GPUs of a whole node; the chosen number may be a part of one."""
    offers: tuple[PlanOffer, ...] = ()
    """Clusters that were to choose from; the plan's own is the best, and its certificate covers only that one."""
    value: float
    """Value of the plan: seconds, a share, GPU-hours, dollars, bytes or GPUs."""
    bound: float | None
    """Proven bound on the value of any covered plan, or None."""

    @property
    def terms(self) -> Objective:
        """The objective as the search takes it."""
        return Objective(name=self.name, price=self.price, deadline=self.deadline, operations=self.operations)


class Plan(AnyPlan):
    """A question and its answer: the layout with its prediction and its certificate."""

    kind: Literal["plan"] = "plan"
    model: TransformerSpec
    cluster: AnyCluster
    training: TrainingSpec
    stack: StackSpec
    hardware: Annotated[
        Annotated[HardwareProfile, Tag("[one]")] | Annotated[tuple[HardwareProfile, ...], Tag("[pools]")],
        Discriminator(lambda value: "[pools]" if isinstance(value, (list, tuple)) else "[one]"),
    ]
    """The hardware profile, or one for each pool of the cluster."""
    restrictions: PlanRestrictions = PlanRestrictions()
    """Restrictions within which the layout is the best."""
    objective: PlanObjective | None = None
    """The objective; None for the fastest step on all GPUs of the cluster."""
    recommendation: PlanRecommendation | None = None
    """Why this layout where it is the recommended one; None where it is the best at the objective."""
    layout: LayoutText
    """The placed layout: it names `layers` and `recompute` of every virtual stage."""
    prediction: Prediction
    certificate: Certificate | None = None
    """The proof; None for a layout that was given, not searched."""
    confidence: Confidence = EVEN
    """`--confidence`: least probability of fitting that the plan must have."""
    risk: Risk = "none"
    """`--risk`: what of the steps in the profile's scenarios layouts were compared by."""

    @model_validator(mode="after")
    def _a_profile_for_each_pool(self) -> Plan:
        pools = len(self.cluster.pools) if isinstance(self.cluster, MixedCluster) else None
        profiles = len(self.hardware) if isinstance(self.hardware, tuple) else None
        if pools != profiles:
            raise ValueError("`hardware` must hold one profile for each pool of the cluster")
        return self

    @property
    def question(self) -> Question:
        """The question that the plan answers."""
        return question_of_parts(
            self.model, self.training, self.stack, self.cluster, self.hardware, self.confidence, self.risk
        )

    @property
    def asked(self) -> Restrictions:
        """What the user fixed, forbade and allowed: a recommended layout keeps to more (`restrictions`)."""
        told = self.recommendation
        return (self.restrictions if told is None else told.asked).read

    @property
    def proved_seconds(self) -> float:
        """The step that its certificate is about: its own, or that of the fastest of its kind on paper."""
        choice = None if self.recommendation is None else self.recommendation.choice
        own = self.prediction.weighed_seconds or self.prediction.step_seconds
        return own if choice is None else choice.first_seconds

    @property
    def model_name(self) -> str:
        return self.model.name

    @property
    def num_ranks(self) -> int:
        return self.layout.num_gpus

    @property
    def gpu(self) -> GpuSpec:
        return self.question.cluster.gpu

    @property
    def searched(self) -> bool:
        return self.certificate is not None

    def require_readable(self) -> None:
        _ = self.restrictions.read

    def problems(self) -> list[Problem]:
        problems = check(self.question, self.layout, hosts=False)  # that is a verdict, as with the device
        if not self.layout.layers:
            problems.append(Problem("", "the layout does not place its blocks (`layers=`)"))
        return problems


def make_plan(
    question: Question,
    estimate: Estimate,
    certificate: Certificate | None = None,
    restrictions: Restrictions | None = None,
    objective: PlanObjective | None = None,
    recommendation: PlanRecommendation | None = None,
) -> Plan:
    """The plan that runs an estimated layout; without a certificate the layout was given, not searched."""
    cluster, hardware = parts_of(question)
    return Plan(
        meshwright_version=own_version(),
        model=question.model,
        cluster=cluster,
        training=question.training,
        stack=question.stack,
        hardware=hardware,
        restrictions=PlanRestrictions.of(restrictions or Restrictions()),
        objective=objective,
        recommendation=recommendation,
        layout=estimate.layout,
        prediction=Prediction.of(estimate),
        certificate=certificate,
        confidence=question.confidence,
        risk=question.risk,
    )
