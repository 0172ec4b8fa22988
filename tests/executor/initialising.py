"""Initial weights of modules that no engine made."""

from __future__ import annotations

from torch import nn

from executor.boxes import Box
from executor.engine.weights import parameter_names
from executor.models.initial import InitialValues


def initialise(module: nn.Module, seed: int, *, tied: bool) -> None:
    """Fill every parameter of a model slice, in place."""
    names, values = parameter_names([module]), InitialValues(seed=seed, tied=tied)
    for parameter in module.parameters():
        one = names[id(parameter)]
        values.fill(one.name, one.shape, Box(one.offsets, tuple(parameter.shape)), parameter.detach())
