"""What a plan's prediction counts on, in the units of an examination."""

from __future__ import annotations

import numpy as np

from cost_models.communication.collectives import point_to_point_seconds
from cost_models.communication.topology import group_of
from cost_models.compute.device import device_of
from cost_models.compute.gemm import gemm_seconds
from cost_models.question import MixedQuestion
from executor.doctor.judging import BETWEEN, Assumptions
from executor.doctor.readings import LATENCY, LINK, MATMUL, MEMORY
from executor.doctor.sizes import sizes_of
from planner.plan import Plan

_PAIR = 2


def assumptions_of(plan: Plan) -> Assumptions:
    """Seconds of products, copies and messages as the plan's profile has them, and the memory of its fullest rank.

    A plan over several pools of GPUs, each with a profile of its own, says only what memory it needs.
    """
    needed = max(sum(parts.values()) for parts in plan.prediction.rank_memory)
    question = plan.question
    if isinstance(question, MixedQuestion):
        return Assumptions(seconds={}, bytes_needed=needed, known=False)
    sizes, device = (
        sizes_of("cpu" if question.cluster.gpu.kind == "cpu" else "cuda"),
        device_of(question, wide=True),
    )
    side = np.array([float(sizes.side)])
    seconds = {
        MATMUL: float(gemm_seconds(side, side, side, device)[0]),
        MEMORY: 2.0 * sizes.copied_bytes / device.memory_rate,
    }
    cluster = question.cluster
    pairs = {"": 1, BETWEEN: cluster.gpus_per_node}
    for where, stride in pairs.items():
        if _PAIR * stride > cluster.num_gpus or (not where and cluster.gpus_per_node < _PAIR):
            continue
        group = group_of(cluster, _PAIR, stride)
        for check, size in ((LINK, sizes.large_bytes), (LATENCY, sizes.small_bytes)):
            seconds[check + where] = float(point_to_point_seconds(float(size), group, question.hardware)[0])
    return Assumptions(seconds=seconds, bytes_needed=needed, known=question.hardware.tier != "datasheet")
