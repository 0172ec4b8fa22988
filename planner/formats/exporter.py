"""Export of plans to a trainer's file: settings for every field of a plan, the trainer's rules, and the text
of the file. Also comparison of a plan with the sizes in a trainer's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cost_models.axes.layout import AXES, Layout
from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.errors import InfeasibleError, InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import grouped
from planner.formats.settings import Argument, table_of
from planner.formats.trainers import TRAINERS, refusals
from planner.plan import Plan

if TYPE_CHECKING:
    from cost_models.measured.logs import Log

Written = Mapping[str, Any]
"""Settings of a trainer's file: value by name."""
NOTHING: Written = MappingProxyType({})
Verdict = Literal["expressed", "otherwise", "lacking"]
PARTS: dict[str, type[Spec]] = {"layout": Layout, "training": TrainingSpec, "model": TransformerSpec}
PARTS["stack"] = StackSpec
"""Parts of a plan for each of whose fields an exporter states its settings."""
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
        """Value of a plan field by its dotted path, such as `layout.tp`."""
        return attrgetter(path)(self)


class FieldExport(NamedTuple):
    """Export of one plan field: its value, and the trainer's settings for it or the reason why there are
    none."""

    field: str
    """Dotted path, such as `layout.tp`."""
    plan_value: str
    settings: Written
    """Settings; empty if the trainer does it by default, another field's settings say it, or no run depends on it."""
    verdict: Verdict = "expressed"
    """Whether the trainer can express the plan field ("expressed", "otherwise" with another meaning, or
    "lacking")."""
    note: str = ""
    """Difference in meaning, or reason why the trainer has no setting for it."""

    def record(self) -> dict[str, Any]:
        """Export of the field as a dictionary for JSON output."""
        return dict(zip(("field", "ours", "theirs", "verdict", "how"), self, strict=True))


_NOT_WRITTEN = {"training.reward": "rewards", "model.recurrence": "recurrences", "model.stacks": "two stacks"}
_NOT_WRITTEN |= {"model.diffusion": "diffusion transformers", "model.tower": "vision towers"}
_NOT_WRITTEN |= {"model.encoder": "encoders", "model.attention_gate": "gates on attention"}
"""Name of the feature that each plan field switches on, for fields that no exporter writes."""
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
"""Reason and supported values of each plan field for which trainers do not support all values, by field."""
_OWN_DATA: Mapping[str, tuple[Any, ...]] = {
    "training.lengths": ("its own data makes sequences of documents", None),
    "training.answers": ("its own data says which tokens the loss counts", None),
}


class JobExport:
    """Export of one job to a trainer's settings, built field by field.

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
        self, path: str, settings: Written = NOTHING, *, differs: str = "", when: object = True, **also: Any
    ) -> None:
        """Record that trainer settings express a plan field, if `when` is true; `differs`, if given, says how
        the trainer's meaning differs."""
        if when:
            self._answer(path, {**settings, **also}, "otherwise" if differs else "expressed", differs)

    def lacks(self, path: str, reason: str, *, when: object = True) -> None:
        """State that the trainer has no setting for the value of a plan field, if `when` is true."""
        if when:
            self._answer(path, {}, "lacking", reason)

    def supports(self, limits: Mapping[str, tuple[Any, ...]], otherwise: Verdict = "lacking") -> None:
        """Report each plan field in `limits` whose value the trainer does not support, with the verdict
        `otherwise`.

        `limits` has a reason and the supported values of each field, by path; supported values need no setting.
        """
        for path, (reason, *values) in limits.items():
            if self.job.value(path) not in values:
                self._answer(path, {}, otherwise, reason)

    def argument(self, argument: Argument) -> None:
        """Express a plan field by the trainer's argument for it."""
        path = argument.field.removeprefix("not ")
        plan_value = self.job.value(path)
        value = argument.trainer_value(plan_value)
        is_idle = "mixtures" in argument.written and not self.job.model.has_experts
        is_idle |= "changed" in argument.written and value == argument.default
        self.sets(path, {} if is_idle else {argument.name: value})
        is_unknown = argument.values and plan_value not in argument.values
        self.lacks(path, f"it has no {plan_value}", when=is_unknown)

    def choose(self, path: str, value: Any, choices: Mapping[Any, Written], reason: str) -> None:
        """Express a plan field by the settings that `choices` lists for its value. A value that is not listed
        is reported as lacking, with the reason."""
        self.sets(path, choices.get(value, NOTHING))
        self.lacks(path, reason, when=value not in choices)

    def _answer(self, path: str, settings: Written, verdict: Verdict, note: str) -> None:
        """Record the settings, verdict and note of a plan field."""
        part, _, name = path.partition(".")
        value = self.job.value(path)
        words = AXES[name].compare(name, value) if part == "layout" else value_text(value)
        self.fields[path] = FieldExport(path, words, settings, verdict, note)

    def complete(self, facts: Iterable[str], trainer_stack: StackSpec) -> tuple[FieldExport, ...]:
        """Exports of all plan fields, in order.

        A fact of the software stack that has no export so far, and is not among the `facts` that settings switch, is
        expressed by the choice of the trainer, where `trainer_stack` has the same value or this job costs the same.
        """
        stack, fact_names = self.job.stack, StackSpec.model_fields.keys() - ABOUT_STACKS - {*facts}
        unanswered = [name for name in fact_names if f"stack.{name}" not in self.fields]
        trainer_values = {name: getattr(trainer_stack, name) for name in unanswered}
        trainer_facts = {name: fact for name, fact in trainer_values.items() if getattr(stack, name) != fact}
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
    """Trainer to which plans of one kind can be exported, with the function that writes the file."""

    write: Callable[[Any, str, bool], Exported]
    """Function that writes a plan, given the name of its file, and whether a part of it is enough. Raises InputError
    for a plan that the trainer cannot run, and InfeasibleError for fields without settings unless a part is enough;
    all problems at once."""
    plan_kind: str = "plan"
    """`kind` of the plan files that it takes."""
    noun: str = "plans of transformers"
    """Noun for those plans: "shardings of recommenders"."""


