"""Exporters of transformer plans: check the trainer's rules, export every field, write the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cost_models.errors import InfeasibleError, InputError, Problem
from cost_models.files.catalog import load_stack
from planner.formats import exporter as e
from planner.formats.table import table_of
from planner.formats.trainers import TRAINERS, refusals
from planner.plan import Plan

_MAX_NAMES = 4
_TASK = ("training.tuning", "training.reference", "training.reward")
"""Fields that define the task: a file without them would train something else, so --partly does not drop them."""
_TASK_HINT = "`--to axolotl` writes adapters; --task full plans what every trainer has"


@dataclass(frozen=True, slots=True)
class Target:
    """A trainer of transformers as an export format, with settings, text and usage notes."""

    name: str
    """Name of the exporter, and of the trainer in `planner.formats.trainers` whose rules apply."""
    full_name: str
    """Trainer and version, as people write them."""
    export: Callable[[e.JobExport], None]
    """Function that names the settings of fields that the table does not write."""
    facts: str
    """Names of the stack facts that those settings switch."""
    file: Callable[[e.Job, e.Settings, str], tuple[str, ...]]
    """Text of the file, then remarks on how to use it, given the settings and the name of the plan's file."""
    table: str = ""
    """Name of its table of arguments; empty: that of the exporter."""
    spelled: Callable[[e.Settings], str] = lambda settings: " ".join(
        f"{name}: {_value(value)}" for name, value in settings.items()
    )
    """Some settings in a line, as the trainer's users write them."""

    def write(self, plan: Plan, name: str, partly: bool) -> e.Exported:
        """Export a plan as the trainer's file.

        Raises:
            InputError: the plan is of a cluster of several pools, or trains what the file cannot say.
            InfeasibleError: the trainer refuses the layout, or has no settings for some of the plan.
        """
        if plan.question.has_pools:
            pools = ", ".join(f"`{name}`" for name in plan.question.pool_names)
            message = f"{self.full_name} cannot train on several kinds of GPU, and the plan has {pools}"
            raise InputError(message, hint="plan for one of them")
        job = e.Job(plan.question, plan.layout)
        self.require_allowed(job)
        fields = self.field_exports(job)
        lacking = [one for one in fields if one.verdict == "lacking"]
        if tasks := [one for one in lacking if one.field in _TASK]:
            task = "would train every parameter to predict the next token"
            message = f"what is written for {self.full_name} {task}"
            raise InputError(message, problems=_problems(tasks), hint=_TASK_HINT)
        if lacking and not partly:
            things = "one thing" if len(lacking) == 1 else f"{len(lacking)} things"
            only_stack = all(one.field.startswith("stack.") for one in lacking)
            hint = f"plan again with --for {self.name}, or " * only_stack + "--partly writes the rest"
            message = f"{self.full_name} cannot say {things} of `{name}`"
            raise InfeasibleError(message, problems=_problems(lacking), hint=hint)
        remarks = [_remark(one) for one in fields if one.verdict == "otherwise"]
        remarks += [f"not written: {problem}" for problem in _problems(lacking)]
        text, *usage = self.file(job, e.settings_of(fields), name)
        return e.Exported(text=text, remarks=(*remarks, *usage), fields=fields)

    def require_allowed(self, job: e.Job) -> None:
        """Raise InfeasibleError if the trainer cannot run the layout, by the rules of `--for`."""
        if problems := [Problem("", words.what) for words in refusals(self.name, job.question, job.layout)]:
            message = f"{self.full_name} does not start with `{job.layout.brief}`"
            raise InfeasibleError(message, problems=problems, hint=f"plan again with --for {self.name}")

    def field_exports(self, job: e.Job) -> tuple[e.FieldExport, ...]:
        """Export every plan field of a job as this trainer's settings."""
        export = e.JobExport(job)
        for argument in table_of(self.table or self.name).arguments.values():
            if argument.written:
                argument.export(export)
        self.export(export)
        return export.complete(self.facts.split(), load_stack(TRAINERS[self.name].stack))


def _problems(lacking: list[e.FieldExport]) -> list[Problem]:
    """One problem for each field that the trainer lacks; many stack facts are merged into one."""
    stack = [one for one in lacking if one.field.startswith("stack.")]
    single = [one for one in lacking if one not in stack] if len(stack) > _MAX_NAMES else lacking
    problems = [Problem(one.field, f"`{one.plan_value}`: {one.note}") for one in single]
    if len(stack) > _MAX_NAMES:
        names = ", ".join(one.field.removeprefix("stack.") for one in stack[:_MAX_NAMES])
        message = f"works otherwise in {len(stack)} ways ({names}, ..): prices are of another trainer"
        problems.append(Problem("stack", message))
    return problems


def _remark(export: e.FieldExport) -> str:
    settings = ", ".join(f"{name} {_value(value)}" for name, value in export.settings.items())
    setting_words = f"`{settings}`" if settings else "no setting"
    return f"{export.field} `{export.plan_value}` is {setting_words} there: {export.note}"


def _value(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
