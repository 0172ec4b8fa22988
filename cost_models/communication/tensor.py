"""Tensor-parallel communication of a block and of the two ends, per microbatch, before anything hides it.

Narayanan et al. 2021: two all-reduces of b·s·h forward and two backward per block. With sequence parallelism each is an
all-gather and a reduce-scatter of the same bytes (Korthikanti et al. 2022); the backward pass gathers the inputs of the
two column-parallel products once more, behind the products that do not need them, unless the stack kept them; some
stacks also sum the gradients of these inputs behind the products towards the weights. In fp8 and fp4 Transformer
Engine gathers what is multiplied as it was cast, and scatters sums in 16 bits. A parallel block leaves its region once,
and enters it once where both halves read one norm.

Recomputing a block repeats what its forward pass sent, but for the sum after its last product where recomputation stops
early. Torchtitan's per-operator policy keeps what was scattered and gathers again (models/llama3/infra/parallelize.py,
`_op_sac_save_list`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import Groups
from cost_models.question import Question

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSeconds:
    """Seconds per microbatch, each (N,)."""

    block_forward: Array
    block_backward: Array
    block_regather: Array
    """Backward gathers of inputs that run behind products towards these inputs."""
    block_summed: Array
    """Sums of their gradients, scattered or not, behind products towards weights; no part of `block_backward`."""
    block_recomputed: Array
    """(N, P): the part of `block_forward` that each recompute policy repeats."""
    embedding_forward: Array
    embedding_backward: Array
    head_forward: Array
    head_backward: Array


def tensor_seconds(question: Question, columns: LayoutColumns, group: Groups) -> TensorSeconds:
    """Costs over the tensor-parallel groups; zero where tp is 1."""
    tokens = columns.tokens(question.training.sequence_length)
    message = tokens * question.model.hidden_size * question.training.element_bytes
    profile = question.hardware
    reduce = all_reduce_seconds(message, group, profile)
    gather = all_gather_seconds(message, group, profile)
    operand = gather
    if question.stack.gathers_cast_operands and question.training.narrow:
        cast = message * question.training.operand_bytes / question.training.element_bytes
        operand = all_gather_seconds(cast, group, profile)
    scatter = reduce_scatter_seconds(message, group, profile)
    sp = columns.sp == 1
    joined = question.model.parallel_block  # what attention and MLP find is added before it is reduced
    times = _mlp_share(question, sp)  # of the MLP
    entered = times + (not question.model.forked)  # where both halves read one norm it is gathered once
    left = times + (not joined)
    keeps_gathered = question.stack.saves_gathered_activations
    none = np.zeros(len(columns))
    stack = question.stack
    behind = np.where(sp, stack.reduces_behind_weight_products, stack.all_reduces_behind_weight_products)
    summed = entered * np.where(sp, scatter, reduce)
    forward = np.where(sp, entered * operand + left * scatter, left * reduce)
    last = times * np.where(sp, scatter, reduce)
    again = forward - last if question.stack.recompute_stops_early else forward
    by_operator = question.stack.selective_drops == "all-but-every-other-product"
    gathered = np.where(sp, entered * gather, none) if by_operator else none
    return TensorSeconds(
        block_forward=forward,
        block_recomputed=np.stack([none, gathered, again], axis=-1),
        block_backward=np.where(behind, none, summed) + np.where(sp, left * operand, none),
        block_summed=np.where(behind, summed, none),
        block_regather=none if keeps_gathered else np.where(sp, entered * operand, none),
        embedding_forward=np.where(sp, scatter, reduce),
        embedding_backward=np.where(sp, gather, none),
        head_forward=np.where(sp, gather, none),
        head_backward=np.where(sp, scatter, reduce),
    )


def _mlp_share(question: Question, sp: npt.NDArray[np.bool_]) -> Array:
    """(N,) share of the blocks whose MLP communicates over tp.

    With sequence parallelism routed experts take the tokens of each rank as they are; shared experts are an MLP.
    """
    model = question.model
    routed_only = model.moe_share if model.shared_expert_ffn_hidden_size == 0 else 0.0
    return np.where(sp, 1.0 - routed_only, 1.0)
