"""Time coefficients of an action of a pipeline: a block's pass forward, and backward under each recompute policy, whole
or in halves; and beyond its blocks its host, its hand-over and its batch.

An action takes its host `action_host_seconds`. A host that waits for its device before it (for a hand-over that blocks,
for a batch whose size it reads from the device, or for both) leaves the device idle for as long again, until it has
launched what comes next.

A block's data-parallel communication behind its passes: weights that ZeRO-3 gathers and gradients that are reduced.

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
from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array
from cost_models.axes.columns import is_overlapped, names_overlap
from cost_models.communication.collectives import broadcast_seconds
from cost_models.communication.data import exposed
from cost_models.communication.stage import boundary_seconds
from cost_models.compute.gemm import forward_seconds, local_gemm
from cost_models.operators.block import block_operators
from cost_models.operators.record import Operator, held_on_rank
from cost_models.pipeline.time_pieces import Pieces, Term, total
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT, is_scheduled
from cost_models.specs.choices import ATTEND_AGAIN, RECOMPUTE_POLICIES

_SPLIT_LAUNCHES = (1.1, 2.0)
"""Launch time of dgrad and of wgrad in a split backward pass of PyTorch's, relative to a whole one: the graph is walked
in Python, and each weight is a call of its own."""
_ROUTING_HOST_SECONDS = 1.0e-3
"""Host seconds to launch a block's router, permutations and exchange in one pass, beyond those of a dense block, where
Megatron Core's host goes through the experts: at 30 us for each thing launched, as a dense block's 13 take 0.4 ms, some
32 kernels (moe/router.py, token_dispatcher.py)."""
_EXPERT_HOST_SECONDS = 3.0e-5
"""Host seconds for each expert of the rank, the mean over both passes: two weights an expert, each with a hook of its
own (distributed_data_parallel.py)."""
_EXPERT_CAST_HOST_SECONDS = 1.1e-4
"""Host seconds that come to it in fp8: a cast copy of each looked up, a tensor made for each of two cast operands."""
SLICE_SECONDS = 7.8e-6
"""Host seconds for each rank's slice of a matrix that is gathered or reduced as a list of slices (DeepSpeed v0.5,
zero/partition_parameters.py, _allgather_param and _reduce_scatter_gradient): a loop over ranks cuts a slice, 2.8 us
(timed with torch 2.11 on a CPU), and c10d copies it by a kernel of its own, 5 us (profile `datasheet-gpu`)."""
MOST_PASSES = 2.0
"""Of a block that a backward pass launches: its own, and the forward pass that full recompute repeats."""


def _exposed_tensor_seconds(pieces: Pieces, sent: Array, window: Array) -> Array:
    """Like `sent`: the part of tensor-parallel communication that `window` seconds of products do not hide.

    Without `overlap=` it is the stack's share. A layout with `overlap=tp` hides it behind products in as many chunks as
    there are ranks, of which one never is: the first that is gathered comes before its product, the last that is
    scattered after it.
    """
    question, columns = pieces.question, pieces.columns

    def like_sent(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return values.reshape(-1, *[1] * (sent.ndim - 1))

    hides = like_sent(pieces.hides_tensor_parallel)
    always = np.where(hides, 1.0 - question.stack.overlap_tensor_parallel, 1.0) * sent
    named = names_overlap(columns)
    if not named.any():
        return always
    hidden = exposed(sent, window, question.hardware, overlapped=True)
    chunked = np.maximum(hidden, sent / like_sent(columns.tp))
    return np.where(
        like_sent(named), np.where(like_sent(columns.overlap_tp == 1) & hides, chunked, sent), always
    )


def layer_forward(pieces: Pieces) -> Term:
    """One block forward: compute, exposed tensor-parallel and gather time, and launches that outlast the device."""
    block, tensor, context = pieces.block, pieces.tensor, pieces.context
    experts_shown = pieces.experts_shown
    gather, gather_hidden = exposed_gathers_forward(pieces)
    tensor_shown = _exposed_tensor_seconds(pieces, tensor.block_forward, block.matrices_forward)
    exchanged = context.forward + experts_shown
    device_seconds = block.forward + tensor_shown + exchanged + gather
    return {
        "compute": block.forward,
        "tp_comm": tensor_shown,
        "cp_comm": context.forward,
        "ep_comm": experts_shown,
        "dp_comm": gather,
        "host": np.maximum(_host(pieces, device_seconds, passes=1.0), _first_of_experts(pieces)),
        "tp_hidden": tensor.block_forward - tensor_shown,
        "cp_hidden": context.forward_hidden,
        "ep_hidden": pieces.experts_hidden,
        "dp_hidden": gather_hidden,
        **pieces.waited(block.core_forward),
    }


def layer_backward(pieces: Pieces) -> Term:
    """Seconds of one block backward under each policy; recomputation repeats its communication."""
    question, block, tensor, context = pieces.question, pieces.block, pieces.tensor, pieces.context
    recompute = block.recomputed
    repeated = tensor.block_recomputed
    data_shown, data_hidden = exposed_gathers_backward(pieces)
    waited_for = tensor.block_backward + pieces.summed
    products = np.maximum(0.0, block.matrices_backward - tensor.block_regather - tensor.block_summed)
    window = products[:, None] + np.where(repeated > 0, block.matrices_forward[:, None], 0.0)
    tensor_exposed = (
        _exposed_tensor_seconds(pieces, waited_for[:, None] + repeated, window) + pieces.regather[:, None]
    )
    drops = question.stack.drops
    experts_again = float("experts" in drops)
    attends_again = np.array([0.0, float(bool(drops & ATTEND_AGAIN)), 1.0])
    context_exposed = context.backward[:, None] + context.forward[:, None] * attends_again
    exchanges = np.array([1.0, 1.0 + experts_again, 2.0])  # with experts or the block theirs is repeated
    exchanged = pieces.experts_shown[:, None] * exchanges
    device_seconds = block.backward[:, None] + data_shown + recompute + tensor_exposed
    device_seconds = device_seconds + context_exposed + exchanged
    sent = tensor.block_backward + tensor.block_regather + tensor.block_summed
    hidden = sent[:, None] + repeated - tensor_exposed
    # backward launches about as much as forward; full recompute adds a forward
    passes = np.array([1.0, 1.0, MOST_PASSES])
    attended = block.core_backward[:, None] + block.core_forward[:, None] * attends_again
    return {
        "compute": block.backward[:, None] * np.ones(recompute.shape[-1]),
        "recompute": recompute,
        "tp_comm": tensor_exposed,
        "cp_comm": context_exposed,
        "ep_comm": exchanged,
        "dp_comm": data_shown,
        "host": _host(pieces, device_seconds, passes=passes),
        "tp_hidden": hidden,
        "cp_hidden": context.backward_hidden[:, None] + context.forward_hidden[:, None] * attends_again,
        "ep_hidden": pieces.experts_hidden[:, None] * exchanges,
        "dp_hidden": data_hidden,
        **pieces.waited(attended),
    }


def halves(pieces: Pieces, backward: Term) -> tuple[Term, Term]:
    """One block backward as its schedule runs it, and the part of that which a split runs apart, towards the weights.

    Communication stays with the other half. Where every pass is split each half is launched by itself; where few are,
    launches are shared out as the device's work is, so that the halves add up to the whole pass.
    """
    weight, launches = pieces.block.weight, launch_seconds(pieces)
    device_seconds = total({part: value for part, value in backward.items() if part != "host"})
    of_input, of_weight = _SPLIT_LAUNCHES if pieces.question.stack.torch_pipelining else (1.0, 1.0)
    first = _host_outlasting_device(pieces, of_input * launches[:, None], device_seconds - weight[:, None])
    second = _host_outlasting_device(pieces, of_weight * launches, weight)
    shared = backward["host"][:, 0] * weight / device_seconds[:, 0]
    always = is_scheduled(pieces.columns, ALWAYS_SPLIT)
    host = np.where(always[:, None], first + second[:, None], backward["host"])
    return {**backward, "host": host}, {"compute": weight, "host": np.where(always, second, shared)}


def _host(pieces: Pieces, device_seconds: Array, *, passes: float | Array) -> Array:
    """Time the host needs to launch a block: in full on a CPU, what outlasts the device's work on a GPU."""
    per_pass = launch_seconds(pieces)
    launches: Array = per_pass * passes if isinstance(passes, float) else per_pass[:, None] * passes
    return _host_outlasting_device(pieces, launches, device_seconds)


