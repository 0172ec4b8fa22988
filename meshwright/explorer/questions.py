"""Read the explorer's controls as a question: the one it started with, changed by the controls that were set."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from cost_models.documents import printable, spec_error
from cost_models.errors import InputError, Problem, UnknownNameError, did_you_mean
from cost_models.files import catalog
from cost_models.files.loading import read_tokens, sized
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, DeviceMemory, MixedCluster, OperationsSpec, Rate
from cost_models.specs.stack import StackSpec
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import format_bandwidth, format_bytes, grouped
from meshwright.explorer import ExploreOptions
from meshwright.inputs.goals import operations_of, restrictions_of
from meshwright.inputs.options import Operations
from meshwright.inputs.problems import Problems, read_flag
from meshwright.inputs.questions import question_of
from meshwright.records import fields_of
from meshwright.verbs.plan import PlanOptions
from planner.answers.optimum import answered_question
from planner.plan import Plan
from planner.space.restrictions import Restrictions

LONGEST = 200
"""Largest number of characters of a control's value."""
OFFLOAD = "offload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Control of the explorer's page: a field to type in, or a list to choose from."""

    name: str
    """Name in the page's URL, and as a flag in errors."""
    label: str
    note: str = ""
    """Explanation beside the label, if needed."""
    catalogue: str = ""
    """Kind of catalogue entries to choose from, or `precision`; empty: text is typed."""


GROUPS: Mapping[str, Sequence[Control]] = {
    group: tuple(Control(**control) for control in controls)
    for group, controls in yaml.safe_load(
        (files("meshwright.explorer") / "page.yaml").read_text(encoding="utf-8")
    ).items()
}
CONTROLS: Mapping[str, Control] = {one.name: one for group in GROUPS.values() for one in group}


