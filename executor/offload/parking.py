"""Optimizer states that lie in host memory and come to the device for their update."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from executor.apply.local import local
from executor.offload.link import Arrival, HostLink


@dataclass(slots=True)
class _Place:
    """One tensor: its buffer in host memory, what puts a tensor in its place, and its copy on the device."""

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
        """Have the states on the device, and those that follow on their way."""
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
        """Take the states to host memory."""
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
        """(key, values here, what puts others in their place) of all that is parked."""
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
