"""A vision tower before a decoder: patches of images go through blocks of their own, and what these return stands at
the first places of the decoder's sequence (LLaVA: Liu et al. 2023, arXiv 2304.08485).

Shape legend: B samples, N images of all samples, C channels, X rows and columns of pixels, P tokens of an image, E
width of the tower, F features that an image gives the decoder, D width of the decoder, S sequence.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.transformer import Tower
from executor.models.feed_forward import ACTIVATIONS


def tower_norm(tower: Tower) -> nn.Module | None:
    """The norm behind its last block."""
    return _norm(tower, tower.hidden_size, there=tower.norm_after)


def _norm(tower: Tower, width: int, *, there: bool) -> nn.Module | None:
    kind = nn.RMSNorm if tower.norm == "rmsnorm" else nn.LayerNorm
    return kind(width, eps=tower.norm_epsilon) if there else None


class Patches(nn.Module):
    """Images cut into squares, a product for each of them, a class token in front, and learned positions.

    The product is the convolution whose steps are as wide as its kernel.
    """

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        width, self.patch = tower.hidden_size, tower.patch
        self.matrix = nn.Linear(tower.pixels, width, bias=tower.patch_bias)
        self.class_token = nn.Parameter(torch.empty(width)) if tower.class_token else None
        self.positions = nn.Embedding(tower.tokens, width)
        self.norm = _norm(tower, width, there=tower.norm_before)

    def forward(self, images_BICXX: Tensor) -> Tensor:
        """(B, images of a sample, C, X, X) → (N, P, E)."""
        rows = torch.unflatten(images_BICXX.flatten(0, 1), 3, (-1, self.patch))
        rows = torch.unflatten(rows, 2, (-1, self.patch))
        pixels = rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x_NPE: Tensor = self.matrix(pixels.to(self.matrix.weight.dtype))
        if self.class_token is not None:
            x_NPE = torch.cat([self.class_token.expand(len(x_NPE), 1, -1), x_NPE], dim=1)
        x_NPE = x_NPE + self.positions.weight
        return x_NPE if self.norm is None else self.norm(x_NPE)


class Projector(nn.Module):
    """Tokens of neighbouring patches side by side, made as wide as the decoder; the class token is left out."""

    def __init__(self, tower: Tower, width: int) -> None:
        super().__init__()
        self.tower, bias = tower, tower.projector_bias
        inner = tower.projector_hidden_size or tower.projector_inputs
        self.norm = _norm(tower, tower.projector_inputs, there=tower.projector_norm)
        self.up = nn.Linear(tower.projector_inputs, inner, bias=bias) if tower.projector_hidden_size else None
        self.down = nn.Linear(inner, width, bias=bias)
        self.activation = ACTIVATIONS[tower.projector_activation]

    def forward(self, x_NPE: Tensor) -> Tensor:
        """(N, P, E) → (N, F, D)."""
        x, side = x_NPE[:, int(self.tower.class_token) :], self.tower.merge
        if side > 1:
            squares = torch.unflatten(x, 1, (-1, side, self.tower.image // self.tower.patch // side, side))
            x = squares.transpose(2, 3).flatten(3).flatten(1, 2)
        x = x if self.norm is None else self.norm(x)
        found: Tensor = self.down(x if self.up is None else self.activation(self.up(x)))
        return found


class Placing(nn.Module):
    """Features of images at the first places of a sequence, and where its text is."""

    def forward(self, features_NFD: Tensor, samples: int, tokens: int) -> tuple[Tensor, Tensor]:
        """(B, S, D) with zeros at text, and (1, S, 1) ones there."""
        features_BFD = torch.unflatten(features_NFD, 0, (samples, -1)).flatten(1, 2)
        taken = features_BFD.shape[1]
        text_S = torch.arange(tokens, device=features_BFD.device) >= taken
        placed_BSD = F.pad(features_BFD, (0, 0, 0, tokens - taken))
        return placed_BSD, text_S.to(placed_BSD.dtype).view(1, -1, 1)