def values_of(address: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Values of the controls in a URL's query, without blank ones.

    Raises:
        InputError: unknown or repeated words, and values that are too long; all of them at once.
    """
    pairs = [(name, value.strip()) for name, value in address]
    times, problems = Counter(name for name, _ in pairs), []
    for name, value in pairs:
        if name not in CONTROLS:
            suggestion = did_you_mean(name[:LONGEST], CONTROLS)
            problems.append(Problem(printable(name), f"is no control{suggestion}"))
        elif len(value) > LONGEST:
            problems.append(Problem(f"--{name}", f"has {len(value):,} characters; {LONGEST} are the most"))
        elif times[name] > 1:
            problems.append(Problem(f"--{name}", f"is said {times.pop(name)} times"))
    if problems:
        raise InputError("the page's address cannot be read", problems=problems)
    return {name: value for name, value in pairs if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Question that the explorer was started with, before any control is set."""

    question: Question
    options: ExploreOptions
    """Restrictions, trainer, tokens and operations as given."""
    has_profile: bool
    """Whether the starting question's hardware profile was given; other clusters use their default profile."""
    plan: Plan | None = None
    """Plan file of the question, shown unchanged until a control is turned."""

    @property
    def cluster(self) -> ClusterSpec:
        """Cluster of the starting question. Raises InputError if it has several GPU pools."""
        cluster = self.question.cluster
        if isinstance(cluster, MixedCluster):
            raise InputError(
                f"`{cluster.name}` has several pools; the explorer turns the controls of one kind of GPU",
                hint="meshwright plan answers of pools, meshwright report writes their page",
            )
        return cluster


def start_of(options: ExploreOptions) -> Start:
    """Starting question from the options of the command line.

    Raises:
        InputError: what `plan` would refuse, and clusters of several GPUs.
    """
    question, _ = question_of(options)
    restrictions_of(options, options.trainer)
    start = Start(question=question, options=options, has_profile=bool(options.profile))
    assert start.cluster
    return start


def start_of_plan(
    plan: Plan, *, tokens: str | float | None, operations: str | OperationsSpec | None
) -> Start:
    """Starting question from a plan file, with its restrictions. Raises InputError."""
    recommendation = plan.recommendation
    limits = plan.restrictions if recommendation is None else recommendation.asked
    max_memory = None if limits.max_memory is None else f"{limits.max_memory!r} B"
    words = fields_of(limits, "fix", "forbid", "allow", "trainer")
    options = ExploreOptions(**words, max_memory=max_memory, tokens=tokens, operations=operations)
    start = Start(question=answered_question(plan), options=options, has_profile=True, plan=plan)
    assert start.cluster
    return start


_AMOUNTS: Mapping[str, tuple[Any, str]] = {
    "gpu-memory": (DeviceMemory, "96GiB"),
    "intra-node": (Rate, "300 GB/s"),
    "inter-node": (Rate, "25 GB/s"),
    "host-bandwidth": (Rate, "64 GB/s"),
}
"""Hardware controls → type of the amount, and an example of its notation."""
_JOB_AMOUNTS = ("global_batch", "sequence", "precision", "host_memory")
"""Options of `plan` that take a control's text as it is typed."""
S = TypeVar("S", TransformerSpec, ClusterSpec, StackSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlledQuestion:
    """Question as the controls set it, with restrictions, tokens to train on and operations."""

    question: Question
    options: ExploreOptions
    """Restrictions as words."""
    restrictions: Restrictions
    tokens: float | None
    """Tokens to train on, to predict the day training ends; None if unknown."""
    operations: Operations
    notes: tuple[str, ...] = ()

    @property
    def control_values(self) -> dict[str, str]:
        """Value of each control as text, where the question says it; a blank control shows it."""
        question, options = self.question, self.options
        cluster, training = question.cluster, question.training
        network, host = cluster.links.inter_node, cluster.gpu.host_bandwidth
        values = {
            "model": question.model.name,
            "cluster": cluster.name,
            "stack": question.stack.name,
            "precision": training.precision,
            "fix": " ".join(options.fix),
            "forbid": " ".join(options.forbid),
            OFFLOAD: "on" if OFFLOAD in ",".join(options.allow).split(",") else "off",
            "gpus": grouped(cluster.num_gpus),
            "global-batch": grouped(training.global_batch),
            "sequence": grouped(training.sequence_length),
            "gpu-memory": format_bytes(cluster.gpu.memory),
            "intra-node": format_bandwidth(cluster.links.intra_node.bandwidth),
            "inter-node": format_bandwidth(network.bandwidth) if network else "",
            "host-memory": format_bytes(cluster.host_memory) if cluster.host_memory else "",
            "host-bandwidth": format_bandwidth(host) if host else "",
        }
        return {name: " ".join(text.split()) for name, text in values.items()}


def read_controls(start: Start, values: Mapping[str, str]) -> ControlledQuestion:
    """Build the question that the controls' values describe.

    Raises:
        InputError: everything that cannot be read, at once; each under the flag of its control.
    """
    problems, base, text_of = Problems(), start.question, values.get
    cluster = problems.read(_cluster, start, values)
    model = problems.read(_named_entry, base.model, text_of("model"), "models", catalog.load_model)
    stack = problems.read(_named_entry, base.stack, text_of("stack"), "stacks", catalog.load_stack)
    amounts = {name: problems.read(_amount, name, values) for name in _AMOUNTS}
    operations = Operations(operations=start.options.operations, mtbf=text_of("mtbf"))
    problems.read(operations_of, replace(operations, operations=None))
    unread, text = "the job cannot be read", values.get("tokens", start.options.tokens)
    tokens = problems.read(read_flag, "--tokens", text, read_tokens, unread)
    limits = _limits(start.options, values)
    restrictions = problems.read(restrictions_of, limits, limits.trainer)
    problems.require()
    profile = base.hardware if start.has_profile and cluster.name == base.cluster.name else None
    request = PlanOptions(
        model, cluster, base.training, profile=profile, trainer=limits.trainer, allow=limits.allow
    )
    typed: dict[str, Any] = {name: text_of(name.replace("_", "-")) for name in _JOB_AMOUNTS}
    question, assumed = question_of(replace(request, **typed), stack)
    question, notes = _with_hardware(question, amounts)
    return ControlledQuestion(
        question=question,
        options=limits,
        restrictions=restrictions,
        tokens=tokens or question.training.tokens,
        operations=operations,
        notes=(*(f"Assumed: {one}" for one in assumed), *notes),
    )


def _named_entry(start_spec: S, name: str | None, kind: str, load: Callable[[str], S]) -> S:
    """Starting spec, or the catalogue entry called `name`; files are refused, as a URL may not name them."""
    if name is None or name == start_spec.name:
        return start_spec
    catalogue_names = catalog.names(kind)  # type: ignore[arg-type]
    if name not in catalogue_names:
        noun, hint = kind.removesuffix("s"), "name files on the command line"
        raise UnknownNameError(noun, printable(name), catalogue_names, hint=hint)
    return load(name)


def _cluster(start: Start, values: Mapping[str, str]) -> ClusterSpec:
    """Cluster that the controls name, resized to their number of GPUs."""
    cluster = _named_entry(start.cluster, values.get("cluster"), "clusters", catalog.load_cluster)
    gpus = values.get("gpus", "").replace(",", "")
    if gpus and not re.fullmatch(r"0*[1-9][0-9]{0,8}", gpus, re.ASCII):
        problem = Problem("--gpus", f"`{printable(gpus)}` is no number of GPUs")
        raise InputError("the cluster cannot be sized", problems=[problem])
    return sized(cluster, int(gpus or start.cluster.num_gpus))


def _amount(name: str, values: Mapping[str, str]) -> float | None:
    """Amount of a hardware control in base units; None if blank. Raises InputError if it is no number with a unit."""
    text, (kind, example) = values.get(name), _AMOUNTS[name]
    try:
        return None if text is None else float(TypeAdapter(kind).validate_python(text))
    except ValidationError as error:
        problem = Problem(f"--{name}", error.errors()[0]["msg"].removeprefix("Value error, "))
        headline, hint = f"{CONTROLS[name].label} cannot be read", f"write it like {example}"
        raise InputError(headline, problems=[problem], hint=hint) from None


def _limits(options: ExploreOptions, values: Mapping[str, str]) -> ExploreOptions:
    """Options with the restrictions that the controls state; a control that is not set leaves the starting
    restriction."""
    words: dict[str, Any] = {  # `tp=8, pp>=2` and `tp=8 pp>=2` are two words, `tp=2,4` is one
        name: tuple(values[name].replace(", ", " ").split()) for name in ("fix", "forbid") if name in values
    }
    if turned := values.get(OFFLOAD):
        others = (word for text in options.allow for word in text.split(",") if word != OFFLOAD)
        words["allow"] = (*others, *[OFFLOAD] * (turned == "on"))
    return replace(options, **words)


def _with_hardware(
    question: Question, amounts: Mapping[str, float | None]
) -> tuple[Question, tuple[str, ...]]:
    """Question on a cluster with these GPU memories and bandwidths, and notes on amounts that do not affect the
    prediction."""
    cluster, links = question.cluster, question.cluster.links
    gpu = {"memory": amounts["gpu-memory"], "host_bandwidth": amounts["host-bandwidth"]}
    rates = {"intra_node": amounts["intra-node"], "inter_node": amounts["inter-node"]}
    factors = {
        name: rate / link.bandwidth
        for name, rate in rates.items()
        if rate is not None and (link := getattr(links, name)) is not None
    }
    update = {name: value for name, value in gpu.items() if value is not None}
    changes = {"gpu": cluster.gpu.model_copy(update=update), "links": links.faster(**factors)}
    changed = cluster.model_copy(update=changes)
    if changed == cluster:
        return question, ()
    try:
        ClusterSpec.model_validate(changed.model_dump())
    except ValidationError as error:  # a building's network no faster than the link out of it
        raise spec_error(error) from None
    measured = f"Profile {question.hardware.name} measured its collectives"
    idle = f"{measured}: bandwidths of links change little or nothing"
    is_idle = any(rate is not None for rate in rates.values()) and question.hardware.collectives
    return replace(question, cluster=changed), (idle,) if is_idle else ()
