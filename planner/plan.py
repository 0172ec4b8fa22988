"""Plan files, each with a question (all inputs), its layout, prediction and certificate of optimality; and a
cache of follow-up searches.

`AnyPlan` is the base of all families' plans; `Plan` is that of a transformer, with the records that its file
holds.

Plan files are YAML of one schema version. Reading one runs no code (safe YAML, then strict validation) and
checks its layout. The same query gives the same bytes, so a plan file holds no date and no duration of the
search. A saved plan is priced under the memory limit of its question, or under that of its restrictions.

The cache serves verbs that follow up on a plan: they price its stored layouts instead of searching again.
Each plan has a JSON file in the user's cache folder (`$XDG_CACHE_HOME/meshwright`, else
`~/.cache/meshwright`), named by a digest of question, restrictions, layout, and this version with its code
and data. Files are safe to delete; a missing, damaged or outdated one is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BeforeValidator, Discriminator, Field, PlainSerializer, PrivateAttr, Tag, model_validator

import cost_models
import planner
from cost_models.axes.layout import Layout, parse_layout
from cost_models.base import GpuCount, Spec
from cost_models.documents import Document
from cost_models.errors import InputError, Problem
from cost_models.estimate import Estimate
from cost_models.families import family_of_plan_kind, load
from cost_models.files.catalog import check_kind, validate
from cost_models.files.reading import read_document
from cost_models.files.whole import write_whole
from cost_models.pipeline.pricing import estimate
from cost_models.question import SHARED_PARTS, MeasuredStep, Question, parts_of, question_of_parts
from cost_models.risk import EVEN, MOST_CONFIDENT, Risk
from cost_models.specs.cluster import (
    AnyCluster,
    ClusterSpec,
    GpuSpec,
    MixedCluster,
    OperationsSpec,
    Precision,
)
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import DROPPED_FACTS, StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import Bytes, Seconds, counted
from planner.objectives import Certificate, Objective, ObjectiveName
from planner.rules.legality import check
from planner.space.restrictions import Restrictions, parse_restrictions

PLAN_SCHEMA = 1
_RENAMED = {"holes": "fragmentation"}
"""New name of each part of memory by its old name, to read plan files of earlier versions."""
_LISTED_FACTS = 3
"""Maximum number of ignored software-stack fields that a note names."""

_FROM_TEXT = BeforeValidator(lambda value: value if isinstance(value, Layout) else parse_layout(str(value)))
LayoutText = Annotated[Layout, _FROM_TEXT, PlainSerializer(str, return_type=str)]
"""Field type of a layout, written in its notation: "tp8 pp4 dp2 mbs1"."""
Confidence = Annotated[float, Field(ge=EVEN, le=MOST_CONFIDENT, allow_inf_nan=False)]


def package_version() -> str:
    """Version of the installed package, as text; "not installed" for a checkout on the path."""
    try:
        return version("meshwright")
    except PackageNotFoundError:
        return "not installed"


class AnyPlan(Spec):
    """Base class of plan files: a question and its answer, enough to train. Model families add fields."""

    kind: str
    """Kind of plan file, such as "plan" for transformers."""
    schema_version: int = PLAN_SCHEMA
    meshwright_version: str
    _ignored_facts: tuple[str, ...] = PrivateAttr(default=())

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on reading the plan file, such as ignored fields, each a sentence without a full stop."""
        if not (names := self._ignored_facts):
            return ()
        listed = ", ".join(names[:_LISTED_FACTS]) + ", ..." * (len(names) > _LISTED_FACTS)
        facts = f"{counted(len(names), 'fact')} of the plan's software stack no longer in use"
        return (f"{facts}, ignored: {listed}",)

    if TYPE_CHECKING:
        model: Any
        certificate: Any

    @property
    def question(self) -> Any:
        """Question (all inputs) that the plan answers."""
        raise NotImplementedError

    @property
    def model_name(self) -> str:
        """Name of the model that the plan trains."""
        return str(self.model.name)

    @property
    def num_ranks(self) -> int:
        """Number of processes that train the model, one per GPU."""
        raise NotImplementedError

    @property
    def gpu(self) -> GpuSpec:
        """GPU (or CPU) on which the plan runs; with several pools of GPUs, a GPU with the limits of all
        pools."""
        gpu: GpuSpec = self.question.cluster.gpu
        return gpu

    @property
    def searched(self) -> bool:
        """Whether a search chose the plan, so that it has a certificate and claims to be the best."""
        return self.certificate is not None

    def require_readable(self) -> None:
        """Raise InputError unless the restrictions stored in the plan can be parsed."""
        raise NotImplementedError

    def problems(self) -> list[Problem]:
        """Problems of the plan's layout, such as rules that it breaks on the plan's cluster."""
        raise NotImplementedError


