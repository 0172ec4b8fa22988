"""Optimizer states on the drive, and their update by the CPU: a chunk is read, updated and written while the next is
read and the one before is written (Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1.2).

An update works on each number alone, and chunks are whole vectors, so the bits are those of one update of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from executor.apply.local import local
from executor.offload.drive import Drive, Stretch

WEIGHTS = "weights"
_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.SGD: (),
}


class StatesOnDrive:
    """The states of some parameters of one optimizer; with `weights` the parameters themselves, too.

    The optimizer holds them as ever, as tensors that are the file's memory: so checkpoints read and write them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        drive: Drive,
        *,
        weights: bool,
    ) -> None:
        self._optimizer, self._parameters, self._drive = optimizer, list(parameters), drive
        self._at_work = nn.Parameter(torch.empty(0))
        self._updates = make([self._at_work])
        self._places = [self._placed(parameter, weights=weights) for parameter in self._parameters]
        self.weights_bytes = sum(places[WEIGHTS].tensor.nbytes for places in self._places if weights)

    def step(self) -> None:
        """Update all that have gradients; raises DriveError where the drive takes or gives no more."""
        if self._drive.pretends:
            self._optimizer.step()
            return
        for key, value in self._optimizer.param_groups[0].items():
            if key != "params":
                self._updates.param_groups[0][key] = value
        self._through(list(self._chunks()))
        for parameter in self._parameters:
            if parameter.grad is not None and "step" in self._optimizer.state[parameter]:
                self._optimizer.state[parameter]["step"] += 1

    def read_weights_again(self) -> None:
        """Take note that the parameters are about to be read for the device."""
        self._drive.link.traffic.drive_read_bytes += self.weights_bytes

    def _placed(self, parameter: nn.Parameter, *, weights: bool) -> dict[str, Stretch]:
        values, drive = local(parameter.detach()), self._drive
        state = self._optimizer.state[parameter]
        places: dict[str, Stretch] = {}
        if weights:
            places[WEIGHTS] = drive.place(values.numel(), values.reshape(-1))
            parameter.data = places[WEIGHTS].tensor.view_as(values)
        moments = _MOMENTS[type(self._optimizer)]
        if moments:
            state["step"] = torch.zeros((), dtype=torch.float32)
        for moment in moments:
            places[moment] = drive.place(values.numel())
            state[moment] = places[moment].tensor.view_as(values)
        return places

    def _chunks(self) -> Iterator[_Chunk]:
        for parameter, places in zip(self._parameters, self._places, strict=True):
            if parameter.grad is None:
                continue
            weights, gradient = (local(one.detach()).view(-1) for one in (parameter, parameter.grad))
            step = self._optimizer.state[parameter].get("step")
            for first in range(0, weights.numel(), self._drive.chunk):
                part = slice(first, min(first + self._drive.chunk, weights.numel()))
                own = None if WEIGHTS in places else weights[part]
                yield _Chunk(places, first, part.stop - first, own, gradient[part], step)

    def _through(self, chunks: list[_Chunk]) -> None:
        """Read, update and write each, three of them under way."""
        slots = self._drive.slots
        reads: list[Future[None]] = []
        for at, chunk in enumerate(chunks):
            for ahead in chunks[len(reads) : at + 2]:
                slot = slots[len(reads) % len(slots)]
                reads.append(slot.begin_reading(ahead.places, ahead.first, ahead.count))
            reads[at].result()
            slot = slots[at % len(slots)]
            self._update(chunk, slot.tensors(chunk.places, chunk.count))
            slot.begin_writing(chunk.places, chunk.first, chunk.count)
        for slot in slots:
            slot.end_writing()

    def _update(self, chunk: _Chunk, states: dict[str, Tensor]) -> None:
        one = self._at_work
        one.grad = None
        weights = chunk.weights if chunk.weights is not None else states.pop(WEIGHTS)
        one.data, one.grad = weights, chunk.gradient
        state = self._updates.state[one]
        state.clear()
        if chunk.step is not None:
            state["step"] = chunk.step.clone()
        state.update(states)
        self._updates.step()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some numbers of one parameter."""

    places: dict[str, Stretch]
    first: int
    count: int
    weights: Tensor | None
    """Those that are updated, where they are in memory."""
    gradient: Tensor
    step: Tensor | None