def field_paths() -> list[str]:
    """Dotted paths of all plan fields that an exporter exports, in order."""
    paths = (f"{part}.{name}" for part, spec in PARTS.items() for name in spec.model_fields)
    return [path for path in paths if path.removeprefix("stack.") not in ABOUT_STACKS]


def _with_effect(job: Job, trainer_facts: Mapping[str, Any]) -> Iterable[str]:
    """Names of stack facts of the trainer that change step time or memory of this job, alone or together."""

    def cost(names: Iterable[str]) -> tuple[float, float]:
        """Step seconds and peak bytes with the named facts taken from the trainer."""
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
    """Trainer settings of all exported fields together. Two fields may not set a name to different values."""
    pairs = [pair for export in fields for pair in export.settings.items()]
    settings = dict(pairs)
    assert all(settings[name] == value for name, value in pairs), pairs
    return settings


def nested(settings: Written) -> dict[str, Any]:
    """Nested document of settings that are given by dotted path."""
    document: dict[str, Any] = {}
    for path, value in settings.items():
        *parts, last = path.split(".")
        place = document
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = value
    return document


def value_text(value: Any) -> str:
    """Text of a plan field's value, such as "yes", "none" or "1, 2"."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


_MAX_NAMES = 4
_TASK = ("training.tuning", "training.reference", "training.reward")
"""Fields that define the task: a file without them would train something else, so --partly does not drop them."""
_TASK_HINT = "`--to axolotl` writes adapters; --task full plans what every trainer has"


@dataclass(frozen=True, slots=True)
class Target:
    """Transformer trainer as an export format: its settings, file text and usage notes."""

    name: str
    """Name of the exporter, and of the trainer in `planner.formats.trainers` whose rules apply."""
    full_name: str
    """Trainer and version, as people write them."""
    export: Callable[[JobExport], None]
    """Function that names the settings of fields that the table does not write."""
    facts: str
    """Names of the stack facts that those settings switch."""
    file: Callable[[Job, Written, str], tuple[str, ...]]
    """Text of the file, then remarks on how to use it, given the settings and the name of the plan's file."""
    table: str = ""
    """Name of the table of arguments; empty: the exporter's name."""
    spelled: Callable[[Written], str] = lambda settings: " ".join(
        f"{name}: {_value(value)}" for name, value in settings.items()
    )
    """Function that writes settings in one line, as the trainer's users do."""

    def write(self, plan: Plan, name: str, partly: bool) -> Exported:
        """Export a plan as the trainer's file.

        Raises:
            InputError: the plan is of a cluster of several pools, or trains what the file cannot say.
            InfeasibleError: the trainer refuses the layout, or has no settings for some of the plan.
        """
        if plan.question.has_pools:
            pools = ", ".join(f"`{name}`" for name in plan.question.pool_names)
            message = f"{self.full_name} cannot train on several kinds of GPU, and the plan has {pools}"
            raise InputError(message, hint="plan for one of them")
        job = Job(plan.question, plan.layout)
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
        text, *usage = self.file(job, settings_of(fields), name)
        return Exported(text=text, remarks=(*remarks, *usage), fields=fields)

    def require_allowed(self, job: Job) -> None:
        """Raise InfeasibleError if the trainer refuses the layout, by the rules of `--for`."""
        if problems := [Problem("", words.what) for words in refusals(self.name, job.question, job.layout)]:
            message = f"{self.full_name} does not start with `{job.layout.brief}`"
            raise InfeasibleError(message, problems=problems, hint=f"plan again with --for {self.name}")

    def field_exports(self, job: Job) -> tuple[FieldExport, ...]:
        """Export every plan field of a job to this trainer's settings."""
        export = JobExport(job)
        for argument in table_of(self.table or self.name).arguments.values():
            if argument.written:
                export.argument(argument)
        self.export(export)
        return export.complete(self.facts.split(), load_stack(TRAINERS[self.name].stack))