def _rename_parts(parts: Any) -> Any:
    """Replace old names of parts of memory by the new names; values other than mappings stay."""
    if not isinstance(parts, dict):
        return parts
    return {_RENAMED.get(name, name): size for name, size in parts.items()}


def _unused_sizes(predicted: object) -> set[str]:
    """Names of the fields about host memory and drives that an estimate or prediction does not use."""
    tiers = [tier for tier in ("host", "drive") if getattr(predicted, f"{tier}_bytes", None) in (None, 0)]
    return {f"{tier}_{size}" for tier in tiers for size in ("bytes", "limit")}


class Prediction(Spec):
    """Predicted step time and memory of a plan; see `cost_models.estimate.Estimate` for the fields."""

    step_seconds: float = Field(gt=0, allow_inf_nan=False)
    weighed_seconds: float | None = None
    """Mean step seconds over scenarios under the plan's `risk`; None: layouts were compared by
    `step_seconds`."""
    mfu: float
    hfu: float
    tokens_per_second: float
    peak_bytes: float
    memory_limit: float
    host_bytes: float | None = None
    """Bytes of data offloaded to the memory of each host (node); None without offload."""
    host_limit: float | None = None
    """Memory of a host that offloaded data may use, bytes; None if unknown or unused."""
    drive_bytes: float | None = None
    """Bytes of optimizer states on the drive of each host (node); None without any."""
    drive_limit: float | None = None
    """Bytes of a host's drive that optimizer states may use; None if unknown or unused."""
    time: dict[str, float]
    """Name of a part of the step → seconds; the parts sum to `step_seconds`."""
    rank_memory: tuple[Annotated[dict[str, float], BeforeValidator(_rename_parts)], ...]
    """For each pipeline rank, name of a part of peak memory → bytes."""
    trust: str
    """Text on the reliability of the prediction: source of the constants, and their error against measured
    runs."""

    @classmethod
    def of(cls, estimate: Estimate) -> Prediction:
        """Convert an estimate to the form stored in a plan file."""
        fields = {name: getattr(estimate, name) for name in cls.model_fields}
        fields |= dict.fromkeys(_unused_sizes(estimate))
        memory = tuple(dict(rank) for rank in estimate.rank_memory)
        parts = {"time": dict(estimate.time), "rank_memory": memory, "trust": str(estimate.trust)}
        return cls(**fields | parts)


class PlanOffer(Spec):
    """Cluster offered for a plan, with numbers of GPUs and a price, as stored in a plan file."""

    cluster: ClusterSpec
    """Cluster on offer, of complete nodes."""
    hardware: HardwareProfile
    gpus: tuple[GpuCount, ...]
    """Numbers of this cluster's GPUs among which to choose."""
    price: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Dollars per GPU-hour; None if no price is given."""


class PlanObjective(Spec):
    """Objective of the search and its value for the plan, stored unless it is the fastest step on the
    cluster's GPUs."""

    name: ObjectiveName
    price: float | None = None
    """Dollars per GPU-hour; None if no price is given."""
    deadline: Seconds | None = None
    """Time within which training on all tokens must end; None: no deadline."""
    operations: OperationsSpec | None = None
    """Failures and restarts that lengthen training; None: they are not counted."""
    gpus: tuple[GpuCount, ...] = ()
    """Numbers of GPUs among which the search chose; the plan's cluster has the chosen one. Empty: no
    choice."""
    precisions: tuple[Precision, ...] = ()
    """Training precisions among which the search chose; the plan's training job has the chosen one. Empty: no
    choice."""
    gpus_per_node: GpuCount
    """GPUs of a complete node; the chosen number of GPUs may be part of a node."""
    offers: tuple[PlanOffer, ...] = ()
    """Clusters among which the search chose; the plan's own is the best, and its certificate covers only that
    cluster. Empty: no choice."""
    value: float
    """Value of the plan under the objective: seconds, a share, GPU-hours, dollars, bytes or a number of
    GPUs."""
    bound: float | None
    """Proven bound on the objective's value of every covered plan; None if nothing is proven."""

    @property
    def terms(self) -> Objective:
        """Convert the stored objective to the form that searches use."""
        return Objective(name=self.name, price=self.price, deadline=self.deadline, operations=self.operations)


