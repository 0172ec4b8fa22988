"""Buffers in host memory that copies pass through: two of them, so that one is filled while the other is used."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from executor.offload.link import HERE, Arrival, HostLink

_SLOTS = 2


@dataclass(slots=True)
class Slot:
    """One buffer, and who may still be using it."""

    buffer: Tensor
    arrival: Arrival = HERE
    reader: Future[None] | None = None


class Staging:
    """Two buffers of one type, made where they are first needed."""

    def __init__(self, link: HostLink, dtype: torch.dtype) -> None:
        self._link, self._dtype = link, dtype
        self._slots: list[Slot] = []
        self._turn = 0

    @contextmanager
    def take(self, elements: int) -> Iterator[Slot]:
        """A slot whose buffer, of so many elements, nobody uses; say in it what must end before its next use."""
        whole = self._slot(elements)
        whole.arrival.on_host()
        if whole.reader is not None:
            whole.reader.result()
        part = Slot(whole.buffer[:elements])
        yield part
        whole.arrival, whole.reader = part.arrival, part.reader

    def _slot(self, elements: int) -> Slot:
        """The next slot in turn, made where there is none, or a smaller one."""
        self._turn = (self._turn + 1) % _SLOTS
        if len(self._slots) < _SLOTS:
            self._slots.append(Slot(self._link.buffer(elements, self._dtype)))
            return self._slots[-1]
        if self._slots[self._turn].buffer.numel() < elements:
            self._link.give_back(self._slots[self._turn].buffer)
            self._slots[self._turn].buffer = self._link.buffer(elements, self._dtype)
        return self._slots[self._turn]
