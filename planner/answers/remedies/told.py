"""Remedies where nothing fits: single changes of the question, as the user would type them, with a plan that then fits.

First what changes a flag on the same machine: a restriction less, other axes, other stacks, offload. Then fewer bytes:
precision, sequence. Then more GPUs, and other machines of the same class. Last fewer blocks.

They are searched where memory is least: with the smallest and largest microbatches and states sharded over all their
replicas. What does not fit there fits nowhere. Of what fits some plan is shown; planning for the change may find a
faster one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from cost_models.base import MAX_GPUS
from cost_models.errors import Alternative, DoesNotFitError, InfeasibleError, InputError
from cost_models.question import MixedQuestion, Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.pools import MixedCluster
from planner.answers.optimum import where_least
from planner.answers.remedies import changes
from planner.answers.remedies.changes import Change
from planner.search.budget import Budget
from planner.space.gpu_counts import on_whole_nodes, possible, resized
from planner.space.restrictions import Restrictions

SECONDS = 4.0
"""Time limit of all changes together, seconds."""
EACH_SECONDS = 0.5
"""Time limit of one change, seconds; it then shows the best plan found, or nothing."""
LARGER = 2
"""Most clusters of larger GPUs that are named."""
MACHINE_SHARE = 0.75
"""Share of the time for changes on the same machine."""
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
        asked = self.question, self.limits
        yield from self._loosened()
        yield from self._on_the_same_machine()
        yield from self._first(changes.other_training(*asked))
        if (
            self.state_bytes <= asked[0].cluster.num_gpus * asked[0].cluster.gpu.memory
        ):  # activations are too large
            yield from islice(self._first(changes.shorter(*asked)), 1)
        if not isinstance(self.question, MixedQuestion) and self.question.cluster.gpu.kind != "cpu":
            yield from self._more_gpus()
            if self.limits.max_memory is None:
                larger = changes.larger_gpus(*asked, self.state_bytes)
                yield from islice(self._first(larger), LARGER)
        yield from self._fewer_layers()

    def _fitting(self, change: Change, *, note: str = "") -> Alternative | None:
        """A plan that fits after a change; None where time ran out.

        Raises:
            InfeasibleError: none does, which is proven.
        """
        found = self.budget.search(change.question, where_least(change.limits), seconds=EACH_SECONDS)
        if found is None:
            return None
        best = found.best
        return Alternative(
            change=change.words,
            note=note,
            gpus=best.layout.num_gpus,
            layout=best.layout.brief,
            step_seconds=best.step_seconds,
            peak_bytes=best.peak_bytes,
            memory_limit=best.memory_limit,
        )

    def _first(self, tried: Iterable[Change], until: float = math.inf) -> Iterator[Alternative]:
        """Those of some changes that have a plan, while less than `until` seconds are spent."""
        for change in tried:
            if self.budget.seconds_spent > until:
                return
            try:
                found = self._fitting(change)
            except (InfeasibleError, InputError):
                continue
            if found is not None:
                yield found

    def _loosened(self) -> Iterator[Alternative]:
        """Dropping one restriction, or all of them where no single one is enough."""
        one_less = changes.loosened(self.question, self.limits)
        found = list(self._first(one_less))
        yield from found
        if not found and len(one_less) > 1:
            yield from self._first([changes.without_any(self.question, self.limits)])

    def _on_the_same_machine(self) -> Iterator[Alternative]:
        """Other axes and the host's memory; then other stacks, the fastest first, which offload if they must."""
        asked = self.question, self.limits
        share = self.budget.seconds_spent + (SECONDS - self.budget.seconds_spent) * MACHINE_SHARE
        yield from self._first(changes.opened(*asked), share)
        for more in changes.larger_hosts(*asked, self.state_bytes):
            yield from islice(self._first(more), 1)
        found = [
            one if "offload=" in one.layout else replace(one, change=one.change.removesuffix(changes.ALLOWED))
            for one in self._first(changes.other_stacks(*asked), share)
        ]
        yield from sorted(found, key=lambda one: one.step_seconds)

    def _more_gpus(self) -> Iterator[Alternative]:
        """The fewest GPUs that do: every number above; once that takes too long, doublings of it or of what the states
        need."""
        gpus, device = self.question.cluster.num_gpus, self.question.cluster.gpu.memory
        share = self.budget.seconds_spent + (SECONDS - self.budget.seconds_spent) / 2
        last, skipped = gpus, False
        for size in self._sizes(gpus + 1):
            last = size
            try:
                found = self._fitting(self._on(size), note=f"the fewest above {gpus}")
            except InfeasibleError:
                found = None
            else:
                skipped = skipped or found is None
            if found is not None:
                yield replace(found, note="") if skipped else found
                return
            if self.budget.seconds_spent > share:
                break
        nodes = int(self.state_bytes / device) // self.whole.cluster.gpus_per_node
        start = max(2 * last, nodes * self.whole.cluster.gpus_per_node)
        doubled = (start * 2**power for power in range(DOUBLINGS))
        sizes = (size for size in doubled if size <= MAX_GPUS and possible(size, self.whole.cluster))
        yield from islice(self._first(map(self._on, sizes)), 1)

    def _on(self, gpus: int) -> Change:
        return Change(f"--gpus {gpus}", resized(self.whole, gpus), self.limits)

    def _sizes(self, least: int) -> Iterator[int]:
        """Numbers of GPUs from `least` on that the cluster can have."""
        per_node = self.whole.cluster.gpus_per_node
        whole = -(-max(least, per_node + 1) // per_node) * per_node
        for size in chain(range(least, per_node + 1), range(whole, MAX_GPUS, per_node)):
            if not possible(size, self.whole.cluster) or self.budget.seconds_left <= 0:
                return
            yield size

    def _fewer_layers(self) -> Iterator[Alternative]:
        """As many blocks as halving finds to fit, on part of a node, where people try things out."""
        blocks = self.question.model.num_layers
        if self.question.cluster.num_gpus > self.whole.cluster.gpus_per_node:
            return
        low, high, best = 0, blocks, None
        while high - low > 1:
            middle = (low + high) // 2
            model = changes.cut(self.question.model, middle)
            if model is None or self.budget.seconds_left <= 0:
                return
            words = f"num_layers: {middle} (of {blocks}) in the model's file"
            try:
                change = Change(words, replace(self.question, model=model), self.limits)
                found = self._fitting(change)
            except InfeasibleError:
                found = None
            low, high, best = (middle, high, found) if found is not None else (low, middle, best)
        if best is not None:
            yield best
