"""The memory of every pipeline rank at the fullest moment of its step, in total or part by part.

The moments are those at which the rank's live microbatches are maximal in the schedule, and the optimizer step. The
formulas are those of `stage_costs`.

Shape legend: `...` any batch of placements, R ranks, K moments, C chunks of a rank, P recompute policies (of several
kinds of blocks: sorts), Q parts in the order of `MEMORY_PARTS`, or their total alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.estimate import Breakdown
from cost_models.pipeline.stage_costs import BYTES, StageCosts
from cost_models.pipeline.time_pieces import MEMORY_PARTS, Terms
from cost_models.schedules.actions import ActionTable, live_profiles, pending_profiles


def columns_of(costs: StageCosts) -> dict[str, Array]:
    """Each memory coefficient as one part: (·, 1), or (·, P, 1); a row, or one for each rank."""
    return {name: getattr(costs, name)[..., None] for name in BYTES}


def parts_of(terms: Terms) -> dict[str, Array]:
    """Parts of each memory coefficient: (·, Q), or (·, P, Q)."""
    found: dict[str, Array] = {}
    for name in BYTES:
        shape = next(iter(terms[name].values())).shape
        found[name] = np.zeros((*shape, len(MEMORY_PARTS)))
        for part, value in terms[name].items():
            found[name][..., MEMORY_PARTS.index(part)] = value
    return found


class RankMemory:
    """Peaks of the ranks of a pipeline under any placement."""

    def __init__(self, columns: Mapping[str, Array], table: ActionTable) -> None:
        self._x = {
            name: np.broadcast_to(column, (table.pp, *column.shape[1:])) for name, column in columns.items()
        }
        self._stages_RC = table.stages_of_rank
        self._last = int(table.rank_of_stage[-1])
        self._live_RKC = _stacked_moments(live_profiles(table))
        self._pending_RKC = _stacked_moments(pending_profiles(table)) if table.splits_backward else None

    def peaks(self, blocks_SP: Ints) -> Array:
        """(..., R): bytes of each rank at its fullest moment."""
        peak_R: Array = self.moments(blocks_SP).sum(axis=-1).max(axis=-1)
        return peak_R

    def breakdowns(self, blocks_SP: Ints) -> tuple[Breakdown, ...]:
        """The parts of each rank's peak under one placement."""
        moments_RKQ = self.moments(blocks_SP)
        fullest_R = moments_RKQ.sum(axis=-1).argmax(axis=-1)
        return tuple(
            Breakdown(tuple(zip(MEMORY_PARTS, moments_KQ[fullest].tolist(), strict=True)))
            for moments_KQ, fullest in zip(moments_RKQ, fullest_R, strict=True)
        )

    def moments(self, blocks_SP: Ints) -> Array:
        """(..., R, K + 1, Q): bytes of each rank at the moments that can be its peak, the optimizer step last."""
        x = self._x
        blocks_RCP = blocks_SP[..., self._stages_RC, :].astype(np.float64)
        blocks_RP = blocks_RCP.sum(axis=-2)
        held_RQ = self._static_bytes(blocks_RP)
        update_RQ = held_RQ + x["rank_update"] + self._of_blocks("layer_update", blocks_RP)
        update_RQ[..., 0, :] += x["embedding_update"][0]
        update_RQ[..., self._last, :] += x["head_update"][self._last]
        training_RKQ = held_RQ[..., None, :] + self._live_RKC @ blocks_RCP @ x["layer_activation"]
        if self._pending_RKC is not None:
            training_RKQ += self._pending(blocks_RCP, self._pending_RKC)
        self._keep_at_ends(training_RKQ)
        training_RKQ += self._working(blocks_RCP)[..., None, :]
        return np.concatenate([training_RKQ, update_RQ[..., None, :]], axis=-2)

    def _of_blocks(self, name: str, blocks_RP: Array) -> Array:
        """(..., R, Q) bytes of all blocks of each rank: the same for every block, or by sort."""
        each: Array = self._x[name]
        alike = each.ndim == 2
        had_RQ: Array = (
            blocks_RP.sum(axis=-1)[..., None] * each if alike else (blocks_RP[..., None, :] @ each)[..., 0, :]
        )
        return had_RQ

    def _static_bytes(self, blocks_RP: Array) -> Array:
        """(..., R, Q) bytes that are always there."""
        held_RQ: Array = self._x["static"] + self._of_blocks("layer_static", blocks_RP)
        held_RQ[..., 0, :] += self._x["embedding_static"][0]
        held_RQ[..., self._last, :] += self._x["head_static"][self._last]
        return held_RQ

    def _keep_at_ends(self, training_RKQ: Array) -> None:
        """Add what embedding and head keep for live microbatches."""
        x, last, live_RKC = self._x, self._last, self._live_RKC
        training_RKQ[..., 0, :, :] += live_RKC[0, :, :1] * x["embedding_activation"][0]
        training_RKQ[..., last, :, :] += live_RKC[last, :, -1:] * x["head_activation"][last]

    @property
    def most_live(self) -> Array:
        """(R,): the most live microbatches of a rank; one chunk a rank."""
        most_R: Array = self._live_RKC.max(axis=(1, 2))
        return most_R

    def besides_blocks(self, layers_R: Ints, policies: Sequence[int]) -> Array:
        """(..., R): training bytes besides kept activations of blocks, if `policies` are in use; one chunk a rank."""
        used_RCP = np.zeros((len(self._live_RKC), 1, self._x["working"].shape[1]))
        used_RCP[..., policies] = 1.0
        training_RKQ = self._static_bytes(layers_R[..., None].astype(np.float64))[..., None, :] + np.zeros(
            (self._live_RKC.shape[1], 1)
        )
        self._keep_at_ends(training_RKQ)
        training_RKQ += self._working(used_RCP)[:, None, :]
        most_R: Array = training_RKQ.sum(axis=-1).max(axis=-1)
        return most_R

    def _pending(self, blocks_RCP: Array, pending_RKC: Array) -> Array:
        """(..., R, K, Q) gradients that wait for their weight products; the first stage runs no input half, so it has
        none."""
        waiting_RCP = blocks_RCP.copy()
        waiting_RCP[..., 0, 0, :] = 0.0
        each = self._x["layer_pending"]
        if each.ndim == 2:
            waiting_RK = (pending_RKC @ waiting_RCP.sum(axis=-1)[..., None])[..., 0]
            pending_RKQ: Array = waiting_RK[..., None] * each[:, None]
        else:
            pending_RKQ = pending_RKC @ waiting_RCP @ each
        head_KQ = pending_RKC[self._last, :, -1:] * self._x["head_pending"][self._last]
        pending_RKQ[..., self._last, :, :] += head_KQ
        return pending_RKQ

    def _working(self, blocks_RCP: Array) -> Array:
        """(..., R, Q): the largest temporary set."""
        used_RP: Bools = np.asarray(blocks_RCP.any(axis=-2))
        working_RQ = _largest(np.where(used_RP[..., None], self._x["working"], 0.0))
        last_Q, head_Q = working_RQ[..., self._last, :], self._x["head_moment"][self._last]
        last_Q[...] = _largest(np.stack(np.broadcast_arrays(last_Q, head_Q), axis=-2))
        return working_RQ


def _largest(sets: Array) -> Array:
    """(..., Q): the one of (..., S, Q) sets that is largest in all."""
    most = sets.sum(axis=-1).argmax(axis=-1)[..., None, None]
    return np.take_along_axis(sets, most, axis=-2)[..., 0, :]


def _stacked_moments(profiles: Sequence[Ints]) -> Array:
    """(R, K, C): the moments of all ranks; of ranks with fewer the last one again."""
    most = max(map(len, profiles))
    return np.stack(
        [np.concatenate([one, np.repeat(one[-1:], most - len(one), axis=0)]) for one in profiles]
    ).astype(np.float64)
