"""A block's data-parallel communication behind its passes: weights that ZeRO-3 gathers and gradients that are reduced.

Most trainers gather as far ahead as memory lets them, so that a pass of compute C and communication M shows what
outlasts all of it: max(ΣC, ΣM). DeepSpeed gathers matrix by matrix, in hooks of each. Until 2022 it fetched one matrix
behind the one at work and waited for the device before the next, so that the longer of the two counts for each matrix:
Σ max(C, M). Its host cut and copied each gathered tensor into a slice a rank, and only then launched what is to run.

Hooks of each matrix run in a recomputed pass, too: what it used is gathered once more for the backward pass, unless so
few parameters pass in between that it was kept.

N layouts, P recompute policies, U matrices of a block. A run is a matrix with what is computed until the next one; what
is neither a product nor the attention core is shared out like weights. Left out: copies of what is gathered once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

import numpy as np

from cost_models.arrays import Array
from cost_models.communication.data import exposed
from cost_models.compute.block_gemms import forward_seconds, local_gemm
from cost_models.operators.block import block_operators
from cost_models.operators.on_rank import held_on_rank
from cost_models.operators.record import Operator
from cost_models.pipeline.time_pieces import Pieces
from cost_models.specs.choices import RECOMPUTE_POLICIES

_Shown = tuple[Array, Array]
"""Seconds in sight, and seconds hidden."""
_Run = tuple[int, bool]
"""The number of a matrix, and whether it is at work backward."""


def forward_shown(pieces: Pieces) -> _Shown:
    """(N,) each, of the gathers of a forward pass."""
    gather = pieces.links.block.gather
    if not pieces.question.stack.zero3_waits_for_device:
        return _behind(pieces, gather, pieces.forward_window)
    gathers = gather * np.roll(_weights(pieces), -1, axis=0)
    seconds = _seconds(pieces, backward=False)
    return _run_by_run(pieces, list(zip(gathers, gathers, seconds, strict=True)))


def backward_shown(pieces: Pieces) -> _Shown:
    """(N, P) each, of the gathers of a backward pass and of gradients reduced behind it."""
    data = pieces.links.block
    if pieces.question.stack.zero3_reuse_elements is None:
        found = _behind(pieces, data.gather + data.backward_reduce, pieces.backward_window)
        shown, hidden = (one[:, None] * np.ones(len(RECOMPUTE_POLICIES)) for one in found)
        return shown, hidden
    each = [_of_policy(pieces, number) for number in range(len(RECOMPUTE_POLICIES))]
    shown, hidden = (np.stack(some, axis=-1) for some in zip(*each, strict=True))
    return shown, hidden


def _of_policy(pieces: Pieces, policy: int) -> _Shown:
    """(N,) each, where hooks of each matrix gather."""
    data, again = pieces.links.block, pieces.block.recomputed[:, policy]
    weights, runs = _weights(pieces), _runs(pieces, policy)
    gathers = [data.gather * share for share in _gathered(pieces, runs, weights)]
    if not pieces.question.stack.zero3_waits_for_device:
        moved = _added(gathers) + data.backward_reduce
        return _behind(pieces, moved, pieces.backward_window + again)
    behind = []
    for at, seconds in enumerate(_run_seconds(pieces, runs, again)):
        (before, reduces), gather = runs[at - 1], gathers[(at + 1) % len(runs)]
        reduced = (data.backward_reduce * weights[before] + _slices(pieces)) * reduces
        behind.append((gather, gather + reduced, seconds))
    return _run_by_run(pieces, behind)


def _run_by_run(pieces: Pieces, runs: Sequence[tuple[Array, Array, Array]]) -> _Shown:
    """(N,) each, of runs: gather, all that moves, compute. Under ZeRO-3 alone each waits for its own."""
    gathers, moved, seconds = (np.stack(some) for some in zip(*runs, strict=True))
    late = _slices(pieces) * (gathers > 0).sum(axis=0)
    waited = [_behind(pieces, *run) for run in zip(moved, seconds, strict=True)]
    each = _added(np.stack(one) for one in waited)
    whole = _behind(pieces, _added(moved), _added(seconds))
    zero3 = pieces.columns.zero == 3
    return np.where(zero3, late + each[0], whole[0]), np.where(zero3, each[1], whole[1])


def _added(arrays: Iterable[Array]) -> Array:
    """Their sum, one after another, so that a layout costs the same bits alone and among others."""
    total: Array = reduce(np.add, arrays, np.zeros(1))
    return total


def _runs(pieces: Pieces, policy: int) -> list[_Run]:
    """Backward from the last matrix to the first; what is recomputed runs forward before the first that needs it."""
    name, drops = RECOMPUTE_POLICIES[policy], pieces.question.stack.drops
    redone = [
        name == "full" or (name == "selective" and bool(drops & one.redone_by)) for one in _matrices(pieces)
    ]
    runs: list[_Run] = []
    for matrix in reversed(range(len(redone))):
        if redone[matrix] and all(backward for _, backward in runs):
            runs += [(number, False) for number, again in enumerate(redone) if again]
        runs.append((matrix, True))
    return runs


def _gathered(pieces: Pieces, runs: Sequence[_Run], weights: Array) -> Iterator[Array]:
    """(N,) for each run: the share of a block's weights that is gathered for it."""
    reach = pieces.question.stack.zero3_reuse_elements or 0
    held = pieces.counts.block + pieces.counts.experts
    for at, (matrix, backward) in enumerate(runs):
        share = weights[matrix]
        if backward and (matrix, False) in runs:
            between = [weights[one] for one, _ in runs[runs.index((matrix, False)) + 1 : at]]
            share = np.where(_added(between) * held < reach, 0.0, share)
        yield share


