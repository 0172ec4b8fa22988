"""Hosts with more memory, for what does not fit although blocks may lie there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from cost_models.memory.device import is_own_host
from cost_models.question import MixedQuestion, Question

_GIB = float(2**30)
_DOUBLINGS = 4
"""Sizes that are tried."""


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
