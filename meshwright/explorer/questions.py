"""Controls of the explorer's page read as a question: the one it started with, changed where a control was turned."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import Any, TypeVar, get_args

import yaml
from pydantic import TypeAdapter, ValidationError

from cost_models.documents import printable, spec_error
from cost_models.errors import InputError, Problem, UnknownNameError, did_you_mean
from cost_models.files import catalog
from cost_models.files.loading import read_tokens, resolve_cluster, resolve_model, sized
from cost_models.flags import part_of
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, DeviceMemory, MixedCluster, OperationsSpec, Precision, Rate
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import format_bandwidth, format_bytes, grouped
from meshwright.explorer import ExploreOptions
from meshwright.inputs.goals import operations_of, restrictions_of
from meshwright.inputs.options import Limits, Operations
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import question_of, single_count
from meshwright.verbs.plan import PlanOptions
from planner.answers.optimum import answered_question
from planner.plan import Plan
from planner.space.restrictions import Restrictions

LONGEST = 200
"""Characters of a value; nobody turns a control further."""
OFFLOAD = "offload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One control of the page."""

    name: str
    """In the address of the page; with two hyphens before it, in errors."""
    label: str
    note: str = ""
    """Explanation, where the label does not say enough."""
    catalogue: str = ""
    """The kind of catalogue entries, or `precision`, that there are to choose from; empty: text is typed."""


GROUPS: Mapping[str, Sequence[Control]] = {
    group: tuple(Control(**control) for control in controls)
    for group, controls in yaml.safe_load(
        (files("meshwright.explorer") / "page.yaml").read_text(encoding="utf-8")
    ).items()
}
CONTROLS: Mapping[str, Control] = {one.name: one for group in GROUPS.values() for one in group}


def values_of(address: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Values of the controls in an address, without blank ones.

    Raises:
        InputError: unknown or repeated words, and values that are too long; all of them at once.
    """
    pairs = [(name, value.strip()) for name, value in address]
    problems = [
        Problem(printable(name), f"is no control{did_you_mean(name[:LONGEST], CONTROLS)}")
        for name, _ in pairs
        if name not in CONTROLS
    ]
    known_values = [(name, value) for name, value in pairs if name in CONTROLS]
    times = Counter(name for name, _ in known_values)
    problems += [Problem(f"--{name}", f"is said {count} times") for name, count in times.items() if count > 1]
    problems += [
        Problem(f"--{name}", f"has {len(value):,} characters; {LONGEST} are the most")
        for name, value in known_values
        if len(value) > LONGEST
    ]
    if problems:
        raise InputError("the page's address cannot be read", problems=problems)
    return {name: value for name, value in known_values if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Question the explorer was started with, before any control is turned."""

    model: TransformerSpec
    cluster: ClusterSpec
    training: TrainingSpec
    stack: StackSpec
    profile: HardwareProfile | None = None
    """Profile of the start's cluster; other clusters take the nearest of the catalogue."""
    limits: Limits = field(default_factory=Limits)
    trainer: str | None = None
    tokens: str | float | None = None
    operations: str | OperationsSpec | None = None
    plan: Plan | None = None
    """Plan file of the question, shown unchanged until a control is turned."""

    @property
    def names(self) -> Mapping[str, str]:
        """Values of the controls that hold a name, a choice or words."""
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "stack": self.stack.name,
            "precision": self.training.precision,
            "fix": " ".join(self.limits.fix),
            "forbid": " ".join(self.limits.forbid),
            OFFLOAD: "on" if OFFLOAD in ",".join(self.limits.allow).split(",") else "off",
        }


def start_of(options: ExploreOptions) -> Start:
    """Start from the options of the command line.

    Raises:
        InputError: what `plan` would refuse, and clusters of several GPUs.
    """
    question, _ = question_of(options)
    restrictions_of(options, options.trainer)
    return Start(
        model=question.model,
        cluster=_of_one_gpu(resolve_cluster(options.cluster, single_count(options.gpus))),
        training=question.training,
        stack=question.stack,
        profile=question.hardware if options.profile else None,
        limits=part_of(options, Limits),
        trainer=options.trainer,
        tokens=options.tokens,
        operations=options.operations,
    )


