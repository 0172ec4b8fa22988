"""Count the bytes of every storage alive on this rank, by part, and keep the set that was largest.

An allocator only knows a total, and on a CPU there is no allocator to ask. This mode sees every operator's outputs,
forgets a storage when it dies or is resized, and so knows at each moment what is held. It slows a step down, so memory
is measured in a step of its own.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from executor.mesh import made_of_others

REST = "rest"
"""Activations, temporaries and buffers: whatever nobody has named."""
HOST = "host"
"""What is in host memory because a layout has it there, on a CPU too, whose memory is both: a tier of its own."""

DRIVE = "drive"
"""What is on the host's drive, of which memory has no more than the system likes to keep of files."""
_ELSEWHERE = (HOST, DRIVE)

_RELEASE_SECONDS = 0.002
"""Time in which a thread of gloo lets go of the tensors of an exchange that has ended. Its caller goes on before that:
on a busy machine a step was seen to hold 4 % more than it needs."""

_Storage = torch.UntypedStorage


@dataclass(slots=True)
class _Held:
    """One storage: what it is for, how large it is now, and how its death is noticed."""

    part: str
    size: int
    alive: weakref.ref[_Storage]


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Use as a context; `peak` then maps part → bytes at the moment when the total was largest. `HOST` and
    `DRIVE` are in no total; `host_peak` is the most that was in host memory.

    Storages made before count from when they are named with `name`. Inside, tensors made of others
    are looked through.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: dict[str, int] = {REST: 0}
        self.peak: dict[str, int] = {REST: 0}
        self.host_peak = 0
        self._total = 0
        self._largest = 0
        self._held: dict[int, _Held] = {}
        self._resize: Callable[[_Storage, int], _Storage] | None = None

    def name(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these tensors as `part` from now on, however they came to be; but `HOST` and `DRIVE`
        stay."""
        self.now.setdefault(part, 0)
        for tensor in tensors:
            storage = _plain(tensor).untyped_storage()
            held = self._see(storage)
            if held.part not in (part, *_ELSEWHERE):
                self._grow(held.part, -held.size)
                held.part = part
                self._grow(part, held.size)

    def __enter__(self) -> StorageTracker:
        original = _Storage.resize_
        tracker = self

        def resize(storage: _Storage, size: int) -> _Storage:
            original(storage, size)
            tracker._see(storage)
            return storage

        self._resize = original
        _Storage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        assert self._resize is not None
        _Storage.resize_ = self._resize  # type: ignore[method-assign, assignment]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if made_of_others(types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self._see(_plain(leaf).untyped_storage())
        return result

    def _see(self, storage: _Storage) -> _Held:
        key, size = storage._cdata, storage.nbytes()
        held = self._held.get(key)
        if held is None or held.alive() is None:
            held = _Held(REST, 0, weakref.ref(storage, lambda dead: self._forget(key, dead)))
            self._held[key] = held
        if held.size != size:
            self._grow(held.part, size - held.size)
            held.size = size
        return held

    def _forget(self, key: int, dead: weakref.ref[_Storage]) -> None:
        held = self._held.get(key)
        if held is not None and held.alive is dead:
            del self._held[key]
        if held is not None:
            self._grow(held.part, -held.size)

    def _grow(self, part: str, size: int) -> None:
        self.now[part] += size
        if part == HOST:
            self.host_peak = max(self.host_peak, self.now[HOST])
        if part in _ELSEWHERE:
            return
        self._total += size
        if self._total > self._largest and _exchanges_in_threads():
            time.sleep(_RELEASE_SECONDS)
        if self._total > self._largest:
            self._largest = self._total
            self.peak = dict(self.now)


def _exchanges_in_threads() -> bool:
    """Whether this rank's collectives run on the CPU, in threads that hold their tensors for a while after the end."""
    return dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO


def _plain(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
