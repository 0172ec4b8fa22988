"""Bytes that blocks of other trainers keep, counted by autograd on blocks written from their facts, against the model.

Kernels stand in for those of a GPU: they keep what the real ones keep.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster
from cost_models.memory.activations import activation_bytes
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

S, B, H, N, INNER = 256, 2, 128, 4, 192
HEAD = H // N


class FusedNorm(torch.autograd.Function):
    """One kernel: keeps its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x.reshape(-1, x.shape[-1]), weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Flash(torch.autograd.Function):
    """A flash kernel: keeps what it reads and returns, and the log-sum-exp row in fp32."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = q + 0
        ctx.save_for_backward(q, k, v, out, torch.zeros(q.shape[:2]))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return gradient, gradient, gradient


class Turned(torch.autograd.Function):
    """Rotary positions by a kernel that writes where it reads, of which autograd learns nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def kept_by(block: Any, x: Tensor, weights: list[Tensor]) -> int:
    """Bytes of distinct storages that autograd keeps, weights aside."""
    known = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        block(x, *weights)
    return sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in known)


def nanotron(
    x: Tensor, into: Tensor, out: Tensor, up: Tensor, down: Tensor, first: Tensor, second: Tensor
) -> Tensor:
    """(s, b, h) tensors, a kernel that wants (b, s, h), a gate in eager PyTorch."""
    s, b, _ = x.shape
    q, k, v = (
        functional.linear(FusedNorm.apply(x, first), into)
        .view(s, b, 3, N, HEAD)
        .permute(2, 1, 0, 3, 4)
        .contiguous()
    )
    q, kv = Turned.apply(q), torch.stack([k, v], dim=2)  # keys are turned in place, too, in their copy
    k, v = kv[:, :, 0], kv[:, :, 1]
    attended = Flash.apply(
        *(one.reshape(b * s, N, HEAD) if one is q else one.flatten(0, 1) for one in (q, k, v))
    )
    x = functional.linear(attended.view(b, s, H).transpose(0, 1), out) + x
    gate, more = functional.linear(FusedNorm.apply(x, second), up).split(INNER, dim=-1)
    return functional.linear(functional.silu(gate) * more, down) + x


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Written out as LLaMA's, in fp32 and back."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * weight


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotary positions with a rotated copy; all heads of `x` read the same `cosines` and `sines`."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


def aleph_alpha(
    x: Tensor, into: Tensor, out: Tensor, up: Tensor, down: Tensor, first: Tensor, second: Tensor
) -> Tensor:
    """(b, s, h) tensors, norms, positions and gate in eager PyTorch, a kernel that wants (b·s, n, d) and whose values
    are a view of the joint product."""
    x = x.transpose(0, 1).contiguous()
    b, s, _ = x.shape
    joint = functional.linear(rms_norm(x, first), into).view(b, s, N, 3 * HEAD).transpose(0, 1)
    q, k, v = joint.chunk(3, dim=-1)
    tables = [torch.ones(s, b, 1, HEAD, dtype=x.dtype) for _ in range(4)]  # gathered by position
    q, k = turned(q, *tables[:2]), turned(k, *tables[2:])
    attended = Flash.apply(*(one.transpose(0, 1).reshape(b * s, N, HEAD) for one in (q, k, v)))
    by_head = attended.view(b, s, N, HEAD).transpose(1, 2).reshape(b * N, s, HEAD)
    x = functional.linear(by_head.view(b, N, s, HEAD).transpose(1, 2).reshape(b, s, H), out) + x
    normed = rms_norm(x, second)
    gate, more = functional.linear(normed, up[:INNER]), functional.linear(normed, up[INNER:])
    return functional.linear(functional.silu(gate) * more, down) + x


@pytest.mark.parametrize(("stack", "block"), [("nanotron", nanotron), ("aleph-alpha", aleph_alpha)])
def test_a_block_keeps_what_autograd_counts(stack: str, block: Any) -> None:
    shapes = [(3 * H, H), (H, H), (2 * INNER, H), (H, INNER), (H,), (H,)]
    weights = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
    x = torch.randn(S, B, H, dtype=torch.bfloat16, requires_grad=True)
    model = TransformerSpec(
        name="block",
        num_layers=1,
        hidden_size=H,
        num_heads=N,
        ffn_hidden_size=INNER,
        gated_mlp=True,
        norm="rmsnorm",
        positions="rotary",
        vocab_size=1000,
        max_positions=S,
    )
    training = TrainingSpec(global_batch=B, sequence_length=S)
    question = complete_question(model, resolve_cluster("dgx-h100", 1), training, stack=stack)
    columns = LayoutColumns.of([Layout(mbs=B)])
    # the model leaves out roots in fp32, one for each token and norm, and cosines and sines that were gathered
    left_out = 0 if question.stack.fused_norms else 2 * 4 * S * B + 4 * 2 * S * B * HEAD
    assert kept_by(block, x, weights) - left_out == activation_bytes(question, columns).block[0, 0]
