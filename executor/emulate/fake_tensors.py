"""Tensors without values: a rank's step runs through every operator, and only the sizes of what it would hold are kept.

`FakeTensorMode` does this for one process; what here asks tensors for numbers is answered without them: meshes of ranks
are made of real tensors, numbers that are only reported (a loss, a norm) are zero, and routers spread their tokens
evenly, as the cost model has it.

Shape legend: R copies of tokens, D model, E experts, L of them on this rank, e expert-parallel ranks, t ranks that
share an expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from executor.apply.experts import Exchange, ExchangeSizes, routers
from executor.models.experts import Run


@contextmanager
def without_values() -> Iterator[None]:
    """Make tensors with a shape and a type but no memory inside the block."""
    with _meshes_outside(), FakeTensorMode(), _NoNumbers():  # type: ignore[no-untyped-call]
        yield


class _NoNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A number asked of a tensor is zero; a grouped product has a shape in fp32 too (PyTorch: only bf16)."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 0.0 if args[0].is_floating_point() else 0
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float32:
            return _grouped(*args)
        return func(*args, **(kwargs or {}))


def _grouped(left: Tensor, right: Tensor, ends_L: Tensor, *_: Any) -> Tensor:
    """(R, K) rows in groups times (L, K, N) matrices, or (M, R) times (R, N) group by group."""
    if right.ndim == 3:
        return left.new_empty(left.shape[0], right.shape[-1])
    return left.new_empty(ends_L.shape[0], left.shape[0], right.shape[-1])


@contextmanager
def _meshes_outside() -> Iterator[None]:
    """Have methods of meshes run outside every mode, as they compute with the numbers of ranks."""
    own = {
        name: member
        for name, member in vars(DeviceMesh).items()
        if isinstance(member, (FunctionType, staticmethod, property))
    }
    for name, member in own.items():
        setattr(DeviceMesh, name, _outside(member))
    try:
        yield
    finally:
        for name, member in own.items():
            setattr(DeviceMesh, name, member)


def _outside(member: Any) -> Any:
    """The same function, static function or property, run outside every mode."""
    if isinstance(member, staticmethod):
        return staticmethod(_outside(member.__func__))
    if isinstance(member, property):
        return property(_outside(member.fget))

    @wraps(member)
    def call(*arguments: Any, **options: Any) -> Any:
        with _disable_current_modes():
            return member(*arguments, **options)

    return call


def spread_evenly(parts: Iterable[nn.Module]) -> None:
    """Give the experts of every MoE layer the same number of copies, here and on all ranks it exchanges with; in place.

    Counted copies are numbers, which fake tensors do not have.
    """
    for part in parts:
        for routed in routers(part):
            exchange = routed.exchange
            routed.exchange = _EvenExchange(exchange) if isinstance(exchange, Exchange) else _all_here


def _all_here(rows_RD: Tensor, counts_E: Tensor, run: Run) -> Tensor:
    """Run the experts without an exchange: all are on this rank."""
    return run(rows_RD, _evenly(rows_RD.shape[0], counts_E.shape[0]))


class _EvenExchange(Exchange):
    """An exchange whose sizes are known: experts are evenly loaded."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange.across, exchange.inside)

    def _exchange_sizes(self, rows_RD: Tensor, counts_E: Tensor) -> ExchangeSizes:
        counts = _evenly(rows_RD.shape[0], counts_E.shape[0])
        with _disable_current_modes():
            counts_eL = torch.tensor(counts).view(self.ranks, -1)
            mine_L = counts_eL[dist.get_rank(self.across)]
            arriving_teL = mine_L.expand(self.parts, self.ranks, -1).contiguous()
            sent = counts_eL.sum(-1).tolist()
            known = ExchangeSizes.of(sent, arriving_teL, self._place, torch.device("cpu"))
        order = torch.empty(sum(known.held), dtype=torch.long, device=rows_RD.device)
        return replace(known, order=order, back=torch.empty_like(order))


def _evenly(copies: int, experts: int) -> list[int]:
    """Split a total evenly; the first shares get what is left over."""
    return [copies // experts + (expert < copies % experts) for expert in range(experts)]
