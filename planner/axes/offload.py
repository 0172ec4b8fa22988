"""Offload in the planner: what of it hosts hold, and hosts that would hold more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.hosts import RULES, host_bytes
from cost_models.axes.words import EVERY
from cost_models.errors import InfeasibleError
from cost_models.memory.device import is_own_host, usable_host_memory
from cost_models.question import MixedQuestion, Question
from planner.bounds.boxes import within_late_rules
from planner.rules.searched import Searched
from planner.space.counts import Boxes, with_counts

_GIB = float(2**30)
_DOUBLINGS = 4
"""Sizes that are tried."""


def most_held(question: Question, columns: LayoutColumns, boxes: Boxes) -> tuple[LayoutColumns, Bools]:
    """The layout of each box with as many offloaded blocks as hosts hold on the way from its least to its most counts,
    and (N,) whether they hold it."""
    one, other = with_counts(columns, boxes.least), with_counts(columns, boxes.most)
    low, high, room = (
        host_bytes(question, one),
        host_bytes(question, other),
        usable_host_memory(question.cluster),
    )
    share = np.clip((room - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    sides = boxes.most - boxes.least
    spare = boxes.room - np.where(boxes.least < EVERY, boxes.least, 0).sum(axis=1)
    share = np.minimum(share, spare / np.maximum(sides.sum(axis=1), 1))
    found = with_counts(columns, boxes.least + np.floor(share[:, None] * sides).astype(np.int64))
    return found, within_late_rules(question, found)


def nothing_held(question: Question, columns: LayoutColumns) -> InfeasibleError:
    """The error to raise when no host holds what any layout of some offloads: the one that offloads least."""
    least = columns.layout(int(host_bytes(question, columns).argmin()))
    small = next(rule for rule in RULES if rule.broken(question, LayoutColumns.of([least]))[0])
    words = small.sentence(question, least)
    return InfeasibleError(words.what, hint=words.hint)


def larger_hosts(question: Question, state_bytes: float) -> Iterator[tuple[str, Question]]:
    """The flag and the question of each size: powers of two, from what states need besides the devices on; none over
    several pools, and none where devices are their own hosts."""
    if isinstance(question, MixedQuestion) or is_own_host(question.cluster):
        return
    cluster, now = question.cluster, question.cluster.host_memory or 0.0
    besides = (state_bytes - cluster.num_gpus * cluster.gpu.memory) / cluster.nodes
    least = math.ceil(math.log2(max(besides, now, _GIB) / _GIB))
    for power in range(least, least + _DOUBLINGS):
        size = 2**power
        if size * _GIB > now:
            larger = cluster.model_copy(update={"host_memory": size * _GIB})
            yield f"--host-memory {size}GiB", replace(question, cluster=larger)


SEARCHED = Searched(most_held=most_held, nothing_held=nothing_held, remedies=larger_hosts)