def launch_seconds(pieces: Pieces) -> Array:
    """(N,) seconds to launch a block once."""
    profile = pieces.question.hardware
    split = np.where(pieces.columns.tp > 1, profile.tensor_parallel_host_seconds, 0.0)
    split = split + np.where(pieces.columns.sp == 1, profile.sequence_parallel_host_seconds, 0.0)
    sharded = pieces.question.stack.fully_shard & (pieces.columns.zero >= 2) & (pieces.columns.shard > 1)
    split = split + np.where(sharded, profile.sharded_host_seconds, 0.0)
    question, model, stack = pieces.question, pieces.question.model, pieces.question.stack
    halves = (1.0 - model.mixer_share("none") + model.feed_forward_share) / 2
    dense: Array = halves * (profile.host_layer_seconds + split)
    if model.has_experts and stack.experts_in_one_kernel:  # CUDA graphs replay blocks with experts
        return dense - model.moe_share * dense
    if model.has_experts and stack.waits_for_expert_counts:
        each = _expert_host_seconds(question) * model.num_experts / pieces.columns.ep
        return dense + model.moe_share * (_ROUTING_HOST_SECONDS + each)
    return dense + np.zeros(len(pieces.columns))


def _first_of_experts(pieces: Pieces) -> Array:
    """(N,) seconds in which the device waits for its experts' first product, as their host waited for counts.

    Where no token is dropped the host reads how many came before it can launch what works on them, by when the device
    has done all that it was given. It goes through the experts of the first of their two products (half of what they
    add to a pass) and only then launches one. Another microbatch fills the gap; CUDA graphs know no counts.
    """
    question, stack = pieces.question, pieces.question.stack
    if not (question.model.has_experts and stack.waits_for_expert_counts and pieces.device.launches_ahead):
        return pieces.none
    eager = (1.0 - stack.experts_in_one_kernel) * (1.0 - stack.overlap_expert_exchange)
    first = question.model.num_experts / pieces.columns.ep * _expert_host_seconds(question) / 2
    return question.model.moe_share * eager * first


