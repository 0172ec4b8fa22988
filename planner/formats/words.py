"""A trainer's words for the fields of a plan: settings of its file, other words for the same, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from cost_models.axes.layout import AXES, Layout
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.stack_facts import ABOUT_STACKS, FACTS

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


class Asked(NamedTuple):
    """What is to be exported."""

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

    def value(self, name: str) -> Any:
        """The value of a field, as `layout.tp`."""
        part, _, of = name.partition(".")
        return getattr(self.layout if part == "layout" else getattr(self, part), of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a trainer says for one field."""

    settings: Settings = field(default_factory=dict)
    otherwise: str = ""
    """How its words differ, where they do."""
    lacking: str = ""
    """Why it has none."""

    @property
    def verdict(self) -> Verdict:
        """Whether the trainer can say it."""
        return "lacking" if self.lacking else "otherwise" if self.otherwise else "expressed"


Translate = Callable[[Asked], Word]
"""The trainer's word for a field of what is exported."""
NOTHING = Word()
"""What the field says goes without saying, or says nothing of a run."""


def says(**settings: Any) -> Word:
    """The field is these settings."""
    return Word(settings=settings)


def otherwise(how: str, **settings: Any) -> Word:
    """The field is these settings, in other words."""
    return Word(settings=settings, otherwise=how)


def lacks(why: str) -> Word:
    """The trainer cannot say it."""
    return Word(lacking=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One field of a plan and the trainer's word for it."""

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


def every_field() -> Iterator[str]:
    """Fields that an exporter has to answer for, those of a stack that say nothing of a run left out."""
    for part, spec in PARTS.items():
        for name in spec.model_fields:  # type: ignore[attr-defined]
            if part != "stack" or name not in ABOUT_STACKS:
                yield f"{part}.{name}"


def translated(words: Mapping[str, Translate], asked: Asked, own: StackSpec) -> tuple[Translation, ...]:
    """Every field with the trainer's word. A fact of the software stack that no setting switches is said by taking the
    trainer, where the trainer's `own` stack has it so."""
    found = []
    for name in every_field():
        part, _, of = name.partition(".")
        value = asked.value(name)
        if name in words:
            word = words[name](asked)
        else:
            assert part == "stack", name
            assert of in FACTS, name
            theirs = getattr(own, of)
            word = NOTHING if value == theirs else lacks(f"`{own.name}` has {_shown(theirs)}")
        found.append(Translation(field=name, ours=_ours(name, value), word=word))
    return tuple(found)


def settings_of(translations: tuple[Translation, ...]) -> dict[str, Any]:
    """All settings, each said by one field alone or alike by all."""
    settings: dict[str, Any] = {}
    for one in translations:
        for name, value in one.word.settings.items():
            assert settings.get(name, value) == value, (name, value, settings[name])
            settings[name] = value
    return settings


def _ours(name: str, value: Any) -> str:
    part, _, of = name.partition(".")
    if part == "layout":
        return AXES[of].word.write(of, value) if value not in (None, False, ()) else f"no {of}"
    return _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
