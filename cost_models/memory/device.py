"""What of a device's memory a plan may fill: the rest belongs to the driver, to NCCL and to the allocator's holes.

    in use  = allocated / (1 − fragmentation) + context + communicators × buffers
    limit   = (device − context − communicators × buffers) · (1 − fragmentation) · share

The first line is what `nvidia-smi` shows; the second is the largest peak, as the allocator counts, that is predicted to
run with the confidence asked for (`cost_models.confidence`). Besides its tensors the allocator holds the workspaces of
the libraries, which the peak includes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.confidence import confident_share
from cost_models.question import Question
from cost_models.units import MIB

Array = npt.NDArray[np.float64]

_DETERMINISTIC_WORKSPACE = 32.25 * MIB
"""CUBLAS_WORKSPACE_CONFIG=:4096:8, which reproducible products need, asks for eight buffers of 4 MiB."""


def memory_limit(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes the predicted peak of the allocator may reach under each layout.

    A cluster's own `memory_reserve` replaces what drivers and allocator take: it is a share of the device.
    """
    device, reserve = question.cluster.gpu.memory, question.cluster.memory_reserve
    share = confident_share(question.confidence, question.memory_error)
    if reserve is not None:
        return np.full(len(columns), device * (1.0 - reserve) * share)
    return (device - context_bytes(question, columns)) * (1.0 - question.stack.fragmentation) * share


def in_use(question: Question, columns: LayoutColumns, allocated: Array | float) -> Array:
    """(N,) bytes the driver reports when the allocator's peak was `allocated`."""
    used = reserved(question, allocated) + context_bytes(question, columns)
    return used.clip(max=question.cluster.gpu.memory)


def reserved(question: Question, allocated: Array | float) -> Array:
    """Bytes of the blocks that hold a peak of `allocated`."""
    blocks: Array = np.asarray(allocated, dtype=np.float64) * (1.0 / (1.0 - question.stack.fragmentation))
    return blocks


def context_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes outside the allocator: the driver's context with its kernels, and the buffers of each communicator."""
    if question.cluster.gpu.kind == "cpu":
        return np.zeros(len(columns))
    stack = question.stack
    each = communicators(columns).astype(np.float64)
    return stack.context_bytes + stack.communicator_bytes * each


def communicators(columns: LayoutColumns) -> npt.NDArray[np.int64]:
    """(N,) communicators of a rank: one for each mesh axis, two for a pipeline (each direction is a pair's own)."""
    axes = [
        columns.tp > 1,
        columns.cp > 1,
        columns.replicas > 1,
        columns.ep > 1,
        columns.pp > 1,
        columns.pp > 1,
    ]
    count: npt.NDArray[np.int64] = np.sum(axes, axis=0)
    return count


def workspace_bytes(question: Question) -> float:
    """Bytes of the matrix library's workspaces inside the allocator: one for the thread that runs forward, one for the
    thread that runs backward, and a third where Transformer Engine calls the library on its own."""
    gpu, stack = question.cluster.gpu, question.stack
    if gpu.kind == "cpu":
        return 0.0
    own = max(gpu.library_workspace, _DETERMINISTIC_WORKSPACE if stack.deterministic else 0.0)
    return 2 * own + stack.transformer_engine * gpu.library_workspace
