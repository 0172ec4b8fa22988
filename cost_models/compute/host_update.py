"""The optimizer step on the CPU: gradients go down to host memory, the CPU updates, weights come up again.

    seconds per parameter = (gradient + w · weight bytes) / host link + CPU update · processes sharing a socket

each over the ranks that share the states; w is 1, or with offloaded weights twice a microbatch: for its forward and
for its backward pass (Rajbhandari et al. 2021, ZeRO-Infinity). A process's update was measured with a socket to itself,
which two processes of a host have. Leaves out that transfers may hide behind the backward pass, and any NVMe drive.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.operators.accumulation import gradient_dtype
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES

Array = npt.NDArray[np.float64]

_SOCKETS = 2
"""Of a host."""


def host_update_seconds(question: Question, columns: LayoutColumns, *, experts: bool) -> Array:
    """(N,) seconds of a step per parameter of the rank."""
    stack, training, cluster = question.stack, question.training, question.cluster
    ranks = columns.expert_shard if experts else columns.shard
    shard = np.where(columns.zero >= 1, ranks, 1)
    passes = np.ones(len(columns))
    if stack.offloads == "parameters":
        passes = np.where(columns.zero == 3, 2.0 * columns.microbatches(training.global_batch), 1.0)
    moved = STATE_BYTES[gradient_dtype(question)] + passes * training.element_bytes
    link = cluster.gpu.host_bandwidth or np.inf  # a CPU is its own host
    crowded = np.maximum(1.0, np.minimum(columns.ranks, cluster.gpus_per_node) / _SOCKETS)
    seconds: Array = (moved / link + stack.host_update_seconds * crowded) / shard
    return seconds
