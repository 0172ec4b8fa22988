"""Time coefficients of an action of a pipeline: a block's pass forward, and backward under each recompute policy, whole
or in halves; and beyond its blocks its host, its hand-over and its batch.

An action takes its host `action_host_seconds`. A host that waits for its device before it (for a hand-over that blocks,
for a batch whose size it reads from the device, or for both) leaves the device idle for as long again, until it has
launched what comes next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array
from cost_models.axes.columns import is_overlapped, names_overlap
from cost_models.communication.collectives import broadcast_seconds
from cost_models.communication.data import exposed
from cost_models.communication.stage import boundary_seconds
from cost_models.pipeline.terms.fetched import backward_shown, forward_shown
from cost_models.pipeline.time_pieces import Pieces, Term, total
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT, is_scheduled
from cost_models.specs.choices import ATTEND_AGAIN

MOST_PASSES = 2.0
"""Of a block that a backward pass launches: its own, and the forward pass that full recompute repeats."""


def _tensor_shown(pieces: Pieces, sent: Array, window: Array) -> Array:
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
    gather, gather_hidden = forward_shown(pieces)
    tensor_shown = _tensor_shown(pieces, tensor.block_forward, block.matrices_forward)
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
    """One block backward under each policy; what is recomputed repeats its communication too."""
    question, block, tensor, context = pieces.question, pieces.block, pieces.tensor, pieces.context
    recompute = block.recomputed
    repeated = tensor.block_recomputed
    data_shown, data_hidden = backward_shown(pieces)
    waited_for = tensor.block_backward + pieces.summed
    products = np.maximum(0.0, block.matrices_backward - tensor.block_regather - tensor.block_summed)
    window = products[:, None] + np.where(repeated > 0, block.matrices_forward[:, None], 0.0)
    tensor_exposed = _tensor_shown(pieces, waited_for[:, None] + repeated, window) + pieces.regather[:, None]
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
    of_input, of_weight = pieces.question.stack.split_backward_launches
    first = _outlasting(pieces, of_input * launches[:, None], device_seconds - weight[:, None])
    second = _outlasting(pieces, of_weight * launches, weight)
    shared = backward["host"][:, 0] * weight / device_seconds[:, 0]
    always = is_scheduled(pieces.columns, ALWAYS_SPLIT)
    host = np.where(always[:, None], first + second[:, None], backward["host"])
    return {**backward, "host": host}, {"compute": weight, "host": np.where(always, second, shared)}


def _host(pieces: Pieces, device_seconds: Array, *, passes: float | Array) -> Array:
    """Time the host needs to launch a block: in full on a CPU, what outlasts the device's work on a GPU."""
    per_pass = launch_seconds(pieces)
    launches: Array = per_pass * passes if isinstance(passes, float) else per_pass[:, None] * passes
    return _outlasting(pieces, launches, device_seconds)


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
    if not model.has_experts:
        return dense + np.zeros(len(pieces.columns))
    # what routing and experts add to a dense block; less than 0 where CUDA graphs replay more
    routed = stack.routing_host_seconds + _each_expert(question) * model.num_experts / pieces.columns.ep
    return dense + model.moe_share * ((1.0 - stack.captured_expert_launches) * (dense + routed) - dense)


def _first_of_experts(pieces: Pieces) -> Array:
    """(N,) seconds in which the device waits for its experts' first product, as their host waited for counts.

    Where no token is dropped the host reads how many came before it can launch what works on them, by when the device
    has done all that it was given. It goes through the experts of the first of their two products (half of what they
    add to a pass) and only then launches one. Another microbatch fills the gap; CUDA graphs know no counts.
    """
    question, stack = pieces.question, pieces.question.stack
    if not (question.model.has_experts and stack.waits_for_expert_counts and pieces.device.launches_ahead):
        return pieces.none
    eager = (1.0 - stack.captured_expert_launches) * (1.0 - stack.overlap_expert_exchange)
    first = question.model.num_experts / pieces.columns.ep * _each_expert(question) / 2
    return question.model.moe_share * eager * first


def _each_expert(question: Question) -> float:
    """Host seconds of an expert in one pass."""
    narrow = question.training.operand_bytes < question.training.element_bytes
    return question.stack.expert_host_seconds + question.stack.expert_cast_host_seconds * narrow


def _outlasting(pieces: Pieces, launches: Array, device_seconds: Array) -> Array:
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
