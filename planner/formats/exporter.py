"""Exporters: a trainer's settings for every field of a plan, and the file made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from cost_models.axes.layout import AXES, Layout
from cost_models.base import Spec
from cost_models.errors import InputError
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

Settings = Mapping[str, Any]
"""Name of a setting in the trainer's file → its value."""
NOTHING: Settings = MappingProxyType({})
Verdict = Literal["expressed", "otherwise", "lacking"]
PARTS: dict[str, type[Spec]] = {"layout": Layout, "training": TrainingSpec, "model": TransformerSpec}
PARTS["stack"] = StackSpec
"""Parts of a plan whose every field an exporter has to answer for."""
_ABOUT_STACKS = """
    kind name family last_month source
    zero_stages schedules axis_orders context_kinds expert_tensor_parallel hybrid_shard residencies overlaps
    usual_zero_stage usual_degrees usual_recompute ends_count_as_blocks usually_splits_sequence usual_dropout
    places_blocks microbatches_per_stage_until loss_not_compiled
    memory_error mixture_memory_error recommender
"""
ABOUT_STACKS = frozenset(_ABOUT_STACKS.split())
"""Fields of a software stack that do not change how a transformer runs: its name, what it can run (which rules of
legality check), what its users do unless they say otherwise (a plan says it), how well it is known, and how it runs
recommenders. All others are facts: exported by choosing a trainer whose own stack has the same value, unless the
exporter has a setting for it."""


class Job:
    """A training question (model, cluster, training, stack) and the layout to export for it."""

    def __init__(self, question: Question, layout: Layout) -> None:
        self.question, self.layout = question, layout
        self.model, self.training, self.stack = question.model, question.training, question.stack
        self.context = (layout.context or self.stack.context_parallel) if layout.cp > 1 else ""
        """Kind of context parallelism (layout's, else the stack's default); empty if cp = 1."""

    def value(self, path: str) -> Any:
        """The value of a plan field by its dotted path, such as `layout.tp`."""
        return attrgetter(path)(self)


class FieldExport(NamedTuple):
    """One field of a plan, its value, and the trainer's settings for it or the reason why there are none."""

    field: str
    """Dotted path, such as `layout.tp`."""
    plan_value: str
    settings: Settings
    """Empty where the trainer does it by default, another field's settings say it, or it changes no run."""
    verdict: Verdict = "expressed"
    """Whether the trainer can express the plan field ("expressed", "otherwise" with another meaning, or
    "lacking")."""
    note: str = ""
    """Difference in meaning, or reason why the trainer has no setting for it."""

    def record(self) -> dict[str, Any]:
        """The export of the field as a dictionary for JSON output."""
        return dict(zip(("field", "ours", "theirs", "verdict", "how"), self, strict=True))


_NOT_WRITTEN = {"training.reward": "rewards", "model.recurrence": "recurrences", "model.stacks": "two stacks"}
_NOT_WRITTEN |= {"model.diffusion": "diffusion transformers", "model.tower": "vision towers"}
_NOT_WRITTEN |= {"model.encoder": "encoders", "model.attention_gate": "gates on attention"}
"""Field that no exporter writes → what it says, where it is set."""
_COMMON_LIMITS: Mapping[str, tuple[Any, ...]] = {
    **{path: (f"{things} are not written", None, False) for path, things in _NOT_WRITTEN.items()},
    "layout.pools": ("all its ranks are of one kind", ()),
    "layout.replicas": ("replicas take equal shares", ()),
    "training.reference": ("its reference model is not written", None),
    "training.optimizer_in_backward": ("it updates after the backward pass", False),
    "training.tuning": ("its adapters are not written", None),
    "training.freeze": ("what is left frozen is not written", ()),
    "model.separate_halves": ("its blocks have both halves", False),
}
"""Fields of which all trainers support some values alone: the reason, and the values."""
_OWN_DATA: Mapping[str, tuple[Any, ...]] = {
    "training.lengths": ("its own data makes sequences of documents", None),
    "training.answers": ("its own data says which tokens the loss counts", None),
}


