"""Every switch of a block: its operators, as the cost model lists them, against the executor's own module under torch.

Small blocks in this process: parameters counted, FLOPs by torch's counter, bytes kept by its hooks on saved tensors,
gradients that wait for wgrad by its own split of the backward pass. Positions are none, as torch's CPU kernel keeps its
output once more behind rotary ones; every token goes to every expert, as loads are taken to be even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining._backward import stage_backward_input
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from training import GPT, LATENT, LLAMA, MOE, SHARED, question_for

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.measured_operators import gradient_additions
from cost_models.compute.mixing import scan_flops
from cost_models.memory.activations import activation_bytes, pending_bytes
from cost_models.operators.block import block_operators
from cost_models.operators.flops import forward_flops
from cost_models.operators.parameters import parameters
from cost_models.question import Question
from executor.models.experts import ExpertPlace
from executor.models.transformer import Block

SEQUENCE, MICROBATCH, WIDTH = 80, 2, 128
ONE = LayoutColumns.of([Layout(mbs=MICROBATCH)])
ROUTING = 0.015
"""Indices and weights of a token's experts, and statistics of norms, are left out of what is kept."""
_SIZE: dict[str, Any] = {"hidden_size": WIDTH, "num_heads": 4, "num_kv_heads": 4, "positions": "none"}
_GATED = LLAMA | _SIZE | {"ffn_hidden_size": 344}
_LATENTS = {"kv_rank": 32, "query_rank": 48, "position_dim": 8, "value_dim": 24}
_EXPERTS = _SIZE | {"experts_per_token": 4, "num_moe_layers": 4, "moe_ffn_hidden_size": 90}
"""Widths of no whole 16 bytes: experts run one by one, which torch's counter can count."""
_SHARED = _EXPERTS | {"shared_expert_ffn_hidden_size": 96}
SWITCHES: dict[str, dict[str, Any]] = {
    "layer norms, two matrices": GPT | _SIZE,
    "without biases": GPT | _SIZE | {"attention_bias": False, "mlp_bias": False, "norm_bias": False},
    "parallel block": GPT | _SIZE | {"parallel_block": True},
    "parallel block, two norms": GPT | _SIZE | {"parallel_block": True, "parallel_norms": 2},
    "gated": _GATED,
    "gated parallel block": _GATED | {"parallel_block": True},
    "norms of heads": _GATED | {"qk_norm": True},
    "norms over all heads": _GATED | {"qk_norm": True, "qk_norm_over": "all"},
    "norms around": _GATED | {"norm_placement": "around"},
    "norms after": _GATED | {"norm_placement": "after"},
    "norms over sums": GPT | _SIZE | {"norm_placement": "after-sum", "encoder": {}},
    "window": _GATED | {"attention_window": 32},
    "latents": LATENT | _GATED | {"head_dim": 24, "latent_attention": _LATENTS},
    "no latent of queries": LATENT
    | _GATED
    | {"head_dim": 24, "latent_attention": _LATENTS | {"query_rank": None}},
    "mixture": MOE | _EXPERTS,
    "mixture in a parallel block": MOE | _EXPERTS | {"parallel_block": True},
    "shared experts": SHARED | _SHARED,
    "gated shared experts": MOE | _SHARED | {"shared_expert_gate": True, "router_bias": True},
}
_SCANS: dict[str, Any] = {"heads": 8, "head_dim": 12, "groups": 4, "state_dim": 16, "chunk": 16}
STATES: dict[str, dict[str, Any]] = {
    "states": _GATED | {"recurrence": _SCANS | {"kind": "mamba2", "conv_bias": True, "bias": True}},
    "delta net": _GATED | {"recurrence": _SCANS | {"kind": "gated-delta"}},
    "kimi": _GATED | {"recurrence": _SCANS | {"kind": "kimi-delta", "groups": 8, "gate_rank": 12}},
    "states alone": _GATED | {"recurrence": _SCANS | {"kind": "mamba2"}, "separate_halves": True},
}
"""With scans, whose passes run again."""
SWITCHES |= STATES
WITHOUT_SCANS = [switch for switch in SWITCHES if switch not in STATES]


def asked(switch: str, dropout: float = 0.0) -> Question:
    return question_for(SWITCHES[switch], 1, sequence_length=SEQUENCE, dropout=dropout)


def block_of(question: Question) -> tuple[Block, Tensor]:
    """A block, and what it reads."""
    spec = question.model
    block = Block(spec, question.dropout, ExpertPlace() if spec.has_experts else None)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return block, torch.randn(MICROBATCH, SEQUENCE, WIDTH, requires_grad=True)