class PlanRestrictions(Spec):
    """Restrictions of the search as stored in a plan file, in the words of the command line."""

    fix: tuple[str, ...] = ()
    """Words of `--fix`, such as "tp=8"."""
    forbid: tuple[str, ...] = ()
    """Words of `--forbid`, such as "zero=3"."""
    allow: tuple[str, ...] = ()
    """Words of `--allow`, such as "offload"."""
    max_memory: Bytes | None = None
    """Bytes of one device that a plan may use, from `--max-memory`; None: no limit but the device's."""
    confidence: Confidence | None = None
    """Minimum probability that the layout fits in memory, if higher than the plan's own `confidence`; else
    None."""
    trainer: str | None = None
    """Name of the trainer, from `--for`, whose rules the layout must obey; None: no trainer's."""

    @classmethod
    def of(cls, restrictions: Restrictions) -> PlanRestrictions:
        """Convert restrictions of a search to the form stored in a plan file."""
        size = restrictions.max_memory
        return cls(
            fix=restrictions.fix_words,
            forbid=restrictions.forbid_words,
            allow=tuple(sorted(restrictions.allowed)),
            max_memory=None if size is None else f"{size!r} B",  # type: ignore[arg-type]
            confidence=restrictions.confidence,
            trainer=restrictions.trainer,
        )

    @property
    def read(self) -> Restrictions:
        """Restrictions in the form that searches use, parsed from the stored texts."""
        words = {name: value for name, value in self if name != "confidence"}
        return replace(parse_restrictions(**words), confidence=self.confidence)


class PlanChoice(Spec):
    """Record of why a plan's layout was preferred to the layout with the fastest predicted step within its
    restrictions."""

    first: LayoutText
    """Layout with the fastest predicted step within the plan's restrictions."""
    first_seconds: float = Field(gt=0, allow_inf_nan=False)
    """Predicted step of layout `first`, seconds."""
    share: float = Field(ge=0, allow_inf_nan=False)
    """Maximum relative slowdown against `first` of the layouts that were compared."""
    layouts: int = Field(ge=1)
    """Number of layouts that were compared by scenarios (plausible sets of constants)."""
    middle_seconds: float = Field(gt=0, allow_inf_nan=False)
    """Interquartile mean of the plan's step over the scenarios, seconds: the least among the compared
    layouts."""
    first_middle_seconds: float = Field(gt=0, allow_inf_nan=False)
    """Interquartile mean of the step of layout `first` over the same scenarios, seconds."""


class PlanRecommendation(Spec):
    """Layouts with which a recommended layout was compared when the plan was made. The recommended layout is
    proved the fastest within the plan's own `restrictions`."""

    why: str
    """Common property of the simple layouts of which the plan's layout is the fastest; empty if it is the
    fastest of all layouts."""
    asked: PlanRestrictions = PlanRestrictions()
    """Restrictions that the user gave, within which the fastest layout was searched for."""
    top: int = Field(default=1, ge=1)
    """Number of fastest layouts that were searched for within the user's restrictions."""
    fastest: LayoutText
    """Layout with the fastest predicted step within the user's restrictions."""
    fastest_seconds: float = Field(gt=0, allow_inf_nan=False)
    fastest_weighed: float | None = None
    """Mean step seconds of `fastest` over scenarios under `risk`; None: layouts were compared by
    `fastest_seconds`."""
    fastest_bytes: float = Field(gt=0, allow_inf_nan=False)
    chance: float = Field(ge=0, le=1)
    """Probability that `fastest` is truly faster than the plan's layout."""
    risk: Risk = "none"
    """Risk under which step times were compared (`--risk`)."""
    classical: LayoutText | None = None
    """Layout that an expert would write down without a search; None if no such layout fits."""
    classical_seconds: float | None = None
    choice: PlanChoice | None = Field(default=None, exclude_if=lambda choice: choice is None)
    """Record of why the plan's layout is not the fastest within the plan's restrictions; None if it is."""


