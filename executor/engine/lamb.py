"""LAMB: the step of each parameter is proportional to its norm, in Adam's direction (You et al. 2020, algorithm 2).

    r = m̂ / (√v̂ + ε) + λx        x ← x − η · ‖x‖ / ‖r‖ · r

The norms are those of *whole* parameters, as the model names them. Tensor parallelism, ZeRO and expert parallelism give
a rank slices, so the squares of all slices are added up first, in one all-reduce for all parameters of a stage. Norms
of slices would train another model under every layout (ColossalAI 22).

r overwrites the gradient, which is not needed any more, so it takes no buffer (as in Apex's FusedLAMB). Where x or r is
zero, the ratio is 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from executor.mesh import local

_EPSILON = 1e-6
_CHUNK = 2**22
"""Elements that are worked on at a time: temporaries are no larger."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `begin` to `end` − 1 of an updated tensor that belong to one parameter of the stage."""

    parameter: nn.Parameter
    updated: nn.Parameter
    begin: int
    end: int

    def of(self, tensor: Tensor) -> Tensor:
        """This slice's elements of a tensor, the weights or the gradient of the updated parameter."""
        return local(tensor.detach()).view(-1)[self.begin : self.end]


class Lamb(torch.optim.Optimizer):
    """LAMB for this rank's slices of some parameters; `connect` it before its first step."""

    def __init__(
        self, updated: Sequence[nn.Parameter], *, rate: float, betas: tuple[float, float], decay: float
    ) -> None:
        super().__init__(updated, {"lr": rate})
        self._updated, self._betas, self._decay = list(updated), betas, decay
        self._norms: WholeNorms | None = None
        self._slices: list[Slice] = []
        self._ratios: list[Tensor] | None = None

    def connect(self, norms: WholeNorms, slices: Iterable[Slice]) -> None:
        """Set the slices that this optimizer updates, and the source of their parameters' norms."""
        self._norms, self._slices = norms, list(slices)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self._ratios is None:
            assert self._norms is not None
            self._norms.find([self])
        assert self._ratios is not None
        (group,) = self.param_groups
        for piece, ratio in zip(self._slices, self._ratios, strict=True):
            assert piece.updated.grad is not None
            piece.of(piece.updated).addcmul_(piece.of(piece.updated.grad), ratio, value=-group["lr"])
        self._ratios = None

    def begin(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Update the moments and overwrite gradients by r; (parameter, squares of x and of r here) of each slice."""
        for updated in self._updated:
            self._direct(updated)
        weights = [one.of(one.updated) for one in self._slices]
        ways = [one.of(one.updated.grad) for one in self._slices if one.updated.grad is not None]
        if not weights:
            return []
        norms = torch._foreach_norm([*weights, *ways], dtype=torch.float32)
        squares = torch.stack(norms).view(2, -1).square().unbind(1)
        return [(one.parameter, square) for one, square in zip(self._slices, squares, strict=True)]

    def take(self, ratios: Sequence[Tensor]) -> None:
        """Set ‖x‖ / ‖r‖ of the parameter of each slice for the next step."""
        self._ratios = list(ratios)

    def _direct(self, updated: nn.Parameter) -> None:
        state = self.state[updated]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=local(updated).device)
            state["exp_avg"] = torch.zeros_like(updated, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(updated, memory_format=torch.preserve_format)
        if updated.grad is None:  # a part of a whole that others have gradients of
            updated.grad = torch.zeros_like(updated)
        state["step"] += 1
        first, second = (1 - beta ** state["step"] for beta in self._betas)
        all_of_it = (updated, updated.grad, state["exp_avg"], state["exp_avg_sq"])
        flat = [local(one.detach()).view(-1) for one in all_of_it]
        for x, g, m, v in zip(*(torch.split(one, _CHUNK) for one in flat), strict=True):
            m.lerp_(g, 1 - self._betas[0])
            v.mul_(self._betas[1]).addcmul_(g, g, value=1 - self._betas[1])
            spread = (v / second).sqrt_().add_(_EPSILON)
            torch.div(m, spread, out=g).div_(first).add_(x, alpha=self._decay)


class WholeNorms:
    """Adds up squares of the slices of each parameter over the ranks of a stage."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        copies: Sequence[int],
        group: dist.ProcessGroup | None,
        join_tied: Callable[[Callable[[Tensor], Tensor | None]], None],
        device: torch.device | str,
    ) -> None:
        """`copies` of the ranks in `group` hold the same elements of a parameter; None: this one has all of them.

        `join_tied` adds up what the two copies of a tied matrix have; sums are made on `device`.
        """
        self._place = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._group, self._join_tied, self._device = group, join_tied, device
        self._copies = torch.tensor(copies, dtype=torch.float32, device=device).unsqueeze(1)

    def find(self, optimizers: Sequence[Lamb], *, tied: bool = False) -> None:
        """Begin the updates of optimizers and set the ratios of all their parameters, with one all-reduce."""
        squares_of = [optimizer.begin() for optimizer in optimizers]
        sums = torch.zeros(len(self._place), 2, device=self._device)
        for parameter, squares in (optimizer for pairs in squares_of for optimizer in pairs):
            # one slice of each, as a flat buffer has it in one piece
            sums[self._place[id(parameter)]] = squares
        if self._group is not None:
            sums.div_(self._copies)
            dist.all_reduce(sums, group=self._group)
        if tied:  # twice the squares of both norms: their ratio stays, to the bit the same on both stages
            self._join_tied(lambda parameter: self._of(sums, parameter))
        x, r = sums.unbind(1)
        ratios = torch.where((x > 0) & (r > 0), (x / r).sqrt(), 1.0).unbind()
        for optimizer, pairs in zip(optimizers, squares_of, strict=True):
            optimizer.take([ratios[self._place[id(parameter)]] for parameter, _ in pairs])

    def _of(self, sums: Tensor, parameter: Tensor) -> Tensor | None:
        place = self._place.get(id(parameter))
        return None if place is None else sums[place]