def _expert_host_seconds(question: Question) -> float:
    """Host seconds of an expert in one pass."""
    narrow = question.training.operand_bytes < question.training.element_bytes
    return _EXPERT_HOST_SECONDS + _EXPERT_CAST_HOST_SECONDS * narrow


def _host_outlasting_device(pieces: Pieces, launches: Array, device_seconds: Array) -> Array:
    return np.maximum(0.0, launches - device_seconds) if pieces.device.launches_ahead else launches


def or_launches(pieces: Pieces, window: Array, *, passes: float) -> Array:
    """(N,) seconds of a pass behind which communication runs, those included in which the device waits for its host.

    Stages differ in what they recompute, so of backward passes those count that launch most: behind a shorter window
    a device that is faster than its host would show more the faster it is.
    """
    return np.maximum(window, passes * launch_seconds(pieces)) if pieces.device.launches_ahead else window


_TOKEN_BYTES, _SIZE_BYTES = 8, 40
"""Of a token's number, and of the five sizes that Megatron-LM sends ahead (core/tensor_parallel/data.py)."""
_MASK_BYTES = 17
"""Read and written for each pair of positions: ones and their lower triangle in fp32, compared (megatron/utils.py)."""
_MASK_KERNELS = 3


def action_terms(pieces: Pieces) -> dict[str, Term]:
    """Coefficients of an action by its pass, and of a hand-over that blocks nobody."""
    question, columns = pieces.question, pieces.columns
    each, ahead = question.hardware.action_host_seconds, pieces.device.launches_ahead
    hands_on = boundary_seconds(question, columns, pieces.links.groups)
    sends_on = is_overlapped(columns, "pp", default=question.stack.overlap_pipeline_sends)
    blocked, sent = np.where(sends_on, 0.0, hands_on), np.where(sends_on, hands_on, 0.0)
    host = np.where(columns.pp > 1, each, 0.0)
    waits = ~sends_on & (columns.pp > 1) & ahead
    gets = question.stack.broadcasts_every_batch
    batch: Term = {}
    if gets:  # a batch is sent and masked on every stage
        length, profile = question.training.sequence_length, question.hardware
        tokens, tensor_ranks = columns.tokens(length) * _TOKEN_BYTES, pieces.links.groups.tp
        seconds = broadcast_seconds(tokens, tensor_ranks, profile)
        seconds = seconds + broadcast_seconds(np.full(len(columns), _SIZE_BYTES), tensor_ranks, profile)
        mask = _MASK_BYTES * length**2 / pieces.device.memory_rate + _MASK_KERNELS * profile.kernel_seconds
        batch = {"compute": pieces.none + mask, "tp_comm": seconds}
    return {
        "stage_forward": {"pp_comm": blocked, "host": host + each * (waits | gets)} | batch,
        "stage_backward": {"pp_comm": blocked, "host": host + each * waits},
        "stage_weight": {"host": np.where(is_scheduled(columns, ALWAYS_SPLIT), host, 0.0)},
        "p2p": {"pp_comm": sent},
    }


_Exposed = tuple[Array, Array]
"""Seconds in sight, and seconds hidden."""
_Run = tuple[int, bool]
"""The number of a matrix, and whether it is at work backward."""


