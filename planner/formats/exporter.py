"""Exporters: a trainer's settings for every field of a plan, and the file made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from cost_models.axes.layout import AXES, Layout
from cost_models.errors import InputError
from cost_models.pipeline.pricing import estimate
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
    """A training question (model, cluster, training, stack) and the layout to export for it."""

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

    @property
    def context(self) -> str:
        """Kind of context parallelism (layout's, else the stack's default); empty if cp = 1."""
        return (self.layout.context or self.stack.context_parallel) if self.layout.cp > 1 else ""

    def value(self, path: str) -> Any:
        """The value of a plan field by its dotted path, such as `layout.tp`."""
        return attrgetter(path)(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldExport:
    """Trainer settings for one plan field, or the reason why there are none."""

    settings: Settings = field(default_factory=dict)
    difference: str = ""
    """Difference in meaning; empty where there is none."""
    lacking: str = ""
    """Reason why the trainer has no setting for it; empty where it has."""

    @property
    def verdict(self) -> Verdict:
        """Whether the trainer can express the plan field ("expressed", "otherwise" with another meaning, or
        "lacking")."""
        return "lacking" if self.lacking else "otherwise" if self.difference else "expressed"


Translate = Callable[[Job], FieldExport]
"""The trainer's settings for one field of a job."""
NO_SETTING = FieldExport()
"""No setting is needed: the trainer does it by default, or the field does not change a run."""


def sets(**settings: Any) -> FieldExport:
    """Export of a plan field by trainer settings that mean the same."""
    return FieldExport(settings=settings)


def differs(how: str, **settings: Any) -> FieldExport:
    """Export of a plan field by trainer settings that mean something slightly different."""
    return FieldExport(settings=settings, difference=how)


def lacks(reason: str) -> FieldExport:
    """Export of a plan field for which the trainer has no setting, with the reason."""
    return FieldExport(lacking=reason)


def no_setting(job: Job) -> FieldExport:
    """Export without a setting, for a field that does not change a run or that another field's settings
    cover."""
    return NO_SETTING


def supports_only(
    fields: Mapping[str, tuple[Any, ...]], other: Callable[[str], FieldExport] = lacks
) -> dict[str, Translate]:
    """Translations of plan fields of which the trainer supports only some values, without a setting.

    `fields` are path → (reason, value, ..); any other value is `other`, for that reason.
    """

    def export(path: str, job: Job) -> FieldExport:
        reason, *values = fields[path]
        return NO_SETTING if job.value(path) in values else other(reason)

    return {path: partial(export, path) for path in fields}


def by_value(path: str, choices: Mapping[Any, Settings], reason: str) -> Translate:
    """Translation of a plan field by a table, value → settings; values outside are reported as lacking
    (`{value}` in the reason)."""

    def export(job: Job) -> FieldExport:
        value = job.value(path)
        return FieldExport(settings=choices[value]) if value in choices else lacks(reason.format(value=value))

    return export