class PlanMeasured(Spec):
    """Step that the user measured of the layout that ran before the plan was made."""

    layout: LayoutText
    step_seconds: float = Field(gt=0, allow_inf_nan=False)


class Plan(AnyPlan):
    """Plan file of a transformer: question, layout, predicted step and memory, and certificate of optimality."""

    kind: Literal["plan"] = "plan"
    model: TransformerSpec
    cluster: AnyCluster
    training: TrainingSpec
    stack: StackSpec
    hardware: Annotated[
        Annotated[HardwareProfile, Tag("[one]")] | Annotated[tuple[HardwareProfile, ...], Tag("[pools]")],
        Discriminator(lambda value: "[pools]" if isinstance(value, (list, tuple)) else "[one]"),
    ]
    """Hardware profile (constants of a GPU and stack); with several pools of GPUs, one for each pool."""
    restrictions: PlanRestrictions = PlanRestrictions()
    """Restrictions within which the layout is claimed to be the best."""
    objective: PlanObjective | None = None
    """Objective of the search; None: the fastest step on all GPUs of the cluster."""
    recommendation: PlanRecommendation | None = None
    """Comparisons behind a recommended layout; None if the layout is simply the best by the objective."""
    layout: LayoutText
    """Layout with the number of `layers` and the `recompute` policy of every virtual stage."""
    prediction: Prediction
    certificate: Certificate | None = None
    """Proof of optimality; None for a layout that the user gave, without a search."""
    confidence: Confidence = EVEN
    """Minimum probability of fitting in memory (`--confidence`)."""
    risk: Risk = "none"
    """Risk under which step times were compared (`--risk`)."""
    measured: PlanMeasured | None = Field(default=None, exclude_if=lambda measured: measured is None)
    """Step that the user measured (`--measured`), which corrects expected steps; None: none."""

    @model_validator(mode="after")
    def _a_profile_for_each_pool(self) -> Plan:
        """Check that the plan has one hardware profile for each pool of its cluster."""
        pools = len(self.cluster.pools) if isinstance(self.cluster, MixedCluster) else None
        profiles = len(self.hardware) if isinstance(self.hardware, tuple) else None
        if pools != profiles:
            raise ValueError("`hardware` must hold one profile for each pool of the cluster")
        return self

    @property
    def question(self) -> Question:
        """Question (all inputs) that the plan answers."""
        shared = {name: getattr(self, name) for name in SHARED_PARTS}
        question = question_of_parts(self.cluster, self.hardware, **shared)
        if (run := self.measured) is None:
            return question
        measured = MeasuredStep(question=question, layout=str(run.layout), seconds=run.step_seconds)
        return replace(question, measured=measured)

    @property
    def user_restrictions(self) -> Restrictions:
        """Restrictions that the user gave for the search; the `restrictions` of a recommended layout are
        narrower."""
        return (self.recommendation.asked if self.recommendation else self.restrictions).read

    @property
    def proved_seconds(self) -> float:
        """Step seconds that the certificate proves minimal. They are the plan's, unless the plan was
        preferred to the faster layout `first`; then they are of `first`."""
        if self.recommendation is not None and self.recommendation.choice is not None:
            return self.recommendation.choice.first_seconds
        return self.prediction.weighed_seconds or self.prediction.step_seconds

    @property
    def objective_name(self) -> ObjectiveName:
        """Name of the search's objective; "time" if none is stored."""
        return "time" if self.objective is None else self.objective.name

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the plan's layout."""
        return self.layout.num_gpus

    def require_readable(self) -> None:
        _ = self.restrictions.read

    def problems(self) -> list[Problem]:
        # overflowing hosts are a verdict, as with the device
        problems = [Problem("", words.what) for words in check(self.question, self.layout, hosts=False)]
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
    """Create a plan from an estimated layout; without a certificate the layout was given by the user instead
    of searched."""
    (cluster, hardware), run = parts_of(question), question.measured
    return Plan(
        measured=None
        if run is None
        else PlanMeasured(layout=parse_layout(run.layout), step_seconds=run.seconds),
        meshwright_version=package_version(),
        cluster=cluster,
        hardware=hardware,
        restrictions=PlanRestrictions.of(restrictions or Restrictions()),
        objective=objective,
        recommendation=recommendation,
        layout=estimate.layout,
        prediction=Prediction.of(estimate),
        certificate=certificate,
        **{name: getattr(question, name) for name in SHARED_PARTS},
    )