class JobExport:
    """Settings of one job's fields, as the functions of a trainer name them.

    A later answer for a field replaces an earlier one. A field without an answer needs no setting: the trainer does it
    by default, its rules or another field's settings decide it, or it changes no run; a test prices changes of every
    field to see that.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.fields: dict[str, FieldExport] = {}
        self.supports(_COMMON_LIMITS)
        self.supports(_OWN_DATA, "otherwise")
        self.sets("stack.context_parallel")  # said with the layout's `context`

    def sets(
        self, path: str, settings: Settings = NOTHING, *, differs: str = "", when: object = True, **more: Any
    ) -> None:
        """Express a plan field by trainer settings `when` they apply; `differs` says how their meaning differs."""
        if when:
            self._answer(path, {**settings, **more}, "otherwise" if differs else "expressed", differs)

    def lacks(self, path: str, reason: str, *, when: object = True) -> None:
        """Name a plan field for whose value the trainer has no setting, `when` that holds."""
        if when:
            self._answer(path, {}, "lacking", reason)

    def supports(self, limits: Mapping[str, tuple[Any, ...]], otherwise: Verdict = "lacking") -> None:
        """Name the plan fields whose value the trainer does not support, or has with another meaning.

        `limits` are path → (reason, supported value, ..); supported values need no setting.
        """
        for path, (reason, *values) in limits.items():
            if self.job.value(path) not in values:
                self._answer(path, {}, otherwise, reason)

    def choose(self, path: str, value: Any, choices: Mapping[Any, Settings], reason: str) -> None:
        """Express a plan field by a table, value → settings; a value outside is lacking for the reason."""
        self.sets(path, choices.get(value, NOTHING))
        self.lacks(path, reason, when=value not in choices)

    def _answer(self, path: str, settings: Settings, verdict: Verdict, note: str) -> None:
        part, _, name = path.partition(".")
        value = self.job.value(path)
        words = AXES[name].compare(name, value) if part == "layout" else value_text(value)
        self.fields[path] = FieldExport(path, words, settings, verdict, note)

    def complete(self, facts: Iterable[str], trainer_stack: StackSpec) -> tuple[FieldExport, ...]:
        """Answers for all fields of the plan, in order.

        A fact of the software stack without an answer, and not among the `facts` that the trainer switches, is
        expressed by the choice of the trainer, where `trainer_stack` has the same value or this job costs the same.
        """
        trainer_facts = {
            name: getattr(trainer_stack, name)
            for name in StackSpec.model_fields.keys() - ABOUT_STACKS - {*facts}
            if f"stack.{name}" not in self.fields
            and getattr(self.job.stack, name) != getattr(trainer_stack, name)
        }
        for name in _with_effect(self.job, trainer_facts) if trainer_facts else ():
            self.lacks(f"stack.{name}", f"`{trainer_stack.name}` has {value_text(trainer_facts[name])}")
        paths = field_paths()
        for path in set(paths) - self.fields.keys():
            self.sets(path)
        return tuple(self.fields[path] for path in paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The text of an exported trainer file, with remarks and the export of every plan field."""

    text: str
    remarks: tuple[str, ...] = ()
    """Differences of meaning, missing settings, and how to use the file."""
    fields: tuple[FieldExport, ...] = ()
    """Every field of the plan with the trainer's settings for it."""


class Exporter(NamedTuple):
    """A trainer that plans of one kind can be exported to, with the function that writes the file."""

    write: Callable[[Any, str, bool], Exported]
    """Function that writes a plan, given the name of its file, and whether a part of it is enough. Raises InputError
    for a plan that the trainer cannot run, and InfeasibleError for fields without settings unless a part is enough;
    all problems at once."""
    plan_kind: str = "plan"
    """`kind` of the plan files that it takes."""
    noun: str = "plans of transformers"
    """Noun for those plans: "shardings of recommenders"."""


def field_paths() -> list[str]:
    """Dotted paths of all plan fields that an exporter answers for, in order."""
    paths = (f"{part}.{name}" for part, spec in PARTS.items() for name in spec.model_fields)
    return [path for path in paths if path.removeprefix("stack.") not in ABOUT_STACKS]


def _with_effect(job: Job, trainer_facts: Mapping[str, Any]) -> Iterable[str]:
    """Names of stack facts in which plan and trainer differ, but for those with which the trainer's values give this
    job the same step time and memory; all names if together they change either."""

    def cost(names: Iterable[str]) -> tuple[float, float]:
        stack = job.stack.model_copy(update={name: trainer_facts[name] for name in names})
        priced = estimate(replace(job.question, stack=stack), job.layout)
        return priced.step_seconds, priced.peak_bytes

    try:
        unchanged_cost = cost(())
        idle = {name for name in trainer_facts if cost((name,)) == unchanged_cost}
        return trainer_facts.keys() - (idle if cost(idle) == unchanged_cost else ())
    except InputError:
        return trainer_facts


def settings_of(fields: tuple[FieldExport, ...]) -> dict[str, Any]:
    """Merge the trainer settings of all exported fields. No two fields may set one name to different
    values."""
    pairs = [pair for export in fields for pair in export.settings.items()]
    settings = dict(pairs)
    assert all(settings[name] == value for name, value in pairs), pairs
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


def value_text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
