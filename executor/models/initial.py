"""Initial weights that depend on a parameter's name and place only, so that every layout starts from the same model."""

from __future__ import annotations

import hashlib
from functools import partial

import torch
from torch import Tensor, nn

from executor.models.experts import RoutedExperts

_STANDARD_DEVIATION = 0.02
TIED = {"head.weight": "embedding.tokens.weight"}
"""With tied embeddings: a copy → what it is a copy of."""


def initialise(module: nn.Module, seed: int, *, tied: bool) -> None:
    """Fill every parameter of a model slice in place, before anything is split or wrapped."""
    stacked = {f"{name}.": part for name, part in module.named_modules() if isinstance(part, RoutedExperts)}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if not name.startswith(tuple(stacked)):
                parameter.copy_(_values(name, parameter.shape, seed, tied=tied))
        for prefix, experts in stacked.items():
            experts.fill(partial(_one_expert, prefix, seed))


def _one_expert(prefix: str, seed: int, name: str, shape: tuple[int, ...]) -> Tensor:
    """A whole matrix or bias of one expert, whatever part of the experts is here."""
    return _values(prefix + name, torch.Size(shape), seed, tied=False)


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
