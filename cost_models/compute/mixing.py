"""Seconds of the kernels that mix tokens: attention cores, and recurrent scans.

**Attention** in a flash kernel: scores are never stored, masked blocks never computed.

    seconds = FLOPs · (u + calls · half / 2) / s / (peak · share · (1 + half / reference))
    u       = keys of s that a row of scores sees: half of them under a causal mask, at most a window or document;
              in an encoder all, without `half`: blocks on the diagonal are complete, and rows equally long

Tensor cores wait at the start and the end of a call and compute half of the blocks on the diagonal in vain,
and causal rows have different lengths: kernels take as long as if a sequence had `half` tokens more. Their
published shares were measured at `reference` tokens (`attention_tokens` of a GPU). None runs faster than a
product within the power limit.

A ring of context ranks makes one call a step, for a part of the keys, and adds up the steps' results: forward
a pass over the output in fp32 for each, backward one over the gradients of queries, keys and values
(TransformerEngine, `AttnFuncWithCPAndKVP2P`). PyTorch's `context_parallel` merges operator by operator, each
a separate pass (torch/distributed/tensor/experimental/_attention.py, `_SDPAMerger`,
`_templated_ring_attention_backward`).

For tokens picked by an indexer a kernel reads latents, which all heads share (DeepSeek-V3.2, section 2.1):
its products have the latents' width. The indexer's scores run at the same share of peak, and are written and
read once in fp32 for the selection; backward those of picked tokens run thrice. Leaves out the attention
scores that the indexer's loss needs.

**Scans** update and read the states of a recurrence, chunk by chunk. A sequence is cut into chunks of C
tokens. Inside a chunk tokens meet as in attention, between chunks states are handed on, all in matrix
products (Dao and Gu 2024, arXiv 2405.21060, section 6; Yang et al. 2024, arXiv 2412.06464, section 3.3).
Products of a token forward, for G groups of keys of N elements and H heads of P values:

    decays  2·H·N·P with the states, C·(G·N + H·P) inside a chunk
    delta   3·H·N·P with the states, C·H·(3·N + 2·P) inside a chunk

Backward each runs twice, and those forward once more, as states are not kept. Seconds are the larger of FLOPs
at the share of peak of the attention kernel, whose products are as short, and of bytes, pass by pass as
kernels read and write (`_SCAN_PASSES`); each kernel takes at least its start-up. Leaves out the inverse of a
chunk's triangle (C²/3 a head and token), and that one kernel's bytes do not hide behind another's products.

Mamba-1's kernel has no products: it updates a channel's states element by element in fp32, 9 FLOPs each
forward and twice as many backward with the states made once more, on units other than tensor cores (mamba-ssm
2.2, ops/selective_scan_interface.py; its authors' count). Leaves out exponentials, which have separate units.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.communication.by_axis import attended_width, attends_in_steps, attention_calls
from cost_models.compute.gemm import Device
from cost_models.operators.block import state_products
from cost_models.operators.documents import attended_keys
from cost_models.operators.flops import index_width
from cost_models.operators.record import tokens_on_rank
from cost_models.question import Question
from cost_models.specs.transformer import Recurrence
from cost_models.units import FP32_BYTES

_EXTRA_TOKENS = 600.0
"""Number of tokens that an attention call seems to have in addition to its unmasked scores, between a causal
mask's value at 4,096 tokens and the limit without a mask (Shah et al. 2024, FlashAttention-3, figures 5 to 7,
head 128: FlashAttention-2 655, cuDNN 648, FlashAttention-3 488)."""
_BACKWARD_PRODUCTS = 2.5
"""Attention's backward products per forward product: four for two, and the scores once more (Dao 2023,
FlashAttention-2)."""


def flash_seconds(question: Question, columns: LayoutColumns, device: Device) -> Array:
    """Seconds of a flash attention kernel for one block and microbatch, forward and backward, (2, N)."""
    sequence, latent = question.training.sequence_length, question.model.latent_attention
    widths = (question.model.query_size + question.model.attended_size) / columns.tp
    if index_width(question.model, sequence) and latent:
        widths = question.model.num_heads * (2 * latent.kv_rank + latent.position_dim) / columns.tp
    flops = 2.0 * columns.tokens(sequence) * sequence * widths
    unmasked = attended_keys(question.model, question.training).computed
    calls = attention_calls(question, columns)
    in_vain = 0.0 if question.model.encoder else _EXTRA_TOKENS / 2
    executed = flops * (unmasked + calls * in_vain) / sequence
    longest = 1.0 + _EXTRA_TOKENS / question.cluster.gpu.attention_tokens
    paid = flops * unmasked / sequence / device.power_rate
    products = np.maximum(executed / (device.peak * device.attention_shares * longest), paid)
    min_seconds = device.profile.kernel_seconds * calls
    core: Array = np.maximum([[1.0], [_BACKWARD_PRODUCTS]] * products, min_seconds)
    return core + _merging_seconds(question, columns, device)


def index_seconds(question: Question, columns: LayoutColumns, device: Device) -> Array:
    """Seconds of the scores of a sparse-attention indexer on every tensor rank, forward and backward, (2, N);
    0 without an indexer."""
    sequence, picked = question.training.sequence_length, float(question.model.attention_window or 0)
    width, tokens = index_width(question.model, sequence), columns.tokens(sequence)
    scores = tokens * sequence / 2 * (width > 0)
    flops = np.array([2.0 * scores * width, 3 * 2.0 * tokens * picked * width])
    forward, backward = flops / (device.peak * device.attention_shares)
    return np.array([forward + 2 * FP32_BYTES * scores / device.memory_rate, backward])


def _merging_seconds(question: Question, columns: LayoutColumns, device: Device) -> Array:
    """Seconds to merge the attention results of the steps of a context-parallel ring, forward and backward,
    (2, N)."""
    steps = np.where(attends_in_steps(question, columns), columns.cp, 0)
    width = device.element_bytes
    local = columns.tokens(question.training.sequence_length) / columns.tp / device.memory_rate
    sizes = question.model.attended_size, question.model.query_size, attended_width(question)
    output, queries, keys_values = (local * size for size in sizes)
    if not question.stack.torch_context_parallel:
        merged = steps * output * (width + 2 * FP32_BYTES)
        return np.array([merged, steps * 3 * width * (queries + keys_values)])
    later_steps, once = np.maximum(steps - 1, 0), np.minimum(steps, 1)
    widened, narrowed, added = width + FP32_BYTES, FP32_BYTES + width, width + 2 * FP32_BYTES
    # each step's output is widened; its difference to the sum so far, times a sigmoid, is subtracted; at the end the
    # sum is narrowed. Keys and values are laid out for the kernel, and joined for every exchange
    forward = output * (steps * widened + later_steps * 8 * FP32_BYTES + once * narrowed)
    forward = forward + keys_values * 2 * width * (once + later_steps)
    # gradients of all queries, and of half of the keys and values, are added to the sums; these are joined with
    # the other half, and for the exchange with one another; sums begin as zeros and are narrowed at the end
    backward = steps * (added * queries + (added / 2 + 4 * FP32_BYTES) * keys_values)
    backward = backward + later_steps * 2 * width * keys_values
    backward = backward + once * (FP32_BYTES + narrowed) * (queries + keys_values)
    return np.array([forward, backward])


_SCAN_PRODUCTS = np.array([[1.0], [3.0]])
"""Products that the forward and the backward pass of a scan compute, per forward product, (2, 1)."""
_SCAN_PASSES = {
    "decays": ((3, 4, 0, 4, 2, 5), (9, 13, 0, 10, 6, 12)),
    "delta": ((6, 9, 2, 2, 4, 8), (15, 18, 5, 4, 2, 12)),
}
"""Memory passes over tensors of five sizes, and number of kernels, of each scan rule's kernels, forward
and backward. The sizes are H·P elements a token, G·N, H·N, H·N·P a chunk, and rows of C fp32 elements a token
for each head (or for each group with decaying states). Counted in `_mamba_chunk_scan_combined_fwd` and
`.._bwd` (mamba-ssm 2.2, ops/triton/ssd_combined.py, with states in fp32) and in `chunk_gated_delta_rule_fwd`
and `.._bwd` with the norms of queries and keys (flash-linear-attention 0.4, ops/gated_delta_rule/chunk.py,
with states in 16 bits)."""
_MAMBA1_PASSES = ((5, 6, 0, 2, 0, 1), (10, 10, 0, 2, 0, 1))
"""Memory passes, as in `_SCAN_PASSES`, of Mamba-1's `selective_scan_cuda.fwd` and `.bwd`: values, step sizes,
gates, output and gated output; backward also their gradients; keys and queries as they are laid out, and
their gradients in fp32."""
_MAMBA1_FLOPS = np.array([[9.0], [27.0]])
_GATE_PASSES = np.array([[2.0], [8.0]])
"""Further memory passes over the values, forward and backward, if the kernels of decaying states also gate
them: the gate is read and the output written twice; backward, gradients of both and the output again."""


def scan_seconds(question: Question, columns: LayoutColumns, device: Device) -> Array:
    """Seconds of a recurrence's scan kernels for one block and microbatch, forward and backward, (2, N), mean
    over blocks with and without states."""
    mixer, share = question.model.recurrence, question.model.mixer_share("recurrence", "both")
    if mixer is None or not (share and mixer.scans):
        return np.zeros((2, len(columns)))
    tokens, element = tokens_on_rank(question, columns, "split"), question.training.element_bytes
    selective, delta = mixer.kind == "mamba1", mixer.delta
    passes = _MAMBA1_PASSES if selective else _SCAN_PASSES["delta" if delta else "decays"]
    values, keys, head_keys, states, squares, kernels = np.array(passes, dtype=np.float64).T[..., None]
    if question.stack.transformer_engine and not delta and not selective:
        values = values + _GATE_PASSES
    rows = values * mixer.value_size + keys * mixer.key_size + head_keys * mixer.heads * mixer.state_dim
    bytes_moved = element * rows + (element if delta else FP32_BYTES) * states * state_elements(mixer)
    bytes_moved = bytes_moved + FP32_BYTES * squares * mixer.chunk * (mixer.heads if delta else mixer.groups)
    launches = kernels * device.profile.kernel_seconds
    if selective:
        tokens, rate = share * tokens, question.cluster.gpu.peak.get("fp32", device.peak)
        flops = _MAMBA1_FLOPS * (mixer.value_size * mixer.state_dim) / rate
        roof = tokens * np.maximum(flops, bytes_moved / device.memory_rate)
        return np.asarray(np.maximum(roof, (tokens > 0) * launches))
    rates = device.peak * (device.attention_shares / _SCAN_PRODUCTS)
    roof = np.maximum(tokens * scan_flops(mixer) / rates, tokens * bytes_moved / device.memory_rate)
    return np.asarray(share * np.maximum(roof, launches))


def scan_flops(mixer: Recurrence) -> float:
    """Forward FLOPs per token that scan kernels execute, over all heads."""
    states = state_products(mixer) * mixer.value_size * mixer.state_dim
    inside = mixer.key_size + mixer.value_size
    if mixer.delta:
        inside = mixer.heads * (3 * mixer.state_dim + 2 * mixer.head_dim)
    return 2.0 * (states + mixer.chunk * inside)


def state_elements(mixer: Recurrence) -> float:
    """Number of recurrent-state elements written per token, over all heads; states are written once per chunk
    of tokens."""
    return mixer.value_size * mixer.state_dim / mixer.chunk
