"""What lies before the blocks and behind them: embedded tokens, positions and types, an encoder's transform, norms.

Shape legend: B batch, S sequence, D model.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.transformer import TransformerSpec
from executor.models.feed_forward import ACTIVATIONS
from executor.models.mixing.sequence import Sequence, WholeSequence


def make_norm(spec: TransformerSpec) -> nn.Module:
    """The spec's normalisation, over the residual stream."""
    width, epsilon = spec.hidden_size, spec.norm_epsilon
    if spec.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=epsilon)
    return nn.LayerNorm(width, eps=epsilon, bias=spec.norm_bias)


def is_gain(name: str) -> bool:
    """Whether a parameter is the gain of a norm that a family may keep less one: not of those behind gates."""
    return name.endswith("norm.weight") and not name.endswith("gated_norm.weight")


def through(norm: nn.Module | None, x_BSD: Tensor) -> Tensor:
    """The input, through the norm where there is one."""
    return x_BSD if norm is None else norm(x_BSD)


class Positions(nn.Module):
    """A learned table of positions, of which `sequence` says those that this rank has tokens of."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(spec.max_positions, spec.hidden_size))
        self.sequence: Sequence = WholeSequence()
        self.first = spec.encoder.first_position if spec.encoder else 0

    def forward(self, tokens: int) -> Tensor:
        """(1, S, D)."""
        rows = [
            self.weight[self.first + run.start : self.first + run.stop]
            for run in self.sequence.places(tokens)
        ]
        return (rows[0] if len(rows) == 1 else torch.cat(rows)).unsqueeze(0)


class TokenTypes(nn.Module):
    """A table of types of tokens, of which each token is of the first."""

    def __init__(self, spec: TransformerSpec, types: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(types, spec.hidden_size))

    def forward(self, tokens: int) -> Tensor:
        """(1, S, D)."""
        return self.weight[:1].expand(tokens, -1).unsqueeze(0)


class Embedding(nn.Module):
    """Tokens, and learned positions and types of tokens where the spec has them."""

    def __init__(self, spec: TransformerSpec, vocabulary: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, spec.hidden_size)
        self.positions = Positions(spec) if spec.positions == "learned" else None
        types = spec.encoder.token_types if spec.encoder else 0
        self.types = TokenTypes(spec, types) if types else None
        self.norm = make_norm(spec) if spec.embedding_norm else None
        self.scale = spec.embedding_scale
        self.dropout = dropout

    def forward(self, tokens_BS: Tensor, images: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """(B, S) token numbers → (B, S, D), with what stands in place of images' tokens, and where text is."""
        x_BSD: Tensor = self.tokens(tokens_BS)
        if self.scale != 1.0:
            x_BSD = x_BSD * self.scale
        if images is not None:
            x_BSD = images[0] + x_BSD * images[1]
        if self.positions is not None:
            x_BSD = x_BSD + self.positions(tokens_BS.shape[1])
        if self.types is not None:
            x_BSD = x_BSD + self.types(tokens_BS.shape[1])
        return F.dropout(through(self.norm, x_BSD), self.dropout, self.training)


class HeadTransform(nn.Module):
    """A square matrix, the activation and a norm before the output matrix of an encoder."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.dense = nn.Linear(spec.hidden_size, spec.hidden_size, bias=spec.mlp_bias)
        self.activation = ACTIVATIONS[spec.activation]
        self.norm = make_norm(spec)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        normed: Tensor = self.norm(self.activation(self.dense(x_BSD)))
        return normed