@pytest.mark.parametrize("switch", SWITCHES)
def test_parameters_are_those_of_the_module(switch: str) -> None:
    block, _ = block_of(asked(switch))
    counted = parameters(asked(switch).model, np.array([1]))
    assert sum(one.numel() for one in block.parameters()) == counted.block[0] + counted.experts[0]


@pytest.mark.parametrize("switch", WITHOUT_SCANS)
def test_flops_are_those_that_torch_counts(switch: str) -> None:
    """Forward once, backward twice: dgrad and wgrad. Attention written out computes what a window hides as well."""
    question = asked(switch)
    block, x = block_of(question)
    predicted = forward_flops(question.model, SEQUENCE)
    whole = forward_flops(question.model.model_copy(update={"attention_window": None}), SEQUENCE)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        out = block(x)
    assert forward.get_total_flops() == MICROBATCH * (predicted.block_matrices + whole.block_attention)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


@pytest.mark.parametrize("switch", ["states", "states alone"])
def test_scans_execute_what_is_priced(switch: str) -> None:
    """Besides what states need products inside chunks; under the delta rule these are solved for, not multiplied."""
    question = asked(switch)
    block, x = block_of(question)
    scans = [one.flops for one in block_operators(question.model) if one.kind == "scan"]
    assert question.model.recurrence
    more = SEQUENCE * (scan_flops(question.model.recurrence) - sum(scans))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        block(x)
    assert forward.get_total_flops() == MICROBATCH * (
        forward_flops(question.model, SEQUENCE).block_matrices + more
    )


@pytest.mark.parametrize("switch", SWITCHES)
def test_bytes_kept_are_those_that_torch_saves(switch: str) -> None:
    predicted = activation_bytes(asked(switch), ONE).block[0, 0]
    assert predicted == pytest.approx(saved_bytes(asked(switch)), rel=ROUTING)


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_dropout_keeps_its_mask(switch: str) -> None:
    """On a CPU masks are numbers, on a GPU, as priced, bytes: they are as many."""
    element = asked(switch).training.element_bytes
    predicted = activation_bytes(asked(switch, 0.1), ONE).block - activation_bytes(asked(switch), ONE).block
    masks = saved_bytes(asked(switch, 0.1)) - saved_bytes(asked(switch))
    assert predicted[0, 0] == masks / element


@pytest.mark.parametrize("switch", SWITCHES)
def test_gradients_that_wait_are_those_that_torch_holds(switch: str) -> None:
    """Between dgrad and wgrad, by the split that PyTorch's schedules run."""
    question = asked(switch)
    block, x = block_of(question)
    out = block(x)
    _, groups = stage_backward_input([out], [torch.ones_like(out)], [x], block.parameters())
    each = [grads for group in groups for grads in group["grads"] or ()]
    waiting = [one for grads in each for one in grads if one is not None]
    held = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in waiting}
    assert pending_bytes(question, ONE)[0][0] == sum(held.values())


@pytest.mark.parametrize("switch", WITHOUT_SCANS)
def test_gradients_meet_as_often_as_torch_adds_them(switch: str) -> None:
    """Wherever several operators read the same; an RMS norm written out adds once itself, a router few numbers."""
    question = asked(switch)
    block, x = block_of(question)
    out = block(x).sum()
    with Additions(question.model.num_experts) as added:
        out.backward()
    tokens, model = MICROBATCH * SEQUENCE, question.model
    listed = sum(
        times * over.width * tokens * (model.experts_per_token if over.place == "copies" else 1)
        for over, times in gradient_additions(block_operators(model)).items()
    )
    norms = [one.reads.width for one in block_operators(model) if one.norm == "rmsnorm"]
    assert added.elements == listed + tokens * sum(norms)


class Additions(TorchDispatchMode):
    """Counts the elements of all sums of two tensors, but for those of scores of experts."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.elements, self.experts = 0, experts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.add and out.shape[-1:] != (self.experts,):
            self.elements += out.numel()
        return out


def saved_bytes(question: Question) -> int:
    """Storages that a forward pass saves besides parameters, and a mask of scores, which blocks share."""
    block, x = block_of(question)
    own = {one.untyped_storage()._cdata for one in block.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(saved: Tensor) -> Tensor:
        if saved.untyped_storage()._cdata not in own and saved.shape[-2:] != (SEQUENCE, SEQUENCE):
            kept[saved.untyped_storage()._cdata] = saved
        return saved

    with saved_tensors_hooks(pack, lambda saved: saved):
        out = block(x)
    del out
    return sum(one.untyped_storage().nbytes() for one in kept.values())
