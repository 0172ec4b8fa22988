"""What an exporter is: a trainer's settings for every field of a plan, and the file made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from cost_models.axes.layout import AXES, Layout
from cost_models.errors import InputError
from cost_models.pipeline.estimating import estimate
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

Settings = Mapping[str, Any]
"""Name of a setting in the trainer's file → its value."""
Verdict = Literal["expressed", "otherwise", "lacking"]
PARTS: dict[str, type] = {
    "layout": Layout,
    "training": TrainingSpec,
    "model": TransformerSpec,
    "stack": StackSpec,
}
"""Parts of a plan whose every field an exporter has to answer for."""
_ABOUT_STACKS = {
    "its name": "kind name family last_month source",
    "what it can run, which the rules of legality check": """
        zero_stages schedules axis_orders context_kinds expert_tensor_parallel hybrid_shard residencies overlaps
    """,
    "what its users do unless they say otherwise; a plan says it": """
        usual_zero_stage usual_degrees usual_recompute ends_count_as_blocks usually_splits_sequence
        usual_dropout places_blocks microbatches_per_stage_until loss_not_compiled
    """,
    "how well it is known": "memory_error mixture_memory_error",
    "how it runs recommenders": "recommender",
}
ABOUT_STACKS = frozenset(" ".join(_ABOUT_STACKS.values()).split())
"""Fields of a software stack that do not change how a transformer runs. All others are facts: exported by choosing a
trainer whose own stack has the same value, unless the exporter has a setting for it."""