P = TypeVar("P", bound=AnyPlan)

UNSAVED = {"top", "infeasible", "pruned", "solved", "undecided", "settled", "proved_by", "seconds"}
UNSAVED |= {"method", "solver"}
"""Certificate fields that plan files omit, and that are ignored in files of earlier versions: they describe
the course of the search."""

_HEADER = """\
# A Meshwright plan: inputs, layout, prediction and proof.
#   meshwright explain PLAN    why this layout
#   meshwright run PLAN        train it, and compare
"""


def plan_text(plan: AnyPlan) -> str:
    """YAML text of a plan file."""
    unused = _unused_sizes(getattr(plan, "prediction", None))
    fields = plan.model_dump(mode="json", exclude={"certificate": UNSAVED, "prediction": unused})
    return plan_yaml(_HEADER, fields)


def save_plan(plan: AnyPlan, path: str | Path) -> None:
    """Write a plan to a file, completely or not at all. Raises InputError if the path cannot be written."""
    write_plan(path, plan_text(plan))


def plan_yaml(header: str, fields: dict[str, Any]) -> str:
    """Text of a plan file in YAML: header comments, the fields, and YAML's end-of-document mark."""
    return header + yaml.safe_dump(fields, sort_keys=False, explicit_end=True, allow_unicode=True, width=120)


def write_plan(path: str | Path, text: str) -> None:
    """Write the text of a plan file to `path`, completely or not at all. Raises InputError if the path cannot
    be written."""
    try:
        write_whole(Path(path), text)
    except OSError as error:
        raise InputError(f"cannot write `{path}`: {(error.strerror or str(error)).lower()}") from None


def require_ended(document: Document) -> None:
    """Raise InputError for a truncated plan file, which lacks YAML's end-of-document mark."""
    if not document.ended:
        raise InputError(f"`{document.source}` is cut short: it does not end with `...`", hint="plan again")


def load_any_plan(path: str | Path) -> AnyPlan:
    """Read a plan file of any model family, and check its layout against the model, cluster and training job
    in the file.

    Raises:
        InputError: missing, no plan, of another schema version, cut short, or inconsistent; all problems at once.
    """
    document = read_document(path)
    return _require_legal(document, read_plan_in(document))


def load_plan(path: str | Path) -> Plan:
    """Read a plan file of a transformer, and check its layout; raises the errors of `load_any_plan`."""
    document = read_document(path)
    return _require_legal(document, _read_plan(document, Plan))


def _require_legal(document: Document, plan: P) -> P:
    """Raise InputError if the layout of a plan read from `document` breaks a rule; else return the plan."""
    if problems := plan.problems():
        place, headline = document.where(("layout",)), f"the layout of `{document.source}` cannot run"
        raise InputError(headline, problems=[Problem(place, problem.what) for problem in problems])
    return plan


def read_plan_in(document: Document) -> AnyPlan:
    """Convert a parsed plan file of any model family to a plan, without checking the layout. A file of an
    unknown kind is read as a transformer's plan, which reports the error.

    Raises:
        InputError: no plan, of another schema version or cut short; all problems at once.
    """
    kind = document.value.get("kind") if isinstance(document.value, dict) else None
    plan_type: type[AnyPlan] = load(family_of_plan_kind(kind).plan)
    return _read_plan(document, plan_type)