def start_of_plan(
    plan: Plan, *, tokens: str | float | None, operations: str | OperationsSpec | None
) -> Start:
    """The question of a plan file, within its restrictions. Raises InputError."""
    question, recommendation = answered_question(plan), plan.recommendation
    restrictions = plan.restrictions if recommendation is None else recommendation.asked
    max_memory = restrictions.max_memory
    return Start(
        model=question.model,
        cluster=_of_one_gpu(plan.cluster),
        training=question.training,
        stack=question.stack,
        profile=question.hardware,
        limits=Limits(
            fix=restrictions.fix,
            forbid=restrictions.forbid,
            allow=restrictions.allow,
            max_memory=None if max_memory is None else f"{max_memory!r} B",
        ),
        trainer=restrictions.trainer,
        tokens=tokens,
        operations=operations,
        plan=plan,
    )


def _of_one_gpu(cluster: ClusterSpec | MixedCluster) -> ClusterSpec:
    if isinstance(cluster, MixedCluster):
        raise InputError(
            f"`{cluster.name}` has several pools; the explorer turns the controls of one kind of GPU",
            hint="meshwright plan answers of pools, meshwright report writes their page",
        )
    return cluster


_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)
_AMOUNTS: Mapping[str, tuple[Any, str]] = {
    "gpu-memory": (DeviceMemory, "96GiB"),
    "intra-node": (Rate, "300 GB/s"),
    "inter-node": (Rate, "25 GB/s"),
    "host-bandwidth": (Rate, "64 GB/s"),
}
"""Type of each amount of hardware, and an example of its notation."""
S = TypeVar("S", TransformerSpec, ClusterSpec, StackSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A question as the controls have it."""

    question: Question
    restrictions: Restrictions
    tokens: float | None
    """To train on, for the day it ends."""
    operations: Operations
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> dict[str, str]:
        """Effective values of blank controls."""
        cluster, training = self.question.cluster, self.question.training
        between, host = cluster.links.inter_node, cluster.gpu.host_bandwidth
        found = {
            "gpus": grouped(cluster.num_gpus),
            "global-batch": grouped(training.global_batch),
            "sequence": grouped(training.sequence_length),
            "gpu-memory": format_bytes(cluster.gpu.memory),
            "intra-node": format_bandwidth(cluster.links.intra_node.bandwidth),
            "inter-node": format_bandwidth(between.bandwidth) if between else "",
            "host-memory": format_bytes(cluster.host_memory) if cluster.host_memory else "",
            "host-bandwidth": format_bandwidth(host) if host else "",
        }
        return {name: " ".join(text.split()) for name, text in found.items()}


def sought(start: Start, values: Mapping[str, str]) -> Sought:
    """The question of these controls.

    Raises:
        InputError: everything that cannot be read, at once; each under the flag of its control.
    """
    problems = Problems()
    cluster = problems.read(lambda: _cluster(start, values))
    model = problems.read(
        lambda: _named(start.model, values.get("model"), "models", lambda name: resolve_model(name).spec)
    )
    stack = problems.read(lambda: _named(start.stack, values.get("stack"), "stacks", catalog.load_stack))
    amounts = {name: problems.read(lambda name=name: _amount(name, values)) for name in _AMOUNTS}  # type: ignore[misc]
    mtbf = values.get("mtbf")
    problems.read(lambda: operations_of(Operations(mtbf=mtbf)))
    tokens = problems.read(lambda: _tokens(values.get("tokens", start.tokens)))
    limits = _limits(start, values)
    restrictions = problems.read(lambda: restrictions_of(limits, start.trainer))
    problems.require()
    assert cluster is not None
    assert model is not None
    assert stack is not None
    assert restrictions is not None
    request = PlanOptions(
        model=model,
        cluster=cluster,
        training=start.training,
        global_batch=values.get("global-batch"),
        sequence=values.get("sequence"),
        precision=values.get("precision"),
        profile=start.profile if values.get("cluster", start.cluster.name) == start.cluster.name else None,
        trainer=start.trainer,
        host_memory=values.get("host-memory"),
        allow=limits.allow,
    )
    question, assumed = question_of(request, stack)
    question, notes = _with_hardware(question, amounts)
    return Sought(
        question=question,
        restrictions=restrictions,
        tokens=tokens or question.training.tokens,
        operations=Operations(operations=start.operations, mtbf=mtbf),
        notes=(*(f"Assumed: {one}" for one in assumed), *notes),
    )


def choices(start: Start, catalogue: str) -> tuple[str, ...]:
    """Choices of a control, the value of the start first."""
    if catalogue == "precision":
        return get_args(Precision)
    name = {"models": start.model.name, "clusters": start.cluster.name, "stacks": start.stack.name}[catalogue]
    return tuple(dict.fromkeys([name, *sorted(catalog.names(catalogue))]))  # type: ignore[arg-type]


def _named(start_spec: S, name: str | None, kind: str, load: Callable[[str], S]) -> S:
    """The start's own, or the catalogue's of that name: an address may not name files."""
    if name is None or name == start_spec.name:
        return start_spec
    catalogue_names = catalog.names(kind)  # type: ignore[arg-type]
    if name not in catalogue_names:
        raise UnknownNameError(
            kind.removesuffix("s"), printable(name), catalogue_names, hint="name files on the command line"
        )
    return load(name)


def _cluster(start: Start, values: Mapping[str, str]) -> ClusterSpec:
    """The cluster, cut or grown to the GPUs asked for."""
    cluster = _named(start.cluster, values.get("cluster"), "clusters", catalog.load_cluster)
    start_gpus = start.cluster.num_gpus
    gpus = values.get("gpus", "").replace(",", "")
    if not gpus:
        return cluster if cluster is start.cluster else sized(cluster, start_gpus)
    if not _COUNT.fullmatch(gpus) or int(gpus) == 0:
        raise InputError(
            "the cluster cannot be sized",
            problems=[Problem("--gpus", f"`{printable(gpus)}` is no number of GPUs")],
        )
    return sized(cluster, int(gpus))


def _amount(name: str, values: Mapping[str, str]) -> float | None:
    """An amount with its unit. Raises InputError."""
    text = values.get(name)
    if text is None:
        return None
    kind, example = _AMOUNTS[name]
    try:
        return float(TypeAdapter(kind).validate_python(text))
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(
            f"{CONTROLS[name].label} cannot be read",
            problems=[Problem(f"--{name}", problem)],
            hint=f"write it like {example}",
        ) from None


def _tokens(text: str | float | None) -> float | None:
    """Tokens to train on. Raises InputError."""
    try:
        return None if text is None else read_tokens(text)
    except ValueError as error:
        raise InputError("the job cannot be read", problems=[Problem("--tokens", str(error))]) from None


def _limits(start: Start, values: Mapping[str, str]) -> Limits:
    """Limits of the search; a control that was turned replaces the value of the start."""
    allow = start.limits.allow
    if values.get(OFFLOAD):
        allow = tuple(word for text in allow for word in text.split(",") if word != OFFLOAD)
        allow = (*allow, *([OFFLOAD] if values[OFFLOAD] == "on" else []))
    return replace(
        start.limits,
        fix=_words(values["fix"]) if "fix" in values else start.limits.fix,
        forbid=_words(values["forbid"]) if "forbid" in values else start.limits.forbid,
        allow=allow,
    )


def _words(text: str) -> tuple[str, ...]:
    """`tp=8, pp>=2` or `tp=8 pp>=2` → each word; `tp=2,4` stays one."""
    return tuple(text.replace(", ", " ").split())


def _with_hardware(
    question: Question, amounts: Mapping[str, float | None]
) -> tuple[Question, tuple[str, ...]]:
    """Apply amounts of hardware to a question; also returns notes on amounts that change no price."""
    cluster = question.cluster
    gpu = {"memory": amounts["gpu-memory"], "host_bandwidth": amounts["host-bandwidth"]}
    gpu_changes = {name: value for name, value in gpu.items() if value is not None}
    links, network = cluster.links, cluster.links.inter_node
    inside = (amounts["intra-node"] or math.nan) / links.intra_node.bandwidth
    outside = (amounts["inter-node"] or math.nan) / (network.bandwidth if network else math.nan)
    factors = {"intra_node": inside, "inter_node": outside}
    links = links.faster(**{name: one for name, one in factors.items() if not math.isnan(one)})
    changed = cluster.model_copy(update={"gpu": cluster.gpu.model_copy(update=gpu_changes), "links": links})
    if changed == cluster:
        return question, ()
    try:
        ClusterSpec.model_validate(changed.model_dump())
    except ValidationError as error:  # a building's network no faster than the link out of it
        raise spec_error(error) from None
    return replace(question, cluster=changed), tuple(_idle(question, amounts))


def _idle(question: Question, amounts: Mapping[str, float | None]) -> Iterator[str]:
    """Bandwidths that no price depends on."""
    has_bandwidths = any(amounts[name] is not None for name in ("intra-node", "inter-node"))
    if has_bandwidths and question.hardware.collectives:
        yield (
            f"Profile {question.hardware.name} measured its collectives: bandwidths of links change little or nothing"
        )
