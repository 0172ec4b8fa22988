"""Remedies where nothing fits: single changes of the question, as the user would type them, with a plan that then fits.

They are searched where memory is least: with microbatches as small as allowed and states sharded over all their
replicas. What does not fit there fits nowhere. Of what fits some plan is shown; planning for the change may find a
faster one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

from pydantic import ValidationError

from cost_models.axes.layout import AXES
from cost_models.base import MAX_GPUS
from cost_models.defaults import complete_question
from cost_models.errors import Alternative, DoesNotFitError, InfeasibleError, InputError
from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.question import MixedQuestion, Question
from cost_models.risk import EVEN, confident_share
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.pools import MixedCluster
from cost_models.specs.transformer import TransformerSpec
from planner.answers.least_memory import where_least
from planner.rules.searched import searched
from planner.search.budget import Budget
from planner.space.gpu_counts import on_whole_nodes, plain_layouts, possible, resized
from planner.space.layouts import parse_restrictions
from planner.space.restrictions import CLOSED, Restrictions

SECONDS = 2.0
"""Time limit of all changes together, seconds."""
EACH_SECONDS = 0.5
"""Time limit of one change, seconds; it then shows the best plan found, or nothing."""
LARGER = 2
"""Most clusters of larger GPUs that are named."""
HALVINGS = 4
"""Most times that a sequence is halved."""
DOUBLINGS = 4
"""Most times that a number of GPUs is doubled, once trying sizes one by one has taken its share of the time."""


@contextmanager
def remedies_told(
    question: Question,
    limits: Restrictions,
    *,
    sizes: Sequence[int] = (),
    whole_nodes: ClusterSpec | MixedCluster | None = None,
) -> Iterator[None]:
    """Add remedies to a DoesNotFitError raised inside; of several numbers of GPUs the largest is the one that is
    changed.

    `whole_nodes` is the cluster in whole nodes, where the question has only part of a node.
    """
    try:
        yield
    except DoesNotFitError as error:
        largest = resized(question, max(sizes)) if sizes else question
        whole = on_whole_nodes(question)
        if isinstance(whole_nodes, ClusterSpec):
            whole = replace(question, cluster=whole_nodes)
        found = _Remedies(question=largest, whole=whole, limits=limits, state_bytes=error.state_bytes).all()
        raise DoesNotFitError(
            error.headline,
            problems=error.problems,
            hint=error.hint,
            state_bytes=error.state_bytes,
            would_fit=tuple(found),
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remedies:
    """The changes of one question, tried until the time is spent."""

    question: Question
    whole: Question
    """The question on whole nodes, where it has only part of one."""
    limits: Restrictions
    state_bytes: float
    budget: Budget = field(default_factory=lambda: Budget(time_limit=SECONDS))

    def all(self) -> Iterator[Alternative]:
        """Every change that has a plan, the least trouble first."""
        yield from self._loosened()
        yield from self._opened()
        yield from self._other_training()
        if not isinstance(self.question, MixedQuestion) and self.question.cluster.gpu.kind != "cpu":
            yield from self._more_gpus()
            yield from self._larger_gpus()
        yield from self._shorter()
        yield from self._fewer_layers()

    def _fitting(
        self, change: str, question: Question, limits: Restrictions | None = None, *, note: str = ""
    ) -> Alternative | None:
        """A plan that fits after a change; None where time ran out.

        Raises:
            InfeasibleError: none does, which is proven.
        """
        found = self.budget.search(
            question, where_least(self.limits if limits is None else limits), seconds=EACH_SECONDS
        )
        if found is None:
            return None
        best = found.best
        return Alternative(
            change=change,
            note=note,
            gpus=best.layout.num_gpus,
            layout=best.layout.brief,
            step_seconds=best.step_seconds,
            peak_bytes=best.peak_bytes,
            memory_limit=best.memory_limit,
        )

    def _first(self, changes: Iterator[tuple[str, Question, Restrictions | None]]) -> Iterator[Alternative]:
        """Those of some changes that have a plan."""
        for change, question, limits in changes:
            try:
                found = self._fitting(change, question, limits)
            except (InfeasibleError, InputError):
                continue
            if found is not None:
                yield found

    def _loosened(self) -> Iterator[Alternative]:
        """Dropping one restriction, or all of them where no single one is enough."""
        limits, words = self.limits, [*self.limits.fix_words, *self.limits.forbid_words]
        kept: dict[str, Any] = {name: getattr(limits, name) for name in ("max_memory", "trainer", "allowed")}
        one_less: list[tuple[str, Question, Restrictions | None]] = []
        for word in words:
            fix = [one for one in limits.fix_words if one != word]
            forbid = [one for one in limits.forbid_words if one != word]
            flag = "--fix" if word in limits.fix_words else "--forbid"
            less = replace(parse_restrictions(fix, forbid), **kept)
            one_less.append((f"without {flag} {word}", self.question, less))
        if limits.max_memory is not None:
            one_less.append(("without --max-memory", self.question, replace(limits, max_memory=None)))
        if (sure := self.question.confidence) > EVEN:
            share = confident_share(sure, self.question.memory_error)
            most = None if limits.max_memory is None else limits.max_memory / share
            even = replace(self.question, confidence=EVEN)
            one_less.append(("without --confidence", even, replace(limits, max_memory=most)))
        found = list(self._first(iter(one_less)))
        yield from found
        if not found and len(one_less) > 1:
            free = Restrictions(trainer=limits.trainer, allowed=limits.allowed)
            yield from self._first(iter([("without --fix, --forbid and --max-memory", self.question, free)]))

    def _opened(self) -> Iterator[Alternative]:
        """What the search leaves alone unless it is allowed, the host's memory; where it is, hosts with more."""
        closed = [
            name
            for name in CLOSED
            if name not in self.limits.allowed and not ((why := AXES[name].refuses) and why(self.question))
        ]
        opened = ((f"--allow {name}", self.limits.allowed | {name}) for name in closed)
        yield from self._first(
            (words, self.question, replace(self.limits, allowed=allowed)) for words, allowed in opened
        )
        for name, axis in searched().items():
            if name in self.limits.allowed and axis.remedies:
                more = axis.remedies(self.question, self.state_bytes)
                yield from islice(self._first((words, changed, None) for words, changed in more), 1)

    def _other_training(self) -> Iterator[Alternative]:
        """Recomputing more, 16-bit products, and optimizer states in 16 bits."""
        training = self.question.training
        changes: list[tuple[str, dict[str, Any]]] = []
        if "full" not in training.recompute:
            changes.append(("recompute: full in --training FILE", {"recompute": RECOMPUTE_POLICIES}))
        if training.precision == "fp32" and self._has("bf16"):
            changes.append(("--precision bf16", {"precision": "bf16"}))
        if training.state_dtype != "bf16":
            both = {"state_dtype": "bf16", "gradient_dtype": "bf16"}
            words = "state_dtype: bf16 and gradient_dtype: bf16 in --training FILE"
            changes.append((words, both))
        yield from self._first((words, self._trained(**update), None) for words, update in changes)

    def _trained(self, **update: Any) -> Question:
        training = self.question.training.model_copy(update=update)
        return replace(self.question, training=training)

    def _has(self, precision: str) -> bool:
        """Whether the GPU has a matrix rate in this precision."""
        return precision in self.question.cluster.gpu.peak

    def _more_gpus(self) -> Iterator[Alternative]:
        """The fewest GPUs that do: every size from what the states need; once that takes too long, doublings."""
        gpus, device = self.question.cluster.num_gpus, self.question.cluster.gpu.memory
        least = max(gpus + 1, int(self.state_bytes / device))
        share = self.budget.seconds_spent + (SECONDS - self.budget.seconds_spent) / 2
        one_by_one = self._sizes(least)
        last, skipped = gpus, False
        for size in one_by_one:
            last = size
            try:
                found = self._fitting(f"--gpus {size}", resized(self.whole, size), note="no fewer do")
            except InfeasibleError:
                found = None
            else:
                skipped = skipped or found is None
            if found is not None:
                yield replace(found, note="") if skipped else found
                return
            if self.budget.seconds_spent > share:
                break
        doubled = (last * 2**power for power in range(1, DOUBLINGS + 1))
        sizes = (size for size in doubled if size <= MAX_GPUS and possible(size, self.whole.cluster))
        yield from islice(self._first((f"--gpus {n}", resized(self.whole, n), None) for n in sizes), 1)

    def _sizes(self, least: int) -> Iterator[int]:
        """Numbers of GPUs from `least` on that the cluster can have and on which some layout is legal."""
        per_node = self.whole.cluster.gpus_per_node
        whole = -(-max(least, per_node + 1) // per_node) * per_node
        for size in chain(range(least, per_node + 1), range(whole, MAX_GPUS, per_node)):
            if not possible(size, self.whole.cluster) or self.budget.seconds_left <= 0:
                return
            if plain_layouts(self.whole, size)[1]:
                yield size

    def _larger_gpus(self) -> Iterator[Alternative]:
        """As many GPUs of other kinds in the catalogue with more memory, the smallest of them first."""
        here, gpus = self.question.cluster, self.question.cluster.num_gpus
        if self.limits.max_memory is not None:
            return
        known = [catalog.load_cluster(name) for name in catalog.names("clusters") if name != LOCAL]
        clusters = {one.gpu.name: one for one in reversed(known)}.values()  # the first of each GPU
        larger = sorted(
            (
                one
                for one in clusters
                if one.gpu.memory > max(here.gpu.memory, self.state_bytes / gpus)
                and self.question.training.precision in one.gpu.peak
                and possible(gpus, one)
            ),
            key=lambda one: one.gpu.memory,
        )
        questions = (
            replace(
                complete_question(
                    self.question.model, one, self.question.training, stack=self.question.stack
                ),
                confidence=self.question.confidence,
            )
            for one in larger
        )
        sized = ((f"{one.cluster.name} --gpus {gpus}", resized(one, gpus), None) for one in questions)
        yield from islice(self._first(sized), LARGER)

    def _shorter(self) -> Iterator[Alternative]:
        """Shorter sequences: the longest of some halves that fits. None where the states alone are too large."""
        cluster, length = self.question.cluster, self.question.training.sequence_length
        if self.state_bytes > cluster.num_gpus * cluster.gpu.memory:
            return
        lengths = (length // 2**power for power in range(1, HALVINGS + 1) if length % 2**power == 0)
        changes = ((f"--sequence {n}", self._trained(sequence_length=n), None) for n in lengths)
        yield from islice(self._first(changes), 1)

    def _fewer_layers(self) -> Iterator[Alternative]:
        """The most blocks that fit, on part of a node, where people try things out."""
        blocks = self.question.model.num_layers
        if self.question.cluster.num_gpus > self.whole.cluster.gpus_per_node:
            return
        low, high, best = 0, blocks, None
        while high - low > 1:
            middle = (low + high) // 2
            model = _cut(self.question.model, middle)
            if model is None or self.budget.seconds_left <= 0:
                return
            words = f"num_layers: {middle} (of {blocks}) in the model's file"
            try:
                found = self._fitting(words, replace(self.question, model=model), note="no more do")
            except InfeasibleError:
                found = None
            low, high, best = (middle, high, found) if found is not None else (low, middle, best)
        if best is not None:
            yield best


def _cut(model: TransformerSpec, blocks: int) -> TransformerSpec | None:
    """The model with only its first blocks; None where its file needs more than another number of blocks for that."""
    dense = model.num_layers - model.num_moe_layers
    fields = model.model_dump(mode="json") | {"num_layers": blocks}
    if model.has_experts:
        fields["num_moe_layers"] = max(blocks - dense, 0)
    try:
        return TransformerSpec.model_validate(fields)
    except ValidationError:
        return None
