"""Optimizers of embedding rows: they touch only the rows that a batch uses.

sgd              w ← w − η·g
adagrad          s ← s + g²          w ← w − η·g / (√s + ε)
rowwise-adagrad  s ← s + mean(g²)    one s a row (Gupta et al. 2014)
adam             moments of the rows used only; their correction counts all steps (Kingma & Ba 2015)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cost_models.specs.recommender.training import TableOptimizer

_EPSILON = 1e-8
_BETAS = (0.9, 0.999)
_STATES: dict[TableOptimizer, tuple[str, ...]] = {
    "sgd": (),
    "rowwise-adagrad": ("momentum",),
    "adagrad": ("momentum",),
    "adam": ("exp_avg", "exp_avg_sq"),
}


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """The update rule of rows: one for all tables."""

    kind: TableOptimizer

    @property
    def by_row(self) -> bool:
        """Whether it keeps one number for a row of any width."""
        return self.kind == "rowwise-adagrad"

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of its states of each row."""
        return _STATES[self.kind]

    def states(self, rows: int, width: int, device: torch.device) -> dict[str, Tensor]:
        """Zeros, (rows, width) or (rows,), for each name."""
        shape = (rows,) if self.by_row else (rows, width)
        return {name: torch.zeros(shape, device=device) for name in self.state_names}

    def apply(
        self,
        weights: Tensor,
        states: dict[str, Tensor],
        rows: Tensor,
        gradients: Tensor,
        squares: Tensor | None,
        rate: float,
        step: int,
    ) -> None:
        """Update the rows, each of them once; `squares` are means over whole rows, `step` counts from 1."""
        change = self._change(states, rows, gradients.float(), squares, step)
        weights[rows] = weights[rows].float().sub_(change, alpha=rate).to(weights.dtype)

    def _change(
        self, states: dict[str, Tensor], rows: Tensor, gradients: Tensor, squares: Tensor | None, step: int
    ) -> Tensor:
        if self.kind == "sgd":
            return gradients
        if self.kind == "adam":
            return _adam(states, rows, gradients, step)
        added = gradients.square() if squares is None else squares
        momentum = states["momentum"]
        now = momentum[rows] + added
        momentum[rows] = now
        scale = now.sqrt() + _EPSILON
        return gradients / (scale if squares is None else scale[:, None])


def _adam(states: dict[str, Tensor], rows: Tensor, gradients: Tensor, step: int) -> Tensor:
    first, second = _BETAS
    mean = states["exp_avg"][rows].mul_(first).add_(gradients, alpha=1 - first)
    square = states["exp_avg_sq"][rows].mul_(second).addcmul_(gradients, gradients, value=1 - second)
    states["exp_avg"][rows], states["exp_avg_sq"][rows] = mean, square
    scale = (square / (1 - second**step)).sqrt_().add_(_EPSILON)
    return mean / (1 - first**step) / scale
