"""Regions that keep what they are given and are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def made_again(run: Callable[..., Tensor], **given: Tensor) -> Tensor:
    """What `run` makes of tensors; for its backward pass these are kept, and it runs again."""
    made: Tensor = _MadeAgain.apply(run, tuple(given), *given.values())  # type: ignore[no-untyped-call]
    return made


class _MadeAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], names: tuple[str, ...], *given: Tensor) -> Tensor:
        ctx.run, ctx.names = run, names
        ctx.save_for_backward(*given)
        return run(**dict(zip(names, given, strict=True)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[2:]
        given = [
            one.detach().requires_grad_(need) for one, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            out = ctx.run(**dict(zip(ctx.names, given, strict=True)))
        wanted = [one for one, need in zip(given, needed, strict=True) if need]
        found = iter(torch.autograd.grad(out, wanted, gradient))
        return None, None, *(next(found) if need else None for need in needed)
