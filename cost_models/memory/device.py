"""Bytes of device and host memory that a plan may use, and bytes of device memory that driver and NCCL take.

    reserved = states + (1 + fragmentation) · (activations + temporaries)
    in use   = reserved + context + communicators × buffers
    limit    = (device − context − communicators × buffers) · share

The first line is the peak of a plan: the bytes that the allocator reserves on the device, all of which except
fragmentation it counts as allocated. Permanent tensors stay in place; temporary ones leave blocks that the
next tensor does not fit. The second line is what `nvidia-smi` shows; the third is the largest peak that is
predicted to run with the requested confidence (`cost_models.risk`). The allocator also holds the libraries'
workspaces.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.question import Question
from cost_models.risk import confident_share
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import MIB

_DETERMINISTIC_WORKSPACE = 32.25 * MIB
"""Bytes of the workspace that reproducible products need: CUBLAS_WORKSPACE_CONFIG=:4096:8, eight buffers of 4
MiB."""
USABLE = 0.9
"""Share of a host's memory, and of its drives, that a plan may use: the rest is for system, file system,
processes, checkpoints and data."""


def memory_limit(question: Question, columns: LayoutColumns) -> Array:
    """Bytes that the predicted peak of the allocator may reach on a device under each layout, (N,).

    A cluster's own `memory_reserve`, a share of the device, replaces the part of drivers and allocator.
    """
    device, reserve = question.cluster.gpu.memory, question.cluster.memory_reserve
    share = confident_share(question.confidence, question.memory_error)
    if reserve is not None:
        return np.full(len(columns), device * (1.0 - reserve) * share)
    return np.maximum(device - context_bytes(question, columns), 0.0) * share


def used_device_bytes(question: Question, columns: LayoutColumns, reserved_bytes: Array | float) -> Array:
    """Bytes of device memory that the driver reports as used if the allocator has reserved `reserved_bytes`,
    (N,)."""
    return np.minimum(reserved_bytes + context_bytes(question, columns), question.cluster.gpu.memory)


def fragmentation(question: Question) -> float:
    """Bytes lost to allocator fragmentation per byte of temporary tensors; 0 on a CPU, or if the cluster
    states a memory reserve."""
    cluster = question.cluster
    if cluster.gpu.kind == "cpu" or cluster.memory_reserve is not None:
        return 0.0
    return question.stack.fragmentation


def context_bytes(question: Question, columns: LayoutColumns) -> Array:
    """Bytes of device memory outside the allocator, (N,): the driver's context with its kernels, and the
    buffers of each communicator."""
    if question.cluster.gpu.kind == "cpu":
        return np.zeros(len(columns))
    stack = question.stack
    axes = communicators(columns).astype(np.float64)
    count = axes + np.where(axes > 0, stack.further_communicators, 0)
    return stack.context_bytes + stack.communicator_bytes * count


def communicators(columns: LayoutColumns) -> Ints:
    """Number of communicators that a rank creates along the mesh axes, (N,): one for each axis, two for a
    pipeline (one per direction)."""
    degrees = (columns.tp, columns.cp, columns.replicas, columns.ep, columns.pp, columns.pp)
    return np.asarray(np.sum([degree > 1 for degree in degrees], axis=0))


def workspace_bytes(question: Question) -> float:
    """Bytes of the matrix library's workspaces inside the allocator: one for the forward thread, one for the
    backward thread, and a third if Transformer Engine calls the library itself."""
    gpu, stack = question.cluster.gpu, question.stack
    if gpu.kind == "cpu":
        return 0.0
    thread_bytes = max(gpu.library_workspace, _DETERMINISTIC_WORKSPACE if stack.deterministic else 0.0)
    return 2 * thread_bytes + stack.transformer_engine * gpu.library_workspace


def is_own_host(cluster: ClusterSpec) -> bool:
    """Whether the devices are CPUs, so that host and device memory are the same."""
    return cluster.gpu.kind == "cpu"


def usable_host_memory(cluster: ClusterSpec) -> float:
    """Bytes of one host's memory available to offloaded blocks; 0 if the memory's size is unknown."""
    return USABLE * (cluster.host_memory or 0.0)


def usable_drive(cluster: ClusterSpec) -> float:
    """Bytes of one host's drives available to offloaded optimizer states; 0 if no drive is known."""
    return 0.0 if cluster.drive is None else USABLE * cluster.drive.capacity
