"""Tensors that collectives hold back while the host runs ahead of the device.

Before torch 2.8 every collective marks its tensors as used on NCCL's stream (`record_stream`). One that is freed goes
back to the allocator only when the device has passed that point, and the host frees it long before: launches wait in a
queue of some 1,024, and so do the tensors of as many blocks. They are free for the program, so they count as reserved
and not as allocated (pytorch/pytorch issue 147168; pull request 148590 ended it).

    blocks ahead   n = 1024 / launches of a block's forward pass
    held           2 · e · s · b · h · (min(n, L) + min(L, (n − L)⁺ / 2))

L blocks lie on a rank before its host has to wait, e is the bytes of an element. Tensor parallelism reduces two tensors
of s·b·h a pass and block that nothing keeps; the second term is the microbatch before, in whose backward pass a block
launches twice as much. Left out: hosts that are slower than their device, which hold nothing back, and collectives of
other axes.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.block import block_operators
from cost_models.operators.traffic import block_traffic
from cost_models.question import Question

_QUEUED = 1024.0
"""Launches that wait for the device before the next blocks its host (CUDA, observed by many; nowhere promised)."""
_OF_A_COLLECTIVE = 5.0
"""Entries of a collective in it: its kernel, and an event recorded and waited for on either stream (torch,
`ProcessGroupNCCL::collective`)."""
_REDUCED = 2.0
"""Tensors of a block and pass that are reduced over tensor-parallel ranks."""


def held_back_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes that a rank's allocator may not use again yet; nothing on a CPU or without tensor parallelism."""
    if not question.stack.records_streams or question.cluster.gpu.kind == "cpu":
        return np.zeros(len(columns))
    model, training = question.model, question.training
    products = sum(one.share for one in block_operators(model) if one.kind in ("gemm", "core"))
    collectives = np.where(columns.sp == 1, 2 * _REDUCED, _REDUCED)
    launches = block_traffic(question, columns).forward_kernels + products + _OF_A_COLLECTIVE * collectives
    ahead, blocks = _QUEUED / launches, model.num_layers / (columns.pp * columns.vpp)
    before = np.where(
        columns.microbatches(training.global_batch) > 1,
        np.minimum(blocks, (ahead - blocks).clip(min=0.0) / 2),
        0.0,
    )
    tensor = training.element_bytes * columns.tokens(training.sequence_length) * model.hidden_size
    held: Array = _REDUCED * tensor * (np.minimum(ahead, blocks) + before)
    return np.where(columns.tp > 1, held, 0.0)
