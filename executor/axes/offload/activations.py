"""What blocks keep for their backward pass, in host memory until then.

Whole storages go down once a block, whatever views of them autograd saves, and come back before the backward pass of
the block, as the block after it runs its own: those of two blocks are on the device at a time. Parameters stay where
they are. Where a block recomputes, what it keeps is its input.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from executor.axes.offload.link import HERE, Arrival, HostLink
from executor.mesh import local

_LEAST_BYTES = 4096
"""Smaller storages stay: they are not worth a copy."""


class ActivationPool:
    """A pool of host buffers for the activations of a rank's blocks."""

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self._free: dict[int, list[tuple[Tensor, Arrival]]] = {}
        self._before: weakref.ref[_Kept] | None = None

    def offload(self, blocks: Iterable[nn.Module]) -> None:
        """Have blocks, in the order in which they run, keep their activations here; in place."""
        for place, block in enumerate(blocks):
            run = partial(self._run, block, block.forward, first=place == 0)
            block.forward = run

    def take(self, size: int) -> Tensor:
        """A free buffer of `size` bytes, made where there is none."""
        free = self._free.get(size)
        if not free:
            return self.link.buffer(size, torch.uint8)
        buffer, arrival = free.pop()
        arrival.on_host()
        return buffer

    def give_back(self, buffer: Tensor, arrival: Arrival) -> None:
        """Return a buffer to the pool; it is free once a copy out of it has arrived."""
        self._free.setdefault(buffer.numel(), []).append((buffer, arrival))

    def _run(
        self, block: nn.Module, forward: Callable[..., Tensor], *arguments: Any, first: bool, **named: Any
    ) -> Tensor:
        before = None if first or self._before is None else self._before()
        kept = _Kept(self, block, before)
        self._before = weakref.ref(kept)
        with saved_tensors_hooks(kept.pack, kept.unpack):
            output = forward(*arguments, **named)
        if output.requires_grad:
            output.register_hook(lambda _: kept.bring_with_the_one_before())  # type: ignore[no-untyped-call]
        return output


class _Kept:
    """The saved tensors of one block in one pass."""

    def __init__(self, pool: ActivationPool, block: nn.Module, before: _Kept | None) -> None:
        self._pool, self._block, self._before = pool, block, before
        self._stored: dict[
            tuple[int, int], tuple[weakref.ref[torch.UntypedStorage], weakref.ref[_Stored]]
        ] = {}
        """Where a storage is known by, while it lives: another may then have its address."""
        self._all: list[weakref.ref[_Stored]] = []

    def pack(self, tensor: Tensor) -> object:
        """The object that autograd holds in place of a tensor."""
        if isinstance(tensor, AsyncCollectiveTensor):
            tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
        if is_traceable_wrapper_subclass(tensor):
            inner, context = tensor.__tensor_flatten__()
            packed = {name: self._packed_part(getattr(tensor, name)) for name in inner}
            return _Wrapped(type(tensor), packed, context, tensor.size(), tensor.stride())
        storage = tensor.untyped_storage()
        small = storage.nbytes() < _LEAST_BYTES
        if small or tensor.device.type != self._pool.link.device.type or self._is_parameter(storage):
            return tensor.detach()
        stored = self._stored_once(tensor, storage)
        return _View(stored, tensor.dtype, int(tensor.storage_offset()), tensor.size(), tensor.stride())

    def unpack(self, packed: object) -> Tensor:
        """The tensor again, on the device."""
        if isinstance(packed, Tensor):
            return packed
        if isinstance(packed, _Wrapped):
            inner = {name: self._unpacked_part(one) for name, one in packed.inner.items()}
            made: Tensor = packed.kind.__tensor_unflatten__(inner, packed.context, packed.size, packed.stride)
            return made
        assert isinstance(packed, _View)
        device = packed.stored.on_device()
        return device.view(packed.dtype).as_strided(packed.size, packed.stride, packed.offset)

    def _packed_part(self, part: object) -> object:
        """Pack an inner tensor of a wrapper subclass; metadata stays as it is."""
        return self.pack(part) if isinstance(part, Tensor) else part

    def _unpacked_part(self, part: object) -> object:
        return self.unpack(part) if isinstance(part, (Tensor, _Wrapped, _View)) else part

    def bring_with_the_one_before(self) -> None:
        """Copy the block's activations up for its backward pass, and begin with those of the block before it."""
        for kept in (self, self._before):
            if kept is not None:
                kept._bring()

    def _bring(self) -> None:
        for stored in self._all:
            if (one := stored()) is not None:
                one.begin()

    def _is_parameter(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage belongs to a parameter of the block; sharded parameters change storage."""
        return any(local(one).untyped_storage()._cdata == storage._cdata for one in self._block.parameters())

    def _stored_once(self, tensor: Tensor, storage: torch.UntypedStorage) -> _Stored:
        key = (storage._cdata, tensor._version)
        if key in self._stored:
            alive, found = self._stored[key]
            stored = found()
            if alive() is storage and stored is not None:
                return stored
        stored = _Stored(self._pool, tensor.detach())
        self._stored[key] = (weakref.ref(storage), weakref.ref(stored))
        self._all.append(weakref.ref(stored))
        return stored


class _Stored:
    """One storage in host memory; its buffer is free again when autograd holds no view of it any more."""

    def __init__(self, pool: ActivationPool, tensor: Tensor) -> None:
        self._pool, self._device = pool, tensor.device
        # by views alone: fake tensors never let go of a storage that was an argument of an operator
        elements = tensor.untyped_storage().nbytes() // tensor.itemsize
        whole = tensor.as_strided((elements,), (1,), 0).view(torch.uint8)
        self._buffer = pool.take(whole.numel())
        self._down = pool.link.down(self._buffer, whole)
        self._up = HERE
        self._values: Tensor | None = None

    def begin(self) -> None:
        """Begin to bring it to the device."""
        if self._values is None:
            self._values = torch.empty_like(self._buffer, device=self._device)
            self._up = self._pool.link.up(self._values, self._buffer, after=self._down)

    def on_device(self) -> Tensor:
        """Its bytes on the device, valid for all computations that follow."""
        self.begin()
        self._up.before_computing()
        assert self._values is not None
        return self._values

    def __del__(self) -> None:
        self._pool.give_back(self._buffer, self._up)


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor as a view of a stored storage."""

    stored: _Stored
    dtype: torch.dtype
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Wrapped:
    """A wrapper subclass and its inner tensors."""

    kind: Any
    inner: dict[str, object]
    context: Any
    size: torch.Size
    stride: tuple[int, ...]
