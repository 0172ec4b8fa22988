"""A plan: everything needed to run a layout, to check its prediction and to ask the same question again.

`AnyPlan` is what plans of all families share; `Plan` is that of a transformer, with the records that its file holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, PrivateAttr, Tag, model_validator

from cost_models.axes.layout import Layout, parse_layout
from cost_models.base import GpuCount, Spec
from cost_models.errors import Problem
from cost_models.estimate import Estimate
from cost_models.question import Question, parts_of, question_of_parts
from cost_models.risk import EVEN, MOST_CONFIDENT, Risk
from cost_models.specs.cluster import ClusterSpec, GpuSpec, Precision
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.operations import OperationsSpec
from cost_models.specs.pools import AnyCluster, MixedCluster
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import Bytes, Seconds, counted
from planner.certificate import Certificate
from planner.objectives import Objective, ObjectiveName
from planner.rules.legality import check
from planner.space.restrictions import Restrictions, parse_restrictions

PLAN_SCHEMA = 1
_RENAMED = {"holes": "fragmentation"}
"""Parts of memory by the names that plan files of earlier versions have."""
_LISTED_FACTS = 3
"""Ignored facts of a stack that a note names."""

LayoutText = Annotated[
    Layout,
    BeforeValidator(lambda value: value if isinstance(value, Layout) else parse_layout(str(value))),
    PlainSerializer(str, return_type=str),
]
"""A layout in its notation: "tp8 pp4 dp2 mbs1"."""
Confidence = Annotated[float, Field(ge=EVEN, le=MOST_CONFIDENT, allow_inf_nan=False)]


def package_version() -> str:
    """Version of the installed package; a checkout that is only on the path has none."""
    try:
        return version("meshwright")
    except PackageNotFoundError:
        return "not installed"


class AnyPlan(Spec):
    """A question and its answer, everything needed to train with it; each family adds its own fields."""

    kind: str
    """The kind of plan file."""
    schema_version: int = PLAN_SCHEMA
    meshwright_version: str
    _ignored_facts: tuple[str, ...] = PrivateAttr(default=())

    def without_facts(self, ignored: Iterable[str]) -> Self:
        """The plan, whose notes name the facts of its file's stack that were ignored."""
        self._ignored_facts = tuple(ignored)
        return self

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the plan's file, a sentence each, without a full stop."""
        if not (names := self._ignored_facts):
            return ()
        listed = ", ".join(names[:_LISTED_FACTS]) + ", ..." * (len(names) > _LISTED_FACTS)
        return (
            f"{counted(len(names), 'fact')} of the plan's software stack no longer in use, ignored: {listed}",
        )

    @property
    def model_name(self) -> str:
        """The name of the model."""
        raise NotImplementedError

    @property
    def num_ranks(self) -> int:
        """Processes that train with it: a GPU each."""
        raise NotImplementedError

    @property
    def gpu(self) -> GpuSpec:
        """The GPU (or CPU) that the plan is for; with several pools, the one whose limits hold for all."""
        raise NotImplementedError

    @property
    def searched(self) -> bool:
        """Whether a search found it, so that it claims to be the best."""
        raise NotImplementedError

    def require_readable(self) -> None:
        """Check that its restrictions can be read. Raises InputError."""
        raise NotImplementedError

    def problems(self) -> list[Problem]:
        """Broken rules on its own cluster, and parts without a place."""
        raise NotImplementedError