def without_dropped_facts(fields: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Remove software-stack fields that only earlier versions have from a plan file's fields; return the
    remaining fields and the removed names."""
    facts = fields.get("stack")
    if not isinstance(facts, dict):
        return fields, ()
    ignored = tuple(name for name in facts if name in DROPPED_FACTS)
    return fields | {"stack": {name: facts[name] for name in facts if name not in ignored}}, ignored


def _read_plan(document: Document, plan_type: type[P]) -> P:
    """Convert a parsed plan file to a plan of the type `plan_type`; raises the errors of `read_plan_in`."""
    check_kind(document, plan_type)
    written = document.value.get("schema_version")
    if written != PLAN_SCHEMA:
        text = "does not say its schema_version" if written is None else f"has schema_version {written!r:.20}"
        words = f"`{document.source}` {text}; this Meshwright ({package_version()}) reads {PLAN_SCHEMA}"
        raise InputError(words, hint="plan again with this version, or use the one that wrote the file")
    require_ended(document)
    fields, ignored = without_dropped_facts(document.value)
    if isinstance(proof := fields.get("certificate"), dict):
        fields = fields | {"certificate": {name: proof[name] for name in proof if name not in UNSAVED}}
    plan = validate(replace(document, value=fields), plan_type)
    plan._ignored_facts = ignored
    try:
        plan.require_readable()
    except InputError as error:
        problems = [Problem(document.where(("restrictions",)), str(one)) for one in error.problems]
        raise InputError(error.headline, problems=problems) from None
    return plan


def priced_again(plan: Plan, layout: Layout | None = None) -> Estimate:
    """Price the plan's layout, or the given `layout`, anew for the plan's question, under the user's memory
    limit."""
    return estimate(plan.question, layout or plan.layout).within(plan.user_restrictions.max_memory)


def priced_within_restrictions(plan: Plan) -> Estimate:
    """Price the plan's layout anew under the memory limit and the probability of fitting that its search
    used."""
    limits = plan.restrictions.read
    return estimate(limits.apply_confidence(plan.question), plan.layout).within(limits.max_memory)


MAX_FILES = 500
"""Maximum number of files in the cache folder; the oldest are removed first."""
_CACHE_KEY_FIELDS = {*SHARED_PARTS, "cluster", "hardware", "restrictions", "objective", "layout"}
"""Plan fields on which the layouts in its cache depend: a change of one invalidates them."""

SearchedLayouts = tuple[Sequence[Layout], bool]
"""Layouts that a search found, and whether it completed; results of interrupted searches are not stored."""


class PlanCache:
    """Cache file of one plan, with the layouts that follow-up searches found, by name of the search."""

    def __init__(self, plan: Plan) -> None:
        folder, self._layouts = cache_folder(), dict[str, tuple[Layout, ...]]()
        question = plan.model_dump_json(include=_CACHE_KEY_FIELDS)
        digest = hashlib.sha256(f"{_version()}\n{question}".encode()).hexdigest()[:32]
        self._path = None if folder is None else folder / f"{digest}.json"
        if self._path is not None:
            with suppress(OSError, ValueError, AttributeError, TypeError, RecursionError, InputError):
                stored = json.loads(self._path.read_text(encoding="utf-8"))
                read = {str(name): tuple(map(parse_layout, texts)) for name, texts in stored.items()}
                layouts = [layout for each in read.values() for layout in each]
                if not any(check(plan.question, layout, hosts=False) for layout in layouts):
                    self._layouts = read

    def layouts(self, name: str, search: Callable[[], SearchedLayouts]) -> tuple[Layout, ...]:
        """Layouts stored under a search's name; if there are none, run `search`, and store its layouts if it
        completes."""
        if name not in self._layouts:
            layouts, proved = search()
            if not proved:
                return tuple(layouts)
            self.store(name, layouts)
        return self._layouts[name]

    def store(self, name: str, layouts: Iterable[Layout]) -> None:
        """Store a search's layouts under its name, if files can be written, and remove the oldest files
        beyond `MAX_FILES`."""
        self._layouts[name] = tuple(layouts)
        if self._path is not None:
            texts = {key: [*map(str, each)] for key, each in self._layouts.items()}
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._path, json.dumps(texts, indent=1))
                files = sorted(self._path.parent.iterdir(), key=lambda path: path.stat().st_mtime)
                for path in files[:-MAX_FILES]:
                    path.unlink(missing_ok=True)


def cache_folder() -> Path | None:
    """Folder of Meshwright's cache files; None if the user has no home folder."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"
    except RuntimeError:
        return None


@cache
def _version() -> str:
    """Text that changes with the installed code: package version, and size and modification time of every
    file."""
    lines = [package_version()]
    for place in (*cost_models.__path__, *planner.__path__):
        for folder, folders, files in os.walk(place):
            folders[:] = [name for name in folders if name != "__pycache__"]
            with suppress(OSError):
                stats = {path: os.stat(path) for name in files if (path := os.path.join(folder, name))}
                lines += [f"{path} {one.st_size} {one.st_mtime_ns}" for path, one in stats.items()]
    return "\n".join(sorted(lines))
