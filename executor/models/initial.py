"""Initial weights, any part of a parameter by itself: gains of norms 1, biases 0, matrices normal.

A value depends on seed, name of the parameter and place of the element in the whole alone, so every layout starts from
the same model, and a rank draws what it keeps and no more. The bits (`executor.draws`) are the same on every device.
Two elements share 64 of them (Box & Muller 1958), in fp64; rounded to fp32 values are the same wherever they are
computed, unless two devices' logarithm or sine differ just where fp32 rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, prod
from typing import Protocol

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from executor.boxes import Box
from executor.draws import bits_of, key_of, shifted
from executor.mesh import local
from executor.models.ends import original
from executor.run_config import EngineOptions
from planner.plan import Plan

_STANDARD_DEVIATION = 0.02
_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 22}
"""Elements drawn at a time; on a CPU as many as its cache holds."""
_WORD = 32
_SCALE = 2.0**-_WORD


class Values(Protocol):
    """Interface of a source of parameter values. It can give any box of a parameter without the rest."""

    def fill(self, name: str, shape: tuple[int, ...], box: Box, into: Tensor) -> None:
        """Write the box of the parameter of this name and shape into a contiguous tensor of the box's sizes.

        Only the sizes of dims after the first matter: a vocabulary may be padded.
        """


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor has memory, unlike meta and fake tensors."""
    return not (tensor.is_meta or isinstance(local(tensor), FakeTensor))


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialValues:
    """Initial weights of a model under a seed."""

    seed: int
    tied: bool
    """Whether the head shares the embedding's matrix."""
    device: torch.device | None = None
    """Device on which values are drawn before they are copied; None draws them where they are stored."""

    @staticmethod
    def of(plan: Plan, options: EngineOptions, device: torch.device | None = None) -> InitialValues:
        """Initial values of a plan's model under the run's seed."""
        return InitialValues(seed=options.seed, tied=plan.model.tied_embeddings, device=device)

    def fill(self, name: str, shape: tuple[int, ...], box: Box, into: Tensor) -> None:
        """Draw the values of a box of a parameter; copies of a tied matrix get equal values."""
        owner = name.rsplit(".", 2)[-2] if "." in name else name
        if not has_values(into) or not box.elements:
            return
        if name.endswith(("bias", "_adapter.up.weight")) and not name.endswith("step_bias"):
            into.zero_()
        elif owner.endswith("norm") or name.endswith(".skip"):
            into.fill_(1.0)
        else:
            key = key_of(self.seed, original(name, tied=self.tied))
            _fill_normal(into, key, shape, box, self.device or into.device)
            if name.endswith("_adapter.down.weight"):  # the variance of peft's
                into.mul_((3 * shape[-1]) ** -0.5 / _STANDARD_DEVIATION)
            if owner == "scan":
                _to_rates(name, shape, into)


def _to_rates(name: str, shape: tuple[int, ...], into: Tensor) -> None:
    """Turn normal values of a scan's parameters, in place, into decay rates, step sizes or taps. Rates of decay are
    even between 1 and 16, step sizes between 0.001 and 0.1 by their logarithms (Dao & Gu 2024, arXiv 2405.21060: their
    code), as what softplus makes of a bias; taps are as wide as their number says.
    """
    even = torch.special.ndtr(into.double() / _STANDARD_DEVIATION)
    if name.endswith("decay_log"):
        into.copy_((1 + 15 * even).log())
    elif name.endswith("step_bias"):
        into.copy_((1e-3 * 100**even).expm1().log())
    else:
        into.copy_((2 * even - 1) * shape[-1] ** -0.5)


def _fill_normal(into: Tensor, key: int, shape: tuple[int, ...], box: Box, device: torch.device) -> None:
    """Draw normal values of a box on `device`, about `_AT_ONCE` elements at a time, in runs of consecutive elements.
    Runs are as long as the box has whole rows.
    """
    inner = len(shape) - 1
    while inner > 0 and box.sizes[inner] == shape[inner]:
        inner -= 1
    length, outer = prod(box.sizes[inner:]), range(inner)
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    first = sum(offset * stride for offset, stride in zip(box.offsets, strides, strict=True))
    parity = None if any(strides[dim] % 2 and box.sizes[dim] > 1 for dim in outer) else first % 2
    starts = torch.full((1,), first, device=device)
    for dim in outer:
        steps = torch.arange(box.sizes[dim], device=device) * strides[dim]
        starts = (starts[:, None] + steps).flatten()
    rows, at_once = into.view(-1, length), _AT_ONCE.get(device.type, _AT_ONCE["cuda"])
    columns = min(length, at_once)
    for row in range(0, len(rows), group := max(1, at_once // columns)):
        for column in range(0, length, columns):
            part = rows[row : row + group, column : column + columns]
            places = starts[row : row + group] + column
            odd = None if parity is None else (parity + column) % 2
            part.copy_(_normal(places, part.shape[1], odd, key).mul_(_STANDARD_DEVIATION))


def _normal(starts: Tensor, length: int, parity: int | None, key: int) -> Tensor:
    """Standard normal values of `length` elements from each of `starts` on. `parity` is that of all starts, None if
    mixed.
    """
    pairs = (length + 1) // 2 if parity == 0 else length // 2 + 1
    bits = bits_of((starts[:, None] >> 1) + torch.arange(pairs, device=starts.device), key)
    radius = shifted(bits, _WORD).double().add_(1).mul_(_SCALE).log_().mul_(-2).sqrt_()
    angle = bits.bitwise_and_((1 << _WORD) - 1).double().mul_(2 * pi * _SCALE)
    cos_sin = torch.empty(*bits.shape, 2, dtype=radius.dtype, device=bits.device)
    torch.mul(radius, angle.cos(), out=cos_sin[..., 0])
    torch.mul(radius, angle.sin_(), out=cos_sin[..., 1])
    cos_sin = cos_sin.flatten(1)
    if parity is not None:
        return cos_sin[:, parity : parity + length]
    return torch.where((starts & 1).bool()[:, None], cos_sin[:, 1 : 1 + length], cos_sin[:, :length])
