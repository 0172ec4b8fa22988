"""Largest model size or sequence length that fits in memory, and remedies (changes of the question) if
nothing fits.

Fit is decided with the layouts that need least memory (`lean_limits`): those with the smallest and largest
microbatches and states sharded over all replicas. If none of these fits, no layout does.

Sizes are doubled, then bisected between one that fits and one that does not. A larger size may still fit if
other degrees divide it, so the first size of each kind above is tried too, and if it fits, further ones of
its kind (`Family.divisible_sizes`). A layout that fits a size fits every smaller one of its kind, so if no
first size of a kind fits, no larger size does. Only the largest size is searched for its fastest layout.

Remedies are single changes of the question, as typed on the command line, each with a plan that then fits.
First changes of a flag on the same machine: a restriction less, other axes, other stacks, offload. Then fewer
bytes: precision, sequence. Then more GPUs, and other machines of the same class. Last fewer blocks. Any plan
that fits is shown; planning for the change may find a faster one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from cost_models.arrays import Ints
from cost_models.axes.layout import RESIDENCIES, Offload
from cost_models.base import MAX_GPUS
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.errors import Alternative, DoesNotFitError, InfeasibleError, InputError
from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.memory.device import is_own_host
from cost_models.operators.accumulation import gradient_dtype
from cost_models.question import Question
from cost_models.risk import EVEN, confident_share
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import FULL, AnyCluster, ClusterSpec
from cost_models.specs.stack import StackSpec
from cost_models.units import GIB
from planner.formats.trainers import TRAINERS
from planner.search.branching import SearchResult
from planner.search.search import Budget
from planner.space.axes import CLOSED
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.sizes import Family, is_possible_size, on_whole_nodes, resized
from planner.space.space import ONE_CHUNK

FASTEST_SECONDS = 10.0
"""Time limit, seconds, of the search for the fastest layout once the largest size is known; then the best so
far is used."""


def lean_limits(limits: Restrictions) -> Restrictions:
    """Narrow the restrictions for a search on memory alone: only the smallest and largest microbatch sizes,
    the default axis order and no shard groups. Axis order and shard groups stay open if the user restricts
    them. Other values need no less memory."""
    unused = limits.unused | ({"order", "shard"} - limits.only.keys() - limits.never.keys())
    return replace(limits, extreme_mbs=True, unused=frozenset(unused))


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSize:
    """Largest model size or sequence length that fits in memory if certain data may be offloaded to host
    memory."""

    offloads: tuple[str, ...]
    """Kinds of data that may be offloaded to host memory (residencies), such as optimizer states; empty:
    none."""
    question: Question | None
    """Question with the model at the largest size; None if not even the smallest fits."""
    size: int
    """Largest size, as a number of steps of the family of sizes; 0 if none fits."""
    result: SearchResult | None
    """Result of the search for the fastest layout at the largest size; if `FASTEST_SECONDS` ran out, the best
    so far. None if no size fits."""
    next_fails: bool
    """Whether the next size, and every larger one, is proved to fit in no layout."""
    comparable: bool
    """Whether the failure of one size implies the failure of larger sizes that the same parallel degrees
    divide."""


def offload_choices(question: Question) -> tuple[tuple[str, ...], ...]:
    """Choices of what a search may offload to host memory: nothing, one kind of data (such as optimizer
    states) that the stack can offload, or all kinds. Only the last choice may also use the drive."""
    cluster = question.cluster
    usable = cluster.gpu.kind != "cpu" and cluster.host_memory is not None
    parts = [part for part in Offload._fields if cluster.drive is not None or part != "drive"]
    has = tuple(part for part in parts if usable and part in question.stack.residencies)
    return ((), *((part,) for part in has if part in RESIDENCIES), *([has] if len(has) > 1 else []))


def largest_sizes(
    question: Question, family: Family, restrictions: Restrictions, budget: Budget
) -> Iterator[LargestSize]:
    """Yield the largest size of a model family that fits, for each choice of data to offload. The size in the
    question itself does not matter.

    A size that fits without offload also fits if offload is allowed.
    """
    largest: list[LargestSize] = []
    for offloads in offload_choices(question):
        sure = max((one.size for one in largest if {*one.offloads} <= {*offloads}), default=0)
        allowed = frozenset({"offload"} if offloads else ())
        sizes = _SizeSearch(question, family, replace(restrictions, allowed=allowed), offloads, budget)
        guess = max([sure, *(one.size for one in largest)]) or family.base_size
        largest.append(sizes.largest(sure, guess))
        yield largest[-1]


@dataclass(slots=True)
class _SizeSearch:
    """Search for the largest size of a model family that fits, under one choice of data to offload."""

    question: Question
    family: Family
    limits: Restrictions
    offloads: tuple[str, ...]
    budget: Budget
    plans: dict[int, SearchResult | None] = field(default_factory=dict)
    """Result of the search on each tried size, by size; None if nothing fits, or time ran out."""
    decided: bool = True
    """Whether every tried size was either found to fit or proved not to; False if time ran out on one."""

    def largest(self, sure: int, guess: int) -> LargestSize:
        """Find the largest size (blocks, width or tokens) that fits, starting from `guess`; `sure` is known
        to fit.

        A size above the last that fits may fit too, if other degrees divide it; none does if the first of
        every kind above does not fit.
        """
        size, result = self._count_fitting(np.arange(1, self.family.largest_size + 1), sure, guess), None
        while True:
            divisible = self.family.divisible_sizes(self.question)
            larger = [np.flatnonzero(alike_N[size:]) + size + 1 for alike_N in divisible]
            larger = sorted(filter(len, larger), key=len, reverse=True)
            kinds = {int(sizes[0]): sizes for sizes in larger}  # the narrowest of those that begin alike
            first = next((one for one in sorted(kinds) if self._fits(one)), None)
            if first is None:
                break
            size = int(kinds[first][self._count_fitting(kinds[first], 1, 1) - 1])
        if size:
            sized = self._question_of_size(size)
            result = self.budget.try_search(sized, self.limits, seconds=FASTEST_SECONDS)
            result = result or self.plans.get(size)
        # whether a layout that fits some size fits the smaller ones of its kind: blocks are alike or their number
        # stays, and where it grows every number of them may be spread over pipelines
        plain = (("schedule", ONE_CHUNK), ("vpp", 1))
        spread = all(self.limits.permits(axis, np.array([value]))[0] for axis, value in plain)
        comparable = self.family.by == "sequence" or (spread and self.question.kinds.number == 1)
        return LargestSize(
            offloads=self.offloads,
            question=self.family.question_of_size(self.question, size) if size else None,
            size=size,
            result=result,
            next_fails=size < self.family.largest_size and self.decided and comparable,
            comparable=comparable,
        )

    def _count_fitting(self, sizes: Ints, sure: int, guess: int) -> int:
        """Number of `sizes`, in rising order, that fit before the first that does not. It is found by
        doubling steps and bisection; the first `sure` sizes are known to fit."""

        def fits(number: int) -> bool:
            """Whether the `number`-th of `sizes`, counted from 1, fits in memory."""
            return self._fits(int(sizes[number - 1]))

        down = guess > sure and not fits(guess)
        low, high = (sure, guess) if down else (guess, len(sizes) + 1)
        step = 1
        while low < (number := high - step if down else low + step) < high:
            fitting, step = fits(number), 2 * step
            low, high = (number, high) if fitting else (low, number)
            if fitting == down:
                break
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _fits(self, size: int) -> bool:
        """Whether some layout fits in memory with the model at one size of its family; also False if time ran
        out."""
        if size not in self.plans:
            self.plans[size], sized = None, self._question_of_size(size)
            with suppress(InfeasibleError):
                self.plans[size] = self.budget.search(sized, lean_limits(self.limits), effort="any")
                self.decided &= self.plans[size] is not None
        return self.plans[size] is not None

    def _question_of_size(self, size: int) -> Question:
        """Copy of the question with the model at one size and a stack that offloads only the chosen data."""
        return self.family.question_of_size(self.question, size).updated("stack", residencies=self.offloads)


SECONDS_OF_REMEDIES = 4.0
"""Time limit of trying all remedies together, seconds."""
SECONDS_OF_A_REMEDY = 0.5
"""Time limit of trying one remedy, seconds, after which the best plan so far is shown, or none."""
MAX_LARGER = 2
"""Maximum number of clusters with larger GPUs that are shown."""
MACHINE_SHARE = 0.75
"""Share of the time limit for remedies on the same machine."""
DOUBLINGS, HALVINGS = 4, 4
"""Maximum number of doublings of the number of GPUs, after trying every number used up its share of the time,
and of halvings of a sequence."""
_OFFLOAD = " --allow offload"
_HOST_DOUBLINGS = 4
"""Number of sizes of host memory that are tried, each twice the size before."""


@contextmanager
def with_remedies(
    question: Question, limits: Restrictions, sizes: Sequence[int] = (), whole_nodes: AnyCluster | None = None
) -> Iterator[None]:
    """Add remedies (changes after which a plan fits) to any DoesNotFitError that is raised within a `with`
    block. With several numbers of GPUs (`sizes`) the largest is changed.

    `whole_nodes` is the cluster with complete nodes, if the question has only part of a node.
    """
    try:
        yield
    except DoesNotFitError as error:
        largest = resized(question, max(sizes)) if sizes else question
        on_nodes = on_whole_nodes(question)
        if isinstance(whole_nodes, ClusterSpec):
            on_nodes = replace(question, cluster=whole_nodes)
        remedies = Remedies(question=largest, on_nodes=on_nodes, limits=limits, state_bytes=error.state_bytes)
        error.would_fit = tuple(remedies.fitting_plans())
        raise


class Change(NamedTuple):
    """Change of a question or of its restrictions, with the command-line arguments for it."""

    words: str
    question: Question
    limits: Restrictions


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Search for changes of a question after which its model fits in memory, until the time is spent."""

    question: Question
    on_nodes: Question
    """Question on complete nodes, from which questions with more GPUs derive."""
    limits: Restrictions
    state_bytes: float
    budget: Budget = field(default_factory=lambda: Budget(time_limit=SECONDS_OF_REMEDIES))

    def fitting_plans(self) -> Iterator[Alternative]:
        """Yield the plan found for each change after which a layout fits, the easiest change first."""
        cluster, limits = self.question.cluster, self.limits
        loosened = self._drop_one_restriction()
        fitting = list(self._fitting(loosened))
        yield from fitting
        if not fitting and len(loosened) > 1:  # all restrictions, where no single one is enough
            free = Restrictions(trainer=limits.trainer, allowed=limits.allowed)
            change = Change("without --fix, --forbid and --max-memory", self.question, free)
            yield from self._fitting([change])
        yield from self.on_the_same_machine()
        yield from self._fitting(self._other_training())
        if self.state_bytes <= cluster.num_gpus * cluster.gpu.memory:  # activations are too large
            yield from islice(self._fitting(self._shorter_sequences()), 1)
        if not self.question.has_pools and cluster.gpu.kind != "cpu":
            yield from self.more_gpus()
            if limits.max_memory is None:
                yield from islice(self._fitting(self._larger_gpus()), MAX_LARGER)
        yield from self._fewer_layers()

    def _plan(self, change: Change, *, note: str = "") -> Alternative | None:
        """Search for a plan that fits in memory after a change; None if time ran out.

        Raises:
            InfeasibleError: none does, which is proven.
        """
        result = self.budget.search(change.question, lean_limits(change.limits), seconds=SECONDS_OF_A_REMEDY)
        if result is None:
            return None
        layout, names = result.best.layout, ("step_seconds", "peak_bytes", "memory_limit")
        plan = {name: getattr(result.best, name) for name in names}
        return Alternative(change=change.words, note=note, gpus=layout.num_gpus, layout=layout.brief, **plan)

    def _fitting(self, changes: Iterable[Change], until: float = math.inf) -> Iterator[Alternative]:
        """Yield a plan for each change after which a layout fits, while less than `until` seconds of the
        budget are spent."""
        for change in changes:
            if self.budget.seconds_spent > until:
                return
            with suppress(InfeasibleError, InputError):
                if (plan := self._plan(change)) is not None:
                    yield plan

    def _complete_question(self, cluster: ClusterSpec, stack: StackSpec) -> Question:
        """Question with the same model and training on another cluster and software stack, with the default
        hardware profile."""
        completed = complete_question(self.question.model, cluster, self.question.training, stack=stack)
        return replace(completed, confidence=self.question.confidence)

    def _seconds_until(self, share: float) -> float:
        """Moment at which `share` of the time left for remedies will be spent, in seconds since the start of
        the budget."""
        spent = self.budget.seconds_spent
        return spent + (SECONDS_OF_REMEDIES - spent) * share

    def _drop_one_restriction(self) -> list[Change]:
        """Changes that each drop one restriction that the user gave."""
        question, limits, changes = self.question, self.limits, list[Change]()
        flags = {"fix": limits.fix_words, "forbid": limits.forbid_words}
        for flag, word in [(flag, word) for flag, words in flags.items() for word in words]:
            fewer = flags | {flag: tuple(one for one in flags[flag] if one != word)}
            less = parse_restrictions(**fewer, max_memory=limits.max_memory, trainer=limits.trainer)
            less = replace(less, allowed=limits.allowed)
            changes.append(Change(f"without --{flag} {word}", question, less))
        if limits.max_memory is not None:
            changes.append(Change("without --max-memory", question, replace(limits, max_memory=None)))
        if question.confidence > EVEN:
            share = confident_share(question.confidence, question.memory_error)
            memory_limit = None if limits.max_memory is None else limits.max_memory / share
            even = replace(question, confidence=EVEN)
            changes.append(Change("without --confidence", even, replace(limits, max_memory=memory_limit)))
        return changes

    def on_the_same_machine(self) -> Iterator[Alternative]:
        """Yield plans that fit on the same cluster: with an axis that the search excludes by default (such as
        offload), with more host memory, and with other software stacks. Of host memories only the smallest
        that suffices is used; stacks come fastest plan first, and offload only if they must."""
        question, limits, until = self.question, self.limits, self._seconds_until(MACHINE_SHARE)
        opened = (
            Change(f"--allow {name}", question, replace(limits, allowed=limits.allowed | {name}))
            for name in CLOSED
            if name not in limits.allowed and not CLOSED[name](question, limits.trainer)
        )
        yield from self._fitting(opened, until)
        if "offload" in limits.allowed:
            yield from islice(self._fitting(larger_hosts(question, limits, self.state_bytes)), 1)
        stacks = [
            fix if "offload=" in fix.layout else replace(fix, change=fix.change.removesuffix(_OFFLOAD))
            for fix in self._fitting(self._other_stacks(), until)
        ]
        yield from sorted(stacks, key=lambda fix: fix.step_seconds)

    def _other_stacks(self) -> Iterator[Change]:
        """Yield changes to the software stacks of other trainers and of this project's executor, with offload
        if they have it. Yields nothing if the user keeps to one trainer or the cluster has several pools."""
        question, limits = self.question, self.limits
        if limits.trainer is not None or question.has_pools:
            return
        names = dict.fromkeys([*(trainer.stack for trainer in TRAINERS.values()), OWN_STACK])
        family = question.stack.family or question.stack.name
        for stack in map(catalog.load_stack, names):
            if (stack.family or stack.name) == family or stack.family in names:
                continue  # another of its family stands for it
            completed = self._complete_question(question.cluster, stack)
            offloads = stack.residencies and "offload" not in limits.allowed
            allowed = replace(limits, allowed=limits.allowed | {"offload"}) if offloads else limits
            yield Change(f"--stack {stack.name}{_OFFLOAD if offloads else ''}", completed, allowed)

    def _other_training(self) -> Iterator[Change]:
        """Yield changes of training settings that need less memory, such as more recomputation, 16-bit
        products or 16-bit optimizer states."""
        training = self.question.training
        if "full" not in training.recompute:
            yield self._training_change("recompute: full in --training FILE", recompute=RECOMPUTE_POLICIES)
        if training.precision in FULL and "bf16" in self.question.cluster.gpu.peak:
            yield self._training_change("--precision bf16", precision="bf16")
        if training.state_dtype != "bf16":
            yield self._training_change("--state-dtype bf16", state_dtype="bf16")
            if gradient_dtype(self.question) != "bf16":
                words = "state_dtype: bf16 and gradient_dtype: bf16 in --training FILE"
                yield self._training_change(words, state_dtype="bf16", gradient_dtype="bf16")

    def _shorter_sequences(self) -> Iterator[Change]:
        """Yield changes to sequences of a half, a quarter and so on of the length, the longest first."""
        length = self.question.training.sequence_length
        for part in (2**power for power in range(1, HALVINGS + 1)):
            if length % part == 0:
                yield self._training_change(f"--sequence {length // part}", sequence_length=length // part)

    def _training_change(self, words: str, **fields: Any) -> Change:
        """Change of fields of the training spec, with the command-line arguments for it."""
        return Change(words, self.question.updated("training", **fields), self.limits)

    def more_gpus(self) -> Iterator[Alternative]:
        """Yield the plan that fits on the fewest GPUs above the question's number, if one is found. Every
        number is tried in turn; once that takes too long, doublings of the number, or of the number needed
        for the states."""
        gpus, device = self.question.cluster.num_gpus, self.question.cluster.gpu.memory
        per_node, until = self.on_nodes.cluster.gpus_per_node, self._seconds_until(0.5)
        first_nodes = -(-max(gpus + 1, per_node + 1) // per_node) * per_node
        last, skipped = gpus, False
        for size in chain(range(gpus + 1, per_node + 1), range(first_nodes, MAX_GPUS, per_node)):
            if not is_possible_size(size, self.on_nodes.cluster) or self.budget.seconds_left <= 0:
                break
            last = size
            with suppress(InfeasibleError):
                note = "" if skipped else f"the fewest above {gpus}"
                if (plan := self._plan(self.on_gpus(size), note=note)) is not None:
                    yield plan
                    return
                skipped = True
            if self.budget.seconds_spent > until:
                break
        start = max(2 * last, int(self.state_bytes / device) // per_node * per_node)
        doubled = (start * 2**power for power in range(DOUBLINGS))
        sizes = (
            size for size in doubled if size <= MAX_GPUS and is_possible_size(size, self.on_nodes.cluster)
        )
        yield from islice(self._fitting(map(self.on_gpus, sizes)), 1)

    def on_gpus(self, gpus: int) -> Change:
        """Change of the question to `gpus` GPUs."""
        return Change(f"--gpus {gpus}", resized(self.on_nodes, gpus), self.limits)

    def _larger_gpus(self) -> Iterator[Change]:
        """Yield changes to catalogue clusters of the same machine class with equally many GPUs of more
        memory, the smallest first."""
        question, cluster, gpus = self.question, self.question.cluster, self.question.cluster.num_gpus
        offered = [catalog.load_cluster(name) for name in catalog.names("clusters") if name != LOCAL]
        clusters = {offer.gpu.name: offer for offer in reversed(offered)}.values()  # the first of each GPU
        least_memory = max(cluster.gpu.memory, self.state_bytes / gpus)
        for offer in sorted(clusters, key=lambda offer: offer.gpu.memory):
            same_class = _machine_class(offer) == _machine_class(cluster)
            same_class &= question.training.precision in offer.gpu.peak
            if same_class and offer.gpu.memory > least_memory and is_possible_size(gpus, offer):
                completed = resized(self._complete_question(offer, question.stack), gpus)
                yield Change(f"{offer.name} --gpus {gpus}", completed, self.limits)

    def _fewer_layers(self) -> Iterator[Alternative]:
        """Yield the plan for the model cut to the largest number of blocks that fits. It is found by
        bisection, and only for experiments on at most one node. Yields nothing if the model's file would need
        further changes."""
        model, best = self.question.model, None
        if self.question.cluster.num_gpus > self.on_nodes.cluster.gpus_per_node:
            return
        family, low, high = Family(name="fewer", base=model, by="depth"), 0, model.num_layers
        while high - low > 1:
            middle = (low + high) // 2
            try:
                cut = family.question_of_size(self.question, middle)
            except ValidationError:
                return
            if self.budget.seconds_left <= 0:
                return
            words = f"num_layers: {middle} (of {model.num_layers}) in the model's file"
            plan = next(self._fitting([Change(words, cut, self.limits)]), None)
            low, high, best = (middle, high, plan) if plan is not None else (low, middle, best)
        if best is not None:
            yield best


def _machine_class(cluster: ClusterSpec) -> tuple[str, bool]:
    """Kind of GPU of a cluster, and whether links within a node are PCIe. Machines that agree in both have
    the same software and kind of links."""
    return cluster.gpu.kind, cluster.links.intra_node.kind == "pcie"


def larger_hosts(question: Question, limits: Restrictions, state_bytes: float) -> Iterator[Change]:
    """Yield changes of `--host-memory` to larger powers of two in GiB, the smallest first. The first holds
    those of the `state_bytes` that do not fit in the devices. Yields nothing over several pools, or if
    devices are their own hosts."""
    if question.has_pools or is_own_host(question.cluster):
        return
    cluster, now = question.cluster, question.cluster.host_memory or 0.0
    overflow = (state_bytes - cluster.num_gpus * cluster.gpu.memory) / cluster.nodes
    smallest_power = math.ceil(math.log2(max(overflow, now, GIB) / GIB))
    for power in range(smallest_power, smallest_power + _HOST_DOUBLINGS):
        size = 2**power
        if size * GIB > now:
            larger = question.updated("cluster", host_memory=size * GIB)
            yield Change(f"--host-memory {size}GiB", larger, limits)
