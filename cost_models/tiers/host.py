"""Bytes of a host's memory that its ranks keep there.

Every rank counts as the fullest. Pinned buffers are the memory itself: weights, gradients and states lie in it as they
travel.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import Ints, LayoutColumns
from cost_models.axes.offload import offloads
from cost_models.axes.recompute import RECOMPUTE_POLICIES
from cost_models.memory.activations import activation_bytes
from cost_models.memory.states import gradients_wait, state_bytes
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.tiers.drive import buffer_bytes, drive_traffic
from cost_models.tiers.residency import RESIDENT, of_fullest_rank, rest_is

Array = npt.NDArray[np.float64]


USABLE = 0.9
"""Share of a host's memory that offloaded blocks may fill: the rest is the system's and the processes' own."""


def usable_host_memory(cluster: ClusterSpec) -> float:
    """Bytes of one host's memory that offloaded blocks may fill; nothing where nobody says how much it has."""
    return USABLE * (cluster.host_memory or 0.0)


def host_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes in the memory of one host: states of its ranks' blocks, and the activations that they parked there."""
    if not offloads(columns).any():
        return np.zeros(len(columns))
    rank = of_fullest_rank(
        question, columns, lambda part, experts: _held_away(question, columns, part, experts=experts)
    )
    rank = rank * question.stack.host_buffers + buffer_bytes(question, columns)
    rank = rank + _activations(question, columns, -(-question.model.num_layers // columns.pp))
    each: Array = rank * np.minimum(columns.ranks, question.cluster.gpus_per_node)
    return each


def _held_away(question: Question, columns: LayoutColumns, part: str, *, experts: bool) -> Array:
    """(N,) bytes per parameter that are not on the device."""
    whole, left = (
        state_bytes(question, columns, experts=experts, residency=where) for where in (RESIDENT, part)
    )
    scattered = gradients_wait(question, columns) & (part in {"states", "streamed"})
    copied = whole.worked_on if part == "states" else 0.0  # weights on both sides
    away = whole.total - left.total + np.where(scattered, whole.reduced, 0.0) + copied
    return away - drive_traffic(question, columns, residency=part, experts=experts).held


def _activations(question: Question, columns: LayoutColumns, blocks: Ints) -> Array:
    """(N,) bytes that a rank's blocks keep for the backward passes of all microbatches under way, recomputing as little
    as the training job allows."""
    away = rest_is(columns, "activations")
    if not away.any():
        return np.zeros(len(columns))
    live = np.minimum(columns.pp, columns.microbatches(question.training.global_batch))
    allowed = [RECOMPUTE_POLICIES.index(policy) for policy in question.training.recompute]
    kept = activation_bytes(question, columns).block[:, allowed].max(axis=1)
    return np.where(away, live * blocks * kept, 0.0)