COMMON_FIELDS: dict[str, Translate] = {
    "layout.dp": no_setting,  # what is left of the processes
    **supports_only(
        {
            "layout.pools": ("all its ranks are of one kind", ()),
            "layout.replicas": ("replicas take equal shares", ()),
            "training.reference": ("its reference model is not written", None),
            "training.reward": ("rewards are not written", False),
            "model.diffusion": ("diffusion transformers are not written", None),
            "training.optimizer_in_backward": ("it updates after the backward pass", False),
            "training.tuning": ("its adapters are not written", None),
            "model.recurrence": ("recurrences are not written", None),
            "model.stacks": ("two stacks are not written", None),
            "model.tower": ("vision towers are not written", None),
            "training.freeze": ("what is left frozen is not written", ()),
            "model.encoder": ("encoders are not written", None),
            "model.separate_halves": ("its blocks have both halves", False),
            "model.attention_gate": ("gates on attention are not written", False),
        }
    ),
    "training.kind": no_setting,
    "training.recompute": no_setting,  # what the search may use
    **supports_only(
        {
            "training.lengths": ("its own data makes sequences of documents", None),
            "training.answers": ("its own data says which tokens the loss counts", None),
        },
        differs,
    ),
    "model.outputs": no_setting,  # a part of rewards and of diffusion
    "model.kind": no_setting,
    "model.source": no_setting,
    "model.changed": no_setting,  # the other fields say what
    "training.target_length": no_setting,  # a part of two stacks
    "training.images": no_setting,  # a part of vision towers
    "model.mixers": no_setting,  # a part of recurrences
    "stack.context_parallel": no_setting,  # said with the layout's `context`
}
"""Fields that all trainers treat alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One field of a plan, its value, and the trainer's settings for it."""

    field: str
    plan_value: str
    export: FieldExport

    def record(self) -> dict[str, Any]:
        """The translation as a dictionary for JSON output."""
        return {
            "field": self.field,
            "ours": self.plan_value,
            "theirs": dict(self.export.settings),
            "verdict": self.export.verdict,
            "how": self.export.difference or self.export.lacking,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The text of an exported trainer file, with remarks and the translation of every plan field."""

    text: str
    remarks: tuple[str, ...] = ()
    """Differences of meaning, missing settings, and how to use the file."""
    fields: tuple[Translation, ...] = ()
    """Every field of the plan with the trainer's settings for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A trainer that plans of one kind can be exported to, with the function that writes the file."""

    name: str
    plan_kind: str
    """`kind` of the plan files that it takes."""
    noun: str
    """Noun for those plans: "shardings of recommenders"."""
    write: Callable[[Any, str, bool], Exported]
    """Function that writes a plan, given the name of its file, and whether a part of it is enough. Raises InputError
    for a plan that the trainer cannot run, and InfeasibleError for fields without settings unless a part is enough;
    all problems at once."""


def field_paths() -> Iterator[str]:
    """Yield the dotted path of every plan field that an exporter has to translate."""
    for part, spec in PARTS.items():
        for name in spec.model_fields:  # type: ignore[attr-defined]
            if part != "stack" or name not in ABOUT_STACKS:
                yield f"{part}.{name}"


def translated(
    exports: Mapping[str, Translate], job: Job, trainer_stack: StackSpec
) -> tuple[Translation, ...]:
    """Translate every plan field of a job into the trainer's settings. A fact of the software stack without a
    setting is expressed by the choice of the trainer, where `trainer_stack` has the same value or this job
    costs the same with it."""
    trainer_facts = {
        name: getattr(trainer_stack, name)
        for part, name in (path.split(".") for path in field_paths())
        if part == "stack"
        and f"stack.{name}" not in exports
        and job.value(f"stack.{name}") != getattr(trainer_stack, name)
    }
    idle = _without_effect(job, trainer_facts)
    translations = []
    for path in field_paths():
        name = path.removeprefix("stack.")
        if path in exports:
            export = exports[path](job)
        elif name in trainer_facts and name not in idle:
            export = lacks(f"`{trainer_stack.name}` has {value_text(trainer_facts[name])}")
        else:
            export = NO_SETTING
        translations.append(
            Translation(field=path, plan_value=_plan_words(path, job.value(path)), export=export)
        )
    return tuple(translations)


def _without_effect(job: Job, trainer_facts: Mapping[str, Any]) -> frozenset[str]:
    """Names of stack facts in which plan and trainer differ, though the trainer's value gives this job the
    same step time and memory. Empty if together they change either."""

    def cost(names: Iterable[str]) -> tuple[float, float]:
        stack = job.stack.model_copy(update={name: trainer_facts[name] for name in names})
        priced = estimate(replace(job.question, stack=stack), job.layout)
        return priced.step_seconds, priced.peak_bytes

    if not trainer_facts:
        return frozenset()
    try:
        unchanged_cost = cost(())
        idle = frozenset(name for name in trainer_facts if cost((name,)) == unchanged_cost)
        return idle if cost(idle) == unchanged_cost else frozenset()
    except InputError:
        return frozenset()


def settings_of(translations: tuple[Translation, ...]) -> dict[str, Any]:
    """Merge the trainer settings of all translated fields. No two fields may set one name to different
    values."""
    settings: dict[str, Any] = {}
    for translation in translations:
        for name, value in translation.export.settings.items():
            assert settings.get(name, value) == value, (name, value, settings[name])
            settings[name] = value
    return settings


def nested(settings: Settings) -> dict[str, Any]:
    """Turn settings by dotted path into a nested document."""
    document: dict[str, Any] = {}
    for path, value in settings.items():
        *parts, last = path.split(".")
        place = document
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return document


def _plan_words(path: str, value: Any) -> str:
    part, _, name = path.partition(".")
    if part == "layout":
        return AXES[name].compare(name, value)
    return value_text(value)


def value_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