def _problems(lacking: list[FieldExport]) -> list[Problem]:
    """Problem for each field that the trainer lacks; more than `_MAX_NAMES` stack facts are merged into one
    problem."""
    stack = [one for one in lacking if one.field.startswith("stack.")]
    single = [one for one in lacking if one not in stack] if len(stack) > _MAX_NAMES else lacking
    problems = [Problem(one.field, f"`{one.plan_value}`: {one.note}") for one in single]
    if len(stack) > _MAX_NAMES:
        names = ", ".join(one.field.removeprefix("stack.") for one in stack[:_MAX_NAMES])
        message = f"works otherwise in {len(stack)} ways ({names}, ..): prices are of another trainer"
        problems.append(Problem("stack", message))
    return problems


def _remark(export: FieldExport) -> str:
    """Remark on a field whose settings have another meaning than the plan's."""
    settings = ", ".join(f"{name} {_value(value)}" for name, value in export.settings.items())
    setting_words = f"`{settings}`" if settings else "no setting"
    return f"{export.field} `{export.plan_value}` is {setting_words} there: {export.note}"


def _value(value: Any) -> str:
    """Text of a setting's value, lists with blanks between items."""
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


GPUS = "gpus"
_NOTHING = ("none", "null", "", "-1")
"""Words that trainers print for a size that was not given."""


def contradictions(log: Log, plan: Plan) -> Iterator[Problem]:
    """Yield a problem for every size of layout, batch or model in a training log that differs from the plan.
    Other settings, and settings whose meaning depends on others, are not compared."""
    job = Job(plan.question, plan.layout)
    rows = table_of(log.format.table).arguments if log.format.table else {}
    settings = ((name, *setting) for name, values in log.settings.items() for setting in values.items())
    for name, value, place in settings:
        field = name if name.partition(".")[0] in (GPUS, *PARTS) else log.format.fields.get(name)
        row = rows.get(name)
        if field is not None:
            expected = plan.layout.num_gpus if field == GPUS else job.value(field)
        elif row is not None and row.written and ("mixtures" not in row.written or job.model.has_experts):
            expected = row.trainer_value(job.value(row.field.removeprefix("not ")))
        else:
            continue
        printed = printable(value.strip(), limit=80)
        if not _agrees(printed, expected):
            text = printed.strip("'\"")
            is_count = text.isdecimal() and text.isascii() and len(text) < 20
            message = f"the log has {grouped(int(text)) if is_count else text}, the plan {_words(expected)}"
            yield Problem(f"{place}  {name}", message)


def _agrees(printed: str, expected: Any) -> bool:
    """Whether a value printed in a log equals the plan's; also true for an empty value or a value of an
    unexpected type."""
    text = printed.strip().strip("'\"")
    if text.lower() in _NOTHING:
        return True
    if isinstance(expected, bool):
        return text.lower() not in ("true", "false") or (text.lower() == "true") == expected
    if isinstance(expected, str):
        return text == expected
    with suppress(ValueError):
        return float(text.replace(",", "")) == float(expected or 0)
    return True


def _words(expected: Any) -> str:
    """Convert a plan's value to text for the sentence of a problem, such as "none" for None."""
    if isinstance(expected, int) and not isinstance(expected, bool):
        return grouped(expected)
    return "none" if expected is None else str(expected)
