"""Optimizer states off the device: parked in host memory until the device updates, or on the drive for the CPU.

On the drive a chunk is read, updated and written while the next is read and the one before is written (Rajbhandari et
al. 2021, ZeRO-Infinity, section 5.1.2). An update works on each number alone, and chunks are whole vectors, so the bits
are those of one update of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from executor.axes.offload.drive import Drive, FileRange
from executor.axes.offload.link import Arrival, HostLink
from executor.mesh import local


@dataclass(slots=True)
class _Place:
    """One parked tensor: its host buffer, its setter, and its copy on the device."""

    host: Tensor
    put: Callable[[Tensor], None]
    device: Tensor | None = None


class Parking:
    """The states of some parameters of one optimizer; with `masters` the parameters themselves, too."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        link: HostLink,
        *,
        masters: bool,
    ) -> None:
        self._optimizer, self._parameters, self._link = optimizer, list(parameters), link
        self._masters = masters
        self._gradients = [parameter.grad for parameter in self._parameters]
        self._places: dict[tuple[int, str], _Place] = {}
        self._coming: list[Arrival] | None = None
        self.following: Parking | None = None
        """Whose states are wanted next: they come while these are updated."""
        self.park()

    def bring(self) -> None:
        """Copy the states to the device, and begin with those of the next block."""
        self._begin()
        assert self._coming is not None
        for arrival in self._coming:
            arrival.before_computing()
        if self._masters:
            for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
                parameter.grad = gradient
        if self.following is not None:
            self.following._begin()

    def park(self) -> None:
        """Copy the states to host memory and free the device."""
        if self._masters:
            for parameter in self._parameters:
                parameter.grad = None
        for key, values, put in self._tensors():
            if key not in self._places:
                host = self._link.buffer(values.numel(), values.dtype).view_as(values)
                self._places[key] = _Place(host, put)
                self._places[key].device = values
        for place in self._places.values():
            if place.device is not None:
                self._link.down(place.host, place.device)
                place.put(place.host)
                place.device = None
        self._coming = None

    def _begin(self) -> None:
        if self._coming is not None:
            return
        self._coming = []
        for place in self._places.values():
            place.device = torch.empty_like(place.host, device=self._link.device)
            self._coming.append(self._link.up(place.device, place.host))
            place.put(place.device)

    def _tensors(self) -> Iterator[tuple[tuple[int, str], Tensor, Callable[[Tensor], None]]]:
        """(key, values, setter) of each parked tensor."""
        for index, parameter in enumerate(self._parameters):
            if self._masters:
                yield (index, ""), parameter.data, partial(setattr, parameter, "data")
            state = self._optimizer.state.get(parameter, {})
            for kind, values in state.items():
                if isinstance(values, Tensor) and values.dim() > 0:
                    yield (index, kind), local(values), partial(_put, state, kind)


def _put(state: dict[str, Tensor], kind: str, values: Tensor) -> None:
    held = state[kind]
    if isinstance(held, DTensor):
        held._local_tensor = values
    else:
        state[kind] = values


_WEIGHTS = "weights"
_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.SGD: (),
}


class StatesOnDrive:
    """The states of some parameters of one optimizer; with `weights` the parameters themselves, too.

    The optimizer holds them as tensors mapped to the file, so checkpoints read and write them.
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
        self.weights_bytes = sum(places[_WEIGHTS].tensor.nbytes for places in self._places if weights)

    def step(self) -> None:
        """Update all parameters with gradients; raises DriveError where the drive fails."""
        if self._drive.pretends:
            self._optimizer.step()
            return
        for key, value in self._optimizer.param_groups[0].items():
            if key != "params":
                self._updates.param_groups[0][key] = value
        for hook in self._optimizer._optimizer_step_pre_hooks.values():
            hook(self._optimizer, (), {})
        self._through(list(self._chunks()))
        for parameter in self._parameters:
            if parameter.grad is not None and "step" in self._optimizer.state[parameter]:
                self._optimizer.state[parameter]["step"] += 1

    def read_weights_again(self) -> None:
        """Count the read of the parameters for the device."""
        self._drive.link.traffic.drive_read_bytes += self.weights_bytes

    def _placed(self, parameter: nn.Parameter, *, weights: bool) -> dict[str, FileRange]:
        values, drive = local(parameter.detach()), self._drive
        state = self._optimizer.state[parameter]
        places: dict[str, FileRange] = {}
        if weights:
            places[_WEIGHTS] = drive.place(values.numel())
            parameter.data = places[_WEIGHTS].tensor.view_as(values)
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
                own = None if _WEIGHTS in places else weights[part]
                yield _Chunk(places, first, part.stop - first, own, gradient[part], step)

    def _through(self, chunks: list[_Chunk]) -> None:
        """Read, update and write each chunk, three in flight."""
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
        weights = chunk.weights if chunk.weights is not None else states.pop(_WEIGHTS)
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

    places: dict[str, FileRange]
    first: int
    count: int
    weights: Tensor | None
    """Those that are updated, where they are in memory."""
    gradient: Tensor
    step: Tensor | None