class Job(NamedTuple):
    """What is exported: a question and the layout that answers it."""

    question: Question
    layout: Layout

    @property
    def model(self) -> TransformerSpec:
        return self.question.model

    @property
    def training(self) -> TrainingSpec:
        return self.question.training

    @property
    def stack(self) -> StackSpec:
        return self.question.stack

    def value(self, path: str) -> Any:
        """The value of a field, as `layout.tp`."""
        part, _, name = path.partition(".")
        return getattr(getattr(self, part), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a trainer's file says for one field."""

    settings: Settings = field(default_factory=dict)
    otherwise: str = ""
    """How its meaning differs, where it does."""
    lacking: str = ""
    """Why the trainer has no setting for it."""

    @property
    def verdict(self) -> Verdict:
        """Whether the trainer can express the field."""
        return "lacking" if self.lacking else "otherwise" if self.otherwise else "expressed"


Translate = Callable[[Job], Word]
"""The trainer's settings for one field of a job."""
NOTHING = Word()
"""No setting is needed: the trainer does it by default, or the field does not change a run."""


def says(**settings: Any) -> Word:
    """The field is these settings."""
    return Word(settings=settings)


def otherwise(how: str, **settings: Any) -> Word:
    """The field is these settings, which mean something slightly different."""
    return Word(settings=settings, otherwise=how)


def lacks(why: str) -> Word:
    """The trainer has no setting for the field."""
    return Word(lacking=why)


def nothing(job: Job) -> Word:
    """For a field that does not change a run, or that another field's settings express."""
    return NOTHING


def only(path: str, why: str, *values: Any) -> Translate:
    """For a field for which the trainer has these values alone, and needs no setting."""
    return lambda job: NOTHING if job.value(path) in values else lacks(why)


EVERYWHERE: dict[str, Translate] = {
    "layout.dp": nothing,  # what is left of the processes
    "layout.pools": only("layout.pools", "all its ranks are of one kind", ()),
    "layout.replicas": only("layout.replicas", "replicas take equal shares", ()),
    "training.kind": nothing,
    "training.recompute": nothing,  # what the search may use
    "training.lengths": lambda job: (
        NOTHING if job.training.lengths is None else otherwise("its own data makes sequences of documents")
    ),
    "training.answers": lambda job: (
        NOTHING
        if job.training.answers is None
        else otherwise("its own data says which tokens the loss counts")
    ),
    "training.reference": only("training.reference", "its reference model is not written", None),
    "training.reward": only("training.reward", "rewards are not written", False),
    "model.outputs": nothing,  # a part of rewards and of diffusion
    "model.diffusion": only("model.diffusion", "diffusion transformers are not written", None),
    "training.optimizer_in_backward": only(
        "training.optimizer_in_backward", "it updates after the backward pass", False
    ),
    "training.tuning": only("training.tuning", "its adapters are not written", None),
    "model.kind": nothing,
    "model.source": nothing,
    "model.changed": nothing,  # the other fields say what
    "model.recurrence": only("model.recurrence", "recurrences are not written", None),
    "model.stacks": only("model.stacks", "two stacks are not written", None),
    "training.target_length": nothing,  # a part of two stacks
    "model.tower": only("model.tower", "vision towers are not written", None),
    "training.images": nothing,  # a part of vision towers
    "training.freeze": only("training.freeze", "what is left frozen is not written", ()),
    "model.encoder": only("model.encoder", "encoders are not written", None),
    "model.mixers": nothing,  # a part of recurrences
    "model.separate_halves": only("model.separate_halves", "its blocks have both halves", False),
    "model.attention_gate": only("model.attention_gate", "gates on attention are not written", False),
    "stack.context_parallel": nothing,  # said with the layout's `context`
}
"""Fields that all trainers treat alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One field of a plan and the trainer's settings for it."""

    field: str
    ours: str
    word: Word

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "field": self.field,
            "ours": self.ours,
            "theirs": dict(self.word.settings),
            "verdict": self.word.verdict,
            "how": self.word.otherwise or self.word.lacking,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file of a trainer."""

    text: str
    remarks: tuple[str, ...] = ()
    """What the trainer expresses differently, what it lacks, and how to use the file."""
    fields: tuple[Translation, ...] = ()
    """Every field of the plan with the trainer's settings for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """Writes plans as one trainer's files."""

    name: str
    plan_kind: str
    """`kind` of the plan files that it takes."""
    noun: str
    """What those plans are: "shardings of recommenders"."""
    write: Callable[[Any, str, bool], Exported]
    """Writes a plan, given the name of its file, and whether a part of it is enough. Raises InputError for what the
    trainer cannot run, and InfeasibleError for what it has no settings for unless a part is enough; all problems at
    once."""


def every_field() -> Iterator[str]:
    """Paths of the fields that an exporter has to answer for."""
    for part, spec in PARTS.items():
        for name in spec.model_fields:  # type: ignore[attr-defined]
            if part != "stack" or name not in ABOUT_STACKS:
                yield f"{part}.{name}"


def translated(words: Mapping[str, Translate], job: Job, own: StackSpec) -> tuple[Translation, ...]:
    """Every field with the trainer's settings. A fact of the software stack without a setting is expressed by the
    choice of the trainer, where the trainer's `own` stack has the same value or this job costs the same with it."""
    theirs = {
        name: getattr(own, name)
        for part, name in (path.split(".") for path in every_field())
        if part == "stack"
        and f"stack.{name}" not in words
        and job.value(f"stack.{name}") != getattr(own, name)
    }
    idle = _without_effect(job, theirs)
    found = []
    for path in every_field():
        name = path.removeprefix("stack.")
        if path in words:
            word = words[path](job)
        elif name in theirs and name not in idle:
            word = lacks(f"`{own.name}` has {_shown(theirs[name])}")
        else:
            word = NOTHING
        found.append(Translation(field=path, ours=_ours(path, job.value(path)), word=word))
    return tuple(found)


def _without_effect(job: Job, theirs: Mapping[str, Any]) -> frozenset[str]:
    """Facts of the stack with which this job takes as long and needs as much memory: those of experts where a model has
    none, those of pipelines on one stage. None where they change it together."""

    def cost(names: Iterable[str]) -> tuple[float, float]:
        stack = job.stack.model_copy(update={name: theirs[name] for name in names})
        priced = estimate(replace(job.question, stack=stack), job.layout)
        return priced.step_seconds, priced.peak_bytes

    if not theirs:
        return frozenset()
    try:
        ours = cost(())
        idle = frozenset(name for name in theirs if cost((name,)) == ours)
        return idle if cost(idle) == ours else frozenset()
    except InputError:
        return frozenset()


def settings_of(translations: tuple[Translation, ...]) -> dict[str, Any]:
    """All settings. No two fields may set one name to different values."""
    settings: dict[str, Any] = {}
    for one in translations:
        for name, value in one.word.settings.items():
            assert settings.get(name, value) == value, (name, value, settings[name])
            settings[name] = value
    return settings


def nested(settings: Settings) -> dict[str, Any]:
    """Settings by their paths as the nested document of a file."""
    found: dict[str, Any] = {}
    for path, value in settings.items():
        *parts, last = path.split(".")
        place = found
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return found


def _ours(path: str, value: Any) -> str:
    part, _, name = path.partition(".")
    if part == "layout":
        return AXES[name].compare(name, value)
    return _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