def exposed_gathers_forward(pieces: Pieces) -> _Exposed:
    """(N,) each, of the gathers of a forward pass."""
    gather = pieces.links.block.gather
    if not pieces.question.stack.zero3_waits_for_device:
        return _exposed_behind(pieces, gather, pieces.forward_window)
    gathers = gather * np.roll(_weights(pieces), -1, axis=0)
    seconds = _seconds(pieces, backward=False)
    return _exposed_run_by_run(pieces, list(zip(gathers, gathers, seconds, strict=True)))


def exposed_gathers_backward(pieces: Pieces) -> _Exposed:
    """(N, P) each, of the gathers of a backward pass and of gradients reduced behind it."""
    data = pieces.links.block
    if pieces.question.stack.zero3_reuse_elements is None:
        found = _exposed_behind(pieces, data.gather + data.backward_reduce, pieces.backward_window)
        shown, hidden = (one[:, None] * np.ones(len(RECOMPUTE_POLICIES)) for one in found)
        return shown, hidden
    each = [_policy_gathers(pieces, number) for number in range(len(RECOMPUTE_POLICIES))]
    shown, hidden = (np.stack(some, axis=-1) for some in zip(*each, strict=True))
    return shown, hidden


def _policy_gathers(pieces: Pieces, policy: int) -> _Exposed:
    """(N,) each, where hooks of each matrix gather."""
    data, again = pieces.links.block, pieces.block.recomputed[:, policy]
    weights, runs = _weights(pieces), _runs(pieces, policy)
    gathers = [data.gather * share for share in _gathered_shares(pieces, runs, weights)]
    if not pieces.question.stack.zero3_waits_for_device:
        moved = _ordered_sum(gathers) + data.backward_reduce
        return _exposed_behind(pieces, moved, pieces.backward_window + again)
    behind = []
    for at, seconds in enumerate(_run_seconds(pieces, runs, again)):
        (before, reduces), gather = runs[at - 1], gathers[(at + 1) % len(runs)]
        reduced = (data.backward_reduce * weights[before] + _slice_seconds(pieces)) * reduces
        behind.append((gather, gather + reduced, seconds))
    return _exposed_run_by_run(pieces, behind)


def _exposed_run_by_run(pieces: Pieces, runs: Sequence[tuple[Array, Array, Array]]) -> _Exposed:
    """(N,) each, of runs: gather, all that moves, compute. Under ZeRO-3 alone each waits for its own."""
    gathers, moved, seconds = (np.stack(some) for some in zip(*runs, strict=True))
    late = _slice_seconds(pieces) * (gathers > 0).sum(axis=0)
    waited = [_exposed_behind(pieces, *run) for run in zip(moved, seconds, strict=True)]
    each = _ordered_sum(np.stack(one) for one in waited)
    whole = _exposed_behind(pieces, _ordered_sum(moved), _ordered_sum(seconds))
    zero3 = pieces.columns.zero == 3
    return np.where(zero3, late + each[0], whole[0]), np.where(zero3, each[1], whole[1])


def _ordered_sum(arrays: Iterable[Array]) -> Array:
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


def _gathered_shares(pieces: Pieces, runs: Sequence[_Run], weights: Array) -> Iterator[Array]:
    """(N,) for each run: the share of a block's weights that is gathered for it."""
    reach = pieces.question.stack.zero3_reuse_elements or 0
    held = pieces.counts.block + pieces.counts.experts
    for at, (matrix, backward) in enumerate(runs):
        share = weights[matrix]
        if backward and (matrix, False) in runs:
            between = [weights[one] for one, _ in runs[runs.index((matrix, False)) + 1 : at]]
            share = np.where(_ordered_sum(between) * held < reach, 0.0, share)
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
    shares: Array = each / _ordered_sum(each)
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
    each: Array = products / _ordered_sum(products) * every + _weights(pieces) * (window - every - apart)
    for reader in readers[:1]:
        each[reader if backward else reader - 1] += core
    return each


def _slice_seconds(pieces: Pieces) -> Array:
    """(N,) seconds in which the host cuts and copies a tensor, a slice a rank."""
    gathers = pieces.links.block.gather > 0
    return np.where(gathers, SLICE_SECONDS * pieces.columns.shard, 0.0)


def _exposed_behind(pieces: Pieces, communication: Array, window: Array) -> _Exposed:
    """(N,) exposed and hidden seconds of communication behind `window` seconds of compute."""
    streams = pieces.question.cluster.gpu.kind != "cpu"  # there `fully_shard` waits for every gather
    shown = exposed(communication, window, pieces.question.hardware, overlapped=streams)
    return shown, communication - shown