def _run_seconds(pieces: Pieces, runs: Sequence[_Run], again: Array) -> Iterator[Array]:
    """(N,) seconds of each run, of which those forward take `again`; with none, what reads the core does."""
    forward, backward = (_seconds(pieces, backward=way) for way in (False, True))
    redone = [forward[matrix] for matrix, way in runs if not way]
    for matrix, way in runs:
        reads_core = _matrices(pieces)[matrix].reads_core and not redone
        yield backward[matrix] + reads_core * again if way else again * forward[matrix] / sum(redone)


def _matrices(pieces: Pieces) -> list[Operator]:
    return [one for one in block_operators(pieces.question.model) if one.gemm is not None]


def _weights(pieces: Pieces) -> Array:
    """(U, N): each matrix's share of a block's parameters on a rank."""
    columns = pieces.columns
    degrees = columns.tp, columns.ep, columns.etp
    each = np.stack([one.share * sum(held_on_rank(one.weights, *degrees)) for one in _matrices(pieces)])
    shares: Array = each / _added(each)
    return shares


def _seconds(pieces: Pieces, *, backward: bool) -> Array:
    """(U, N) seconds of each run of a pass. The core runs before what reads it, and backward behind that; what a block
    without one has besides products is shared out."""
    block, matrices = pieces.block, _matrices(pieces)
    gemms = [
        (one.share, local_gemm(pieces.question, pieces.columns, one.gemm)) for one in matrices if one.gemm
    ]
    products = np.stack(
        np.broadcast_arrays(*[share * forward_seconds(local, pieces.device) for share, local in gemms])
    )
    every = block.matrices_backward if backward else block.matrices_forward
    core = block.core_backward if backward else block.core_forward
    window = pieces.backward_window if backward else pieces.forward_window
    readers = [number for number, one in enumerate(matrices) if one.reads_core]
    apart = core if readers else 0.0 * core
    each: Array = products / _added(products) * every + _weights(pieces) * (window - every - apart)
    for reader in readers[:1]:
        each[reader if backward else reader - 1] += core
    return each


def _slices(pieces: Pieces) -> Array:
    """(N,) seconds in which the host cuts and copies a tensor, a slice a rank."""
    gathers = pieces.links.block.gather > 0
    return np.where(gathers, pieces.question.stack.zero3_slice_seconds * pieces.columns.shard, 0.0)


def _behind(pieces: Pieces, communication: Array, window: Array) -> _Shown:
    """(N,) each, of communication behind so many seconds of compute."""
    streams = pieces.question.cluster.gpu.kind != "cpu"  # there `fully_shard` waits for every gather
    shown = exposed(communication, window, pieces.question.hardware, overlapped=streams)
    return shown, communication - shown
