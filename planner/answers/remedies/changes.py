"""Single changes of a question that may make it fit, in the words that a user types, those of each kind in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import ValidationError

from cost_models.axes.layout import AXES
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.operators.accumulation import gradient_dtype
from cost_models.question import MixedQuestion, Question
from cost_models.risk import EVEN, confident_share
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import FULL, ClusterSpec
from cost_models.specs.transformer import TransformerSpec
from planner.formats.trainers import TRAINERS
from planner.rules.searched import searched
from planner.space.gpu_counts import possible, resized
from planner.space.layouts import parse_restrictions
from planner.space.restrictions import CLOSED, Restrictions

OFFLOAD = "offload"
ALLOWED = f" --allow {OFFLOAD}"
HALVINGS = 4
"""Most times that a sequence is halved."""


class Change(NamedTuple):
    """A change of the question or of its restrictions."""

    words: str
    question: Question
    limits: Restrictions


def loosened(question: Question, limits: Restrictions) -> list[Change]:
    """Each restriction of the user left out."""
    kept: dict[str, Any] = {name: getattr(limits, name) for name in ("max_memory", "trainer", "allowed")}
    found = []
    for word in (*limits.fix_words, *limits.forbid_words):
        fix = [one for one in limits.fix_words if one != word]
        forbid = [one for one in limits.forbid_words if one != word]
        flag = "--fix" if word in limits.fix_words else "--forbid"
        less = replace(parse_restrictions(fix, forbid), **kept)
        found.append(Change(f"without {flag} {word}", question, less))
    if limits.max_memory is not None:
        found.append(Change("without --max-memory", question, replace(limits, max_memory=None)))
    if (sure := question.confidence) > EVEN:
        share = confident_share(sure, question.memory_error)
        most = None if limits.max_memory is None else limits.max_memory / share
        even = replace(question, confidence=EVEN)
        found.append(Change("without --confidence", even, replace(limits, max_memory=most)))
    return found


def without_any(question: Question, limits: Restrictions) -> Change:
    """All restrictions left out."""
    free = Restrictions(trainer=limits.trainer, allowed=limits.allowed)
    return Change("without --fix, --forbid and --max-memory", question, free)


def opened(question: Question, limits: Restrictions) -> Iterator[Change]:
    """Each axis that the search leaves alone unless it is allowed, the host's memory one of them."""
    for name in CLOSED:
        if name not in limits.allowed and not (
            (why := AXES[name].opens_nothing) and why(question, limits.trainer)
        ):
            yield Change(f"--allow {name}", question, replace(limits, allowed=limits.allowed | {name}))


def larger_hosts(question: Question, limits: Restrictions, state_bytes: float) -> Iterator[Iterator[Change]]:
    """For each allowed axis that needs more than the machine has, what it would need, the least first."""
    for name, axis in searched().items():
        if name in limits.allowed and axis.remedies:
            more = axis.remedies(question, state_bytes)
            yield (Change(words, changed, limits) for words, changed in more)


def other_stacks(question: Question, limits: Restrictions) -> Iterator[Change]:
    """The stacks of other trainers and this project's own on the same machine, with offload where they have it; none
    where the user keeps to one trainer or the cluster has several pools."""
    if limits.trainer is not None or isinstance(question, MixedQuestion):
        return
    names = dict.fromkeys([*(trainer.stack for trainer in TRAINERS.values()), OWN_STACK])
    mine = question.stack.family or question.stack.name
    for stack in map(catalog.load_stack, names):
        if (stack.family or stack.name) == mine or stack.family in names:
            continue  # another of its family stands for it
        other = complete_question(question.model, question.cluster, question.training, stack=stack)
        other = replace(other, confidence=question.confidence)
        if stack.residencies and OFFLOAD not in limits.allowed:
            allowed = replace(limits, allowed=limits.allowed | {OFFLOAD})
            yield Change(f"--stack {stack.name}{ALLOWED}", other, allowed)
        else:
            yield Change(f"--stack {stack.name}", other, limits)


def other_training(question: Question, limits: Restrictions) -> Iterator[Change]:
    """Recomputing more, 16-bit products, and optimizer states in 16 bits."""
    training = question.training
    if "full" not in training.recompute:
        change = _trained(question, recompute=RECOMPUTE_POLICIES)
        yield Change("recompute: full in --training FILE", change, limits)
    if training.precision in FULL and "bf16" in question.cluster.gpu.peak:
        yield Change("--precision bf16", _trained(question, precision="bf16"), limits)
    if training.state_dtype != "bf16":
        yield Change("--state-dtype bf16", _trained(question, state_dtype="bf16"), limits)
        if gradient_dtype(question) != "bf16":
            words = "state_dtype: bf16 and gradient_dtype: bf16 in --training FILE"
            yield Change(words, _trained(question, state_dtype="bf16", gradient_dtype="bf16"), limits)


def shorter(question: Question, limits: Restrictions) -> Iterator[Change]:
    """Sequences halved time and again, the longest first."""
    length = question.training.sequence_length
    for power in range(1, HALVINGS + 1):
        if length % 2**power == 0:
            halved = _trained(question, sequence_length=length // 2**power)
            yield Change(f"--sequence {length // 2**power}", halved, limits)


def larger_gpus(question: Question, limits: Restrictions, state_bytes: float) -> Iterator[Change]:
    """As many GPUs with more memory in machines of the same class of the catalogue, the smallest of them first."""
    here, gpus = question.cluster, question.cluster.num_gpus
    known = [catalog.load_cluster(name) for name in catalog.names("clusters") if name != LOCAL]
    clusters = {one.gpu.name: one for one in reversed(known)}.values()  # the first of each GPU
    larger = [
        one
        for one in clusters
        if one.gpu.memory > max(here.gpu.memory, state_bytes / gpus)
        and question.training.precision in one.gpu.peak
        and _class_of(one) == _class_of(here)
        and possible(gpus, one)
    ]
    for one in sorted(larger, key=lambda one: one.gpu.memory):
        other = complete_question(question.model, one, question.training, stack=question.stack)
        other = replace(other, confidence=question.confidence)
        yield Change(f"{one.name} --gpus {gpus}", resized(other, gpus), limits)


def _class_of(cluster: ClusterSpec) -> tuple[str, bool]:
    """Machines of one class run the same software and link GPUs alike: PCIe boxes, NVLink servers, servers of AMD."""
    return cluster.gpu.kind, cluster.links.intra_node.kind == "pcie"


def cut(model: TransformerSpec, blocks: int) -> TransformerSpec | None:
    """The model with only its first blocks; None where its file needs more than another number of blocks for that."""
    dense = model.num_layers - model.num_moe_layers
    fields = model.model_dump(mode="json") | {"num_layers": blocks}
    if model.has_experts:
        fields["num_moe_layers"] = max(blocks - dense, 0)
    try:
        return TransformerSpec.model_validate(fields)
    except ValidationError:
        return None


def _trained(question: Question, **update: Any) -> Question:
    return replace(question, training=question.training.model_copy(update=update))
