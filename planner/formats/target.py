"""Exporters of transformer plans: check the trainer's rules, translate every field, write the file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cost_models.errors import InfeasibleError, InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.question import MixedQuestion
from planner.formats import exporter as e
from planner.formats.table import table_of
from planner.formats.trainers import refusals
from planner.plan import Plan

_MOST_NAMED = 4
_TASK = ("training.tuning", "training.reference", "training.reward")
"""Fields that say what is trained: a file without them would train something else, so no part of it will do."""
_TASK_HINT = "`--to axolotl` writes adapters; --task full plans what every trainer has"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A trainer of transformers that plans are exported to."""

    name: str
    """Of the exporter, and of the trainer in `planner.formats.trainers` whose rules it obeys."""
    called: str
    """The trainer with its version, as people write it."""
    stack: str
    """Catalogue name of the software stack that it runs."""
    table: str
    """Folder of the trainer's `arguments.csv`."""
    translated: Mapping[str, e.Translate]
    """Path of a field → its settings, for fields that the table does not write."""
    text: Callable[[e.Job, e.Settings, str], str]
    """Writes the file, given the settings and the name of the plan's file."""
    usage: Callable[[e.Job, str], tuple[str, ...]]
    """How to use the file."""
    spelled: Callable[[e.Settings], str] = lambda settings: " ".join(
        f"{name}: {_value(value)}" for name, value in settings.items()
    )
    """Some settings in a line, as the trainer's users write them."""

    @property
    def words(self) -> dict[str, e.Translate]:
        """Path of a field → its settings, for every field but facts of the stack that the trainer does not switch."""
        return {**e.EVERYWHERE, **table_of(self.table).words(), **self.translated}

    @property
    def exporter(self) -> e.Exporter:
        """As a line of the registry."""
        return e.Exporter(name=self.name, plan_kind="plan", noun="plans of transformers", write=self.write)

    def write(self, plan: Plan, name: str, partly: bool) -> e.Exported:
        """Write a plan as the trainer's file.

        Raises:
            InputError: the plan is of a cluster of several pools, or trains what the file cannot say.
            InfeasibleError: the trainer refuses the layout, or has no settings for some of the plan.
        """
        if isinstance(plan.question, MixedQuestion):
            pools = ", ".join(f"`{pool.name}`" for pool in plan.question.mixed.pools)
            raise InputError(
                f"{self.called} cannot train on several kinds of GPU, and the plan has {pools}",
                hint="plan for one of them",
            )
        job = e.Job(plan.question, plan.layout)
        self.require_allowed(job)
        fields = self.translations(job)
        lacking = [one for one in fields if one.word.lacking]
        if tasks := [one for one in lacking if one.field in _TASK]:
            what = f"what is written for {self.called} would train every parameter to predict the next token"
            raise InputError(what, problems=_problems(tasks), hint=_TASK_HINT)
        if lacking and not partly:
            only_stack = all(one.field.startswith("stack.") for one in lacking)
            raise InfeasibleError(
                f"{self.called} cannot say {_things(len(lacking))} of `{name}`",
                problems=_problems(lacking),
                hint=f"plan again with --for {self.name}, or --partly writes the rest"
                if only_stack
                else "--partly writes the rest",
            )
        remarks = [_remark(one) for one in fields if one.word.otherwise]
        remarks += [f"not written: {problem}" for problem in _problems(lacking)]
        return e.Exported(
            text=self.text(job, e.settings_of(fields), name),
            remarks=(*remarks, *self.usage(job, name)),
            fields=fields,
        )

    def require_allowed(self, job: e.Job) -> None:
        """Raise InfeasibleError where the trainer would not start with the layout: what `--for` refuses."""
        if refused := refusals(self.name, job.question, job.layout):
            raise InfeasibleError(
                f"{self.called} does not start with `{job.layout.brief}`",
                problems=[Problem("", words.what) for words in refused],
                hint=f"plan again with --for {self.name}",
            )

    def translations(self, job: e.Job) -> tuple[e.Translation, ...]:
        """Every field of a job with the trainer's settings."""
        return e.translated(self.words, job, load_stack(self.stack))


def _things(count: int) -> str:
    return "one thing" if count == 1 else f"{count} things"


def _problems(lacking: list[e.Translation]) -> list[Problem]:
    """One for each field; many facts of a stack together."""
    stack = [one for one in lacking if one.field.startswith("stack.")]
    apart = [one for one in lacking if one not in stack] if len(stack) > _MOST_NAMED else lacking
    found = [Problem(one.field, f"`{one.ours}`: {one.word.lacking}") for one in apart]
    if len(stack) > _MOST_NAMED:
        named = ", ".join(one.field.removeprefix("stack.") for one in stack[:_MOST_NAMED])
        what = f"works otherwise in {len(stack)} ways ({named}, ..): prices are of another trainer"
        found.append(Problem("stack", what))
    return found


def _remark(one: e.Translation) -> str:
    settings = ", ".join(f"{name} {_value(value)}" for name, value in one.word.settings.items())
    theirs = f"`{settings}`" if settings else "no setting"
    return f"{one.field} `{one.ours}` is {theirs} there: {one.word.otherwise}"


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
