"""What exporters of transformer plans share: the trainer's rules are asked, then its words, then its file written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.errors import InfeasibleError, InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.question import MixedQuestion
from planner.formats.exporter import Exported, Exporter
from planner.formats.trainers import TRAINERS, refusals
from planner.formats.words import Asked, Settings, Translate, Translation, settings_of, translated
from planner.plan import Plan

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A trainer of transformers as an exporter sees it."""

    name: str
    """Of the exporter; of a trainer of `planner.formats.trainers` too, whose rules it then obeys."""
    called: str
    """The trainer with its version, as people write it."""
    stack: str | None
    """Catalogue name of the software stack that it runs; None: it runs the plan's own."""
    words: Mapping[str, Translate]
    """Its word for every field, but for facts of the stack that it does not switch."""
    text: Callable[[Asked, Settings, str], str]
    """Its file, of settings and of the name of the plan's file."""
    usage: Callable[[Asked, str], tuple[str, ...]]
    """How to use the file."""

    @property
    def exporter(self) -> Exporter:
        """As a line of the registry."""
        return Exporter(name=self.name, plan_kind="plan", noun="plans of transformers", write=self.write)

    def write(self, plan: Plan, name: str, partly: bool) -> Exported:
        """A plan as the trainer's file.

        Raises:
            InputError: the plan is of a cluster of several pools.
            InfeasibleError: the trainer refuses the layout, or has no words for some of the plan.
        """
        if isinstance(plan.question, MixedQuestion):
            pools = ", ".join(f"`{pool.name}`" for pool in plan.question.mixed.pools)
            raise InputError(
                f"{self.called} cannot train on several kinds of GPU, and the plan has {pools}",
                hint="plan for one of them",
            )
        asked = Asked(plan.question, plan.layout)
        self.require_allowed(asked)
        fields = self.translations(asked)
        lacking = [one for one in fields if one.word.lacking]
        if lacking and not partly:
            raise InfeasibleError(
                f"{self.called} cannot say {_things(len(lacking))} of `{name}`",
                problems=_problems(lacking),
                hint=self._hint(lacking),
            )
        return Exported(
            text=self.text(asked, settings_of(fields), name),
            remarks=(*map(_remark, _other_words(fields)), *_left(lacking), *self.usage(asked, name)),
            fields=fields,
        )

    def require_allowed(self, asked: Asked) -> None:
        """Raise InfeasibleError where the trainer would not start with the layout: what `--for` refuses."""
        if self.name not in TRAINERS:
            return
        refused = refusals(self.name, asked.question, asked.layout)
        if refused:
            raise InfeasibleError(
                f"{self.called} does not start with `{asked.layout.brief}`",
                problems=[Problem("", words.what) for words in refused],
                hint=f"plan again with --for {self.name}",
            )

    def translations(self, asked: Asked) -> tuple[Translation, ...]:
        """Every field of what is asked with the trainer's word."""
        own = asked.stack if self.stack is None else load_stack(self.stack)
        return translated(self.words, asked, own)

    def _hint(self, lacking: list[Translation]) -> str:
        if self.stack is not None and all(one.field.startswith("stack.") for one in lacking):
            how = f"--for {self.name}" if self.name in TRAINERS else f"--stack {self.stack}"
            return f"plan again with {how}, or --partly writes the rest"
        return "--partly writes the rest"


def _things(count: int) -> str:
    return "one thing" if count == 1 else f"{count} things"


def _problems(lacking: list[Translation]) -> list[Problem]:
    """One for each field; many facts of a stack together."""
    stack = [one for one in lacking if one.field.startswith("stack.")]
    apart = [one for one in lacking if one not in stack] if len(stack) > _MOST_NAMED else lacking
    found = [Problem(one.field, f"`{one.ours}`: {one.word.lacking}") for one in apart]
    if len(stack) > _MOST_NAMED:
        named = ", ".join(one.field.removeprefix("stack.") for one in stack[:_MOST_NAMED])
        what = f"works otherwise in {len(stack)} ways ({named}, ..): prices are of another trainer"
        found.append(Problem("stack", what))
    return found


def _other_words(fields: tuple[Translation, ...]) -> list[Translation]:
    return [one for one in fields if one.word.otherwise]


def _remark(one: Translation) -> str:
    settings = ", ".join(f"{name} {_value(value)}" for name, value in one.word.settings.items())
    theirs = f"`{settings}`" if settings else "no setting"
    return f"{one.field} `{one.ours}` is {theirs} there: {one.word.otherwise}"


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _left(lacking: list[Translation]) -> list[str]:
    return [f"not written: {problem}" for problem in _problems(lacking)]
