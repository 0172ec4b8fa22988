"""The memory of each pipeline rank at the fullest moment of its step, part by part.

The moments are those at which the rank's live microbatches are maximal in the schedule, and the optimizer step. Shape
legend: K moments, V chunks of a rank, P recompute policies, Q parts, in
the order of `MEMORY_PARTS`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.recompute import RECOMPUTE_POLICIES
from cost_models.breakdown import Breakdown
from cost_models.pipeline.memory_terms import MEMORY_PARTS, MemoryTerms, Term

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class RankMemory:
    """Peaks of one placed layout, whose coefficients are the only row of `memories`."""

    def __init__(self, memories: MemoryTerms) -> None:
        self._static_Q = _column(memories.static)
        self._layer_static_Q = _column(memories.layer_static)
        self._layer_update_Q = _column(memories.layer_update)
        self._first_Q = _column(memories.embedding_static)
        self._last_Q = _column(memories.head_static)
        self._first_activation_Q = _column(memories.embedding_activation)
        self._last_activation_Q = _column(memories.head_activation)
        self._pending_Q = _column(memories.layer_pending)
        self._last_pending_Q = _column(memories.head_pending)
        self._head_moment_Q = _column(memories.head_moment)
        self._first_update_Q = _column(memories.embedding_update)
        self._last_update_Q = _column(memories.head_update)
        self._activation_PQ = _policies(memories.layer_activation)
        self._working_PQ = _policies(memories.working)

    def peak(self, blocks_VP: Ints, live_KV: Ints, pending_KV: Ints, *, first: bool, last: bool) -> Breakdown:
        """The parts of a rank's peak: its chunks' blocks under each recompute policy, and its microbatches that are
        live, and between the halves of their backward pass."""
        held_Q = self._static_Q + blocks_VP.sum() * self._layer_static_Q
        held_Q = held_Q + first * self._first_Q + last * self._last_Q
        update_Q = blocks_VP.sum() * self._layer_update_Q
        update_Q = held_Q + update_Q + first * self._first_update_Q + last * self._last_update_Q
        training_KQ = held_Q + live_KV @ blocks_VP @ self._activation_PQ
        training_KQ = training_KQ + self._pending(blocks_VP.sum(axis=1), pending_KV, first=first, last=last)
        working_Q = self._working_PQ[blocks_VP.any(axis=0)].max(axis=0, initial=0.0)
        if first:
            training_KQ = training_KQ + live_KV[:, :1] * self._first_activation_Q
        if last:
            training_KQ = training_KQ + live_KV[:, -1:] * self._last_activation_Q
            working_Q = np.maximum(working_Q, self._head_moment_Q)
        training_KQ = training_KQ + working_Q
        moments = np.concatenate([training_KQ, update_Q[None]])
        fullest_Q = moments[int(np.argmax(moments.sum(axis=1)))]
        return Breakdown(tuple(zip(MEMORY_PARTS, fullest_Q.tolist(), strict=True)))

    def _pending(self, layers_V: Ints, pending_KV: Ints, *, first: bool, last: bool) -> Floats:
        """(K, Q) gradients that wait for their weight products; the first stage runs no input half, so it has none."""
        blocks_V = np.where(np.arange(len(layers_V)) == 0, 0, layers_V) if first else layers_V
        pending_KQ: Floats = (pending_KV @ blocks_V)[:, None] * self._pending_Q
        return pending_KQ + pending_KV[:, -1:] * self._last_pending_Q if last else pending_KQ


def _column(term: Term) -> Floats:
    """(Q,) a coefficient's parts."""
    return np.array([float(term[part][0]) if part in term else 0.0 for part in MEMORY_PARTS])


def _policies(term: Term) -> Floats:
    """(P, Q) a coefficient's parts under each recompute policy."""
    none = np.zeros(len(RECOMPUTE_POLICIES))
    return np.stack([term[part][0] if part in term else none for part in MEMORY_PARTS], axis=-1)
