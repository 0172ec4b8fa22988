"""The dense MLP of a block, or of the experts that every token passes through.

Shape legend: B batch, S sequence, D model, F inner width (of this rank).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.transformer import Activation, TransformerSpec

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu": F.relu,
    "squared-relu": lambda x: F.relu(x).square(),
    "quick-gelu": lambda x: x * F.sigmoid(1.702 * x),
}


class FeedForward(nn.Module):
    """Two matrices with a non-linearity between, or three with a gate; as wide as the spec's MLP unless said."""

    def __init__(self, spec: TransformerSpec, inner: int | None = None) -> None:
        super().__init__()
        width, inner = spec.hidden_size, spec.ffn_hidden_size if inner is None else inner
        self.gate = nn.Linear(width, inner, bias=spec.mlp_bias) if spec.gated_mlp else None
        self.up = nn.Linear(width, inner, bias=spec.mlp_bias)
        self.down = nn.Linear(inner, width, bias=spec.mlp_bias)
        self.activation = ACTIVATIONS[spec.activation]

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        up_BSF = self.up(x_BSD)
        if self.gate is None:
            inner_BSF: Tensor = self.activation(up_BSF)
        else:
            inner_BSF = self.activation(self.gate(x_BSD)) * up_BSF
        out: Tensor = self.down(inner_BSF)
        return out
