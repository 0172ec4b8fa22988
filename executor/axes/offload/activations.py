"""Activations that blocks keep for their backward pass, in host memory until then.

Whole storages go down once a block, whatever views of them autograd saves, and come back before the backward pass of
the block, as the block after it runs its own: those of two blocks are on the device at a time. Parameters stay where
they are. Where a block recomputes, what it keeps is its input.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
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
        self._before: weakref.ref[_SavedTensors] | None = None

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
        """Return a buffer to the pool, which reuses it once a copy out of it has arrived."""
        self._free.setdefault(buffer.numel(), []).append((buffer, arrival))

    def _run(
        self, block: nn.Module, forward: Callable[..., Tensor], *arguments: Any, first: bool, **named: Any
    ) -> Tensor:
        before = None if first or self._before is None else self._before()
        saved = _SavedTensors(self, block, before)
        self._before = weakref.ref(saved)
        with saved_tensors_hooks(saved.pack, lambda restore: restore()):
            output = forward(*arguments, **named)
        if output.requires_grad:
            output.register_hook(lambda _: saved.bring_with_the_one_before())  # type: ignore[no-untyped-call]
        return output


class _SavedTensors:
    """The saved tensors of one block in one pass."""

    def __init__(self, pool: ActivationPool, block: nn.Module, before: _SavedTensors | None) -> None:
        self._pool, self._block, self._before = pool, block, before
        self._stored: dict[
            tuple[int, int], tuple[weakref.ref[torch.UntypedStorage], weakref.ref[_Stored]]
        ] = {}
        """Address and version of a storage → the storage, while it lives (another may then have its address)."""
        self._all: list[weakref.ref[_Stored]] = []

    def pack(self, tensor: Tensor) -> Callable[[], Tensor]:
        """The function that makes a tensor again, on the device, which autograd holds in its place."""
        if isinstance(tensor, AsyncCollectiveTensor):
            tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
        size, stride, offset, dtype = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype
        if is_traceable_wrapper_subclass(tensor):
            kind: Any = type(tensor)
            names, context = tensor.__tensor_flatten__()
            parts = {name: getattr(tensor, name) for name in names}
            packed = {name: self.pack(part) for name, part in parts.items() if isinstance(part, Tensor)}
            others = {name: part for name, part in parts.items() if name not in packed}  # such as a mesh

            def wrap() -> Tensor:
                inner = others | {name: restore() for name, restore in packed.items()}
                made: Tensor = kind.__tensor_unflatten__(inner, context, size, stride)
                return made

            return wrap
        storage = tensor.untyped_storage()
        small = storage.nbytes() < _LEAST_BYTES
        if small or tensor.device.type != self._pool.link.device.type or self._is_parameter(storage):
            same = tensor.detach()
            return lambda: same
        stored = self._stored_once(tensor, storage)
        return lambda: stored.on_device().view(dtype).as_strided(size, stride, offset)

    def bring_with_the_one_before(self) -> None:
        """Copy the block's activations up for its backward pass, and begin with those of the block before it."""
        for saved in (self, self._before):
            for stored in () if saved is None else saved._all:
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
        """Bytes of the storage on the device, valid for all computations that follow."""
        self.begin()
        self._up.before_computing()
        assert self._values is not None
        return self._values

    def __del__(self) -> None:
        self._pool.give_back(self._buffer, self._up)