def _rename_parts(parts: Any) -> Any:
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
    rank_memory: tuple[Annotated[dict[str, float], BeforeValidator(_rename_parts)], ...]
    """Bytes by part for each pipeline rank."""
    trust: str
    """Tier of the constants and the error it has shown."""

    @classmethod
    def of(cls, estimate: Estimate) -> Prediction:
        """An estimate as a plan file holds it."""
        names = [
            "step_seconds",
            "weighed_seconds",
            "mfu",
            "hfu",
            "tokens_per_second",
            "peak_bytes",
            "memory_limit",
        ]
        names += ["host_bytes", "host_limit"] if estimate.host_bytes else []
        names += ["drive_bytes", "drive_limit"] if estimate.drive_bytes else []
        return cls(
            **{name: getattr(estimate, name) for name in names},
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
    """Numbers of its GPUs to choose from."""
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


class PlanRestrictions(Spec):
    """Restrictions of the search, in the words of the command line."""

    fix: tuple[str, ...] = ()
    """`--fix`: "tp=8"."""
    forbid: tuple[str, ...] = ()
    """`--forbid`: "zero=3"."""
    allow: tuple[str, ...] = ()
    """`--allow`: "offload"."""
    max_memory: Bytes | None = None
    """`--max-memory`: bytes that a plan may fill of one device."""
    confidence: Confidence | None = None
    """Least probability of fitting that the layout was held to, where that is more than the plan's own `confidence`."""
    trainer: str | None = None
    """`--for`: the trainer whose rules the layout obeys."""

    @classmethod
    def of(cls, restrictions: Restrictions) -> PlanRestrictions:
        """The restrictions as a plan file holds them."""
        size = restrictions.max_memory
        return cls.model_validate(
            {
                "fix": restrictions.fix_words,
                "forbid": restrictions.forbid_words,
                "allow": tuple(sorted(restrictions.allowed)),
                "max_memory": None if size is None else f"{size!r} B",
                "confidence": restrictions.confidence,
                "trainer": restrictions.trainer,
            }
        )

    @property
    def read(self) -> Restrictions:
        """The restrictions as the search takes them; raises InputError where a word cannot be read."""
        read = parse_restrictions(
            self.fix, self.forbid, max_memory=self.max_memory, trainer=self.trainer, allow=self.allow
        )
        return replace(read, confidence=self.confidence)


class PlanChoice(Spec):
    """The choice of a layout in place of the fastest of its kind on paper, as the model cannot tell their steps
    apart."""

    first: LayoutText
    """The fastest of its kind on paper."""
    first_seconds: float = Field(gt=0, allow_inf_nan=False)
    """Its step on paper, seconds."""
    share: float = Field(ge=0, allow_inf_nan=False)
    """How far above it the layouts may lie that were compared."""
    layouts: int = Field(ge=1)
    """How many were."""
    middle_seconds: float = Field(gt=0, allow_inf_nan=False)
    """Mean step of the plan over the middle half of the scenarios: the least of them."""
    first_middle_seconds: float = Field(gt=0, allow_inf_nan=False)
    """The same of the fastest on paper."""


class PlanRecommendation(Spec):
    """Alternatives to a recommended layout when the plan was made; the plan's restrictions are those within which it is
    proved the fastest."""

    why: str
    """What layouts of its kind have in common; empty where it is the fastest of all."""
    asked: PlanRestrictions = PlanRestrictions()
    """Restrictions of the question, within which the fastest on paper was searched for."""
    top: int = Field(default=1, ge=1)
    """How many of the fastest were searched for."""
    fastest: LayoutText
    """The fastest on paper."""
    fastest_seconds: float = Field(gt=0, allow_inf_nan=False)
    fastest_weighed: float | None = None
    """What `risk` weighs of its step; None: the step on paper."""
    fastest_bytes: float = Field(gt=0, allow_inf_nan=False)
    chance: float = Field(ge=0, le=1)
    """Chance that it is faster than the plan."""
    risk: Risk = "none"
    """`--risk`: what layouts were compared by."""
    classical: LayoutText | None = None
    """What an expert would write down without a search."""
    classical_seconds: float | None = None
    choice: PlanChoice | None = Field(default=None, exclude_if=lambda choice: choice is None)
    """Why it is not the fastest of its kind on paper; written only where it is not."""


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
    def user_restrictions(self) -> Restrictions:
        """What the user fixed, forbade and allowed: a recommended layout keeps to more (`restrictions`)."""
        return (self.recommendation.asked if self.recommendation else self.restrictions).read

    @property
    def proved_seconds(self) -> float:
        """The step that its certificate is about: its own, or that of the fastest of its kind on paper."""
        if self.recommendation is not None and self.recommendation.choice is not None:
            return self.recommendation.choice.first_seconds
        return self.prediction.weighed_seconds or self.prediction.step_seconds

    @property
    def objective_name(self) -> ObjectiveName:
        """The objective that the plan was searched for."""
        return "time" if self.objective is None else self.objective.name

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
    same = ("model", "training", "stack", "confidence", "risk")
    return Plan(
        meshwright_version=package_version(),
        cluster=cluster,
        hardware=hardware,
        restrictions=PlanRestrictions.of(restrictions or Restrictions()),
        objective=objective,
        recommendation=recommendation,
        layout=estimate.layout,
        prediction=Prediction.of(estimate),
        certificate=certificate,
        **{name: getattr(question, name) for name in same},
    )
