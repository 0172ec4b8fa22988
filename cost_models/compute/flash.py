"""Seconds of the attention core where a flash kernel runs it: scores are never stored, masked blocks never computed.

    seconds = FLOPs · (u + calls · half / 2) / s / (peak · share · (1 + half / reference))
    u       = keys that a row of the scores sees, of s: half of them under a causal mask, at most a window or document;
              in an encoder all, where no `half` is added: blocks on the diagonal are whole, and rows alike

Tensor cores wait at the start and the end of a call and compute half of the blocks on the diagonal in vain, and causal
rows are of unlike length: kernels take as long as if a sequence had `half` tokens more. Their published shares were
measured at `reference` tokens (`attention_tokens` of a GPU). None runs faster than a product that its power allows.

A ring of context ranks makes one call a step, for a part of the keys, and adds up what the steps found: forward a pass
over the output in fp32 for each, backward one over the gradients of queries, keys and values (TransformerEngine,
`AttnFuncWithCPAndKVP2P`). PyTorch's `context_parallel` merges operator by operator, each a pass of its own
(torch/distributed/tensor/experimental/_attention.py, `_SDPAMerger`, `_templated_ring_attention_backward`).

Of tokens that an indexer picks a kernel reads latents, which all heads share (DeepSeek-V3.2, section 2.1): its products
are as wide as these. The indexer's scores run at the same share of peak, and are written and read once in fp32 to pick
from; backward those of picked tokens run thrice. Left out: what their loss wants of attention's.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.communication.context import attended_width, attends_in_steps, attention_calls
from cost_models.compute.device import Device
from cost_models.operators.documents import attended_keys
from cost_models.operators.flops import index_width
from cost_models.question import Question

_HALF = 600.0
"""Tokens, between 4,096 of them under a causal mask and what kernels end at without one (Shah et al. 2024,
FlashAttention-3, figures 5 to 7, head 128: FlashAttention-2 655, cuDNN 648, FlashAttention-3 488)."""
_BACKWARD_PRODUCTS = 2.5
"""Backward products per forward product: four, and the scores once more (Dao 2023, FlashAttention-2)."""
_FP32 = 4.0


def flash_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """Forward and backward, (N,) each, of one block and microbatch."""
    sequence, latent = question.training.sequence_length, question.model.latent_attention
    widths = (question.model.query_size + question.model.attended_size) / columns.tp
    if index_width(question.model, sequence) and latent:
        widths = question.model.num_heads * (2 * latent.kv_rank + latent.position_dim) / columns.tp
    flops = 2.0 * columns.tokens(sequence) * sequence * widths
    unmasked = attended_keys(question.model, question.training).computed
    calls = attention_calls(question, columns)
    in_vain = 0.0 if question.model.encoder else _HALF / 2
    executed = flops * (unmasked + calls * in_vain) / sequence
    longest = 1.0 + _HALF / question.cluster.gpu.attention_tokens
    least = device.profile.kernel_seconds * calls
    paid = flops * unmasked / sequence / device.power_rate
    forward = executed / (device.peak * device.attention.forward * longest)
    backward = executed / (device.peak * device.attention.backward * longest)
    merged, merged_back = _merging_seconds(question, columns, device)
    return (
        np.maximum(np.maximum(forward, paid), least) + merged,
        np.maximum(_BACKWARD_PRODUCTS * np.maximum(backward, paid), least) + merged_back,
    )


def index_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """Forward and backward, (N,) each, of an indexer's scores, on every tensor rank; 0 where there are none."""
    sequence, picked = question.training.sequence_length, float(question.model.attention_window or 0)
    width, tokens = index_width(question.model, sequence), columns.tokens(sequence)
    scores = tokens * sequence / 2 * (width > 0)
    forward = 2.0 * scores * width / (device.peak * device.attention.forward)
    forward = forward + 2 * _FP32 * scores / device.memory_rate
    return forward, 3 * 2.0 * tokens * picked * width / (device.peak * device.attention.backward)


def _merging_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """Seconds to merge the results of the steps of a ring, forward and backward."""
    steps = np.where(attends_in_steps(question, columns), columns.cp, 0)
    width = device.element_bytes
    local = columns.tokens(question.training.sequence_length) / columns.tp / device.memory_rate
    found, queries, keys_values = (
        local * columns_of
        for columns_of in (question.model.attended_size, question.model.query_size, attended_width(question))
    )
    if not question.stack.torch_context_parallel:
        return steps * found * (width + 2 * _FP32), steps * 3 * width * (queries + keys_values)
    again, once = np.maximum(steps - 1, 0), np.minimum(steps, 1)
    widened, narrowed, added = width + _FP32, _FP32 + width, width + 2 * _FP32
    # each step's output is widened; the difference to what is there, times a sigmoid, is taken from it; at the end the
    # sum is narrowed. Keys and values are laid out for the kernel, and joined for every exchange
    forward = found * (steps * widened + again * 8 * _FP32 + once * narrowed)
    forward = forward + keys_values * 2 * width * (once + again)
    # gradients of all queries, and of half of the keys and values, are added to what is there; these are joined with
    # the other half, and for the exchange with one another; sums begin as zeros and are narrowed at the end
    backward = steps * (added * queries + (added / 2 + 4 * _FP32) * keys_values)
    backward = backward + again * 2 * width * keys_values
    backward = backward + once * (_FP32 + narrowed) * (queries + keys_values)
    return forward, backward
