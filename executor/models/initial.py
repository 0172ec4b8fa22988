"""Initial weights that depend on a parameter's name and place only, so that every layout starts from the same model."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

_STANDARD_DEVIATION = 0.02
TIED = {"head.weight": "embedding.tokens.weight"}
"""With tied embeddings: a copy → what it is a copy of."""


def initialise(module: nn.Module, seed: int, *, tied: bool) -> None:
    """Fill every parameter of a model slice in place, before anything is split or wrapped."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(_values(name, parameter.shape, seed, tied=tied))


def _values(name: str, shape: torch.Size, seed: int, *, tied: bool) -> Tensor:
    """Norm gains 1, biases 0, matrices normal with a generator seeded by the name."""
    owner = name.rsplit(".", 2)[-2] if "." in name else name
    if name.endswith("bias"):
        return torch.zeros(shape)
    if owner.endswith("norm"):
        return torch.ones(shape)
    named = TIED.get(name, name) if tied else name
    digest = hashlib.sha256(f"{seed}/{named}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return torch.randn(shape, generator=generator) * _STANDARD_DEVIATION
