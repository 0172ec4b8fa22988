"""A block with states, weights or gradients off the device: its buffers or shards, and where it is updated.

ZeRO-0 and 1, on flat buffers:
    states     gradients add up and are averaged on the device and go down once a step; the CPU updates, weights come up
    parked     the optimizer's states come up for an update on the device, and go down again
    streamed   weights are on the device for their passes only; gradients go down after every backward pass and add up
               on the host, where the CPU updates (`executor.axes.offload.streaming`)

ZeRO-2 and 3, on the shards of `fully_shard`:
    states     shards and averaged gradients are on the device; fp32 copies of them on the host, which the CPU updates
    streamed   `fully_shard` keeps shards and gradients on the host and copies shards up before it gathers them

The order of moves is data (`cost_models.axes.offload.residency`). Without clipping the CPU updates a block as soon as
its last gradient is there, while others are in their backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cost_models.axes.layout import Residency
from executor.axes.axis import Make
from executor.axes.flat_parameters import FlatParameters
from executor.axes.offload.drive import Drive, HostOptimizer
from executor.axes.offload.link import Arrival, HostLink, Slot, Staging
from executor.mesh import held, local


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """Objects that the offloaded blocks of a rank share."""

    link: HostLink
    at_once: bool
    """Whether a block is updated as soon as its gradients are there; else once the norm of all is known."""
    incoming: Staging
    """Gradients on their way to those on the host."""
    outgoing: Staging
    """Updated weights on their way to the device."""
    drive: Drive | None
    """Where the states of the optimizer lie; None: in host memory."""


class StatesOnHost(FlatParameters):
    """A block whose fp32 weights and moments are in host memory, where the CPU updates them."""

    resident = False

    def __init__(self, parameters: Sequence[nn.Parameter], *where: Any, host: HostPart, **how: Any) -> None:
        self.host = host
        self._seen: set[int] = set()
        self.passes_done = 0
        """Backward passes of this step that are over."""
        self._reduced = False
        self._update: Future[None] | None = None
        self.when_passed: Callable[[], None] = lambda: None
        """Called when all gradients of a backward pass have come."""
        super().__init__(parameters, *where, **how)
        self._updater = HostOptimizer(
            self.optimizer, [self.shard], how["make"], host.drive, weights=self._masters_apart
        )

    @property
    def _masters_apart(self) -> bool:
        """Whether the fp32 master weights are a copy for the update alone."""
        return True

    def _share(self) -> tuple[nn.Parameter, Tensor]:
        mine = fp32_weights(self.host.link, self.host.drive, len(self.share_gradient), pinned=True)
        return nn.Parameter(mine), self.share_gradient

    def reduce(self) -> None:
        if not self._reduced:
            self.end_pass()
            super().reduce()
            self._reduced = True

    def load(self) -> None:
        """Begin to copy the weights to the device: here they always are."""

    def await_weights(self) -> None:
        """Have all computations that follow wait for the weights."""

    def drop(self) -> None:
        """Free the weights on the device: here they stay."""

    def down(self) -> None:
        """After a backward pass: here they stay until the last."""

    def update(self) -> None:
        """Begin the update: all gradients of the step are there."""
        self.settle()
        self.reduce()
        self.begin_update()

    def begin_update(self) -> None:
        """Send the gradient down and have the CPU update the share, unless it does already."""
        if self._update is None:
            slot = self.host.incoming.take(self.shard.numel())
            slot.arrival = self.host.link.down(slot.buffer, self.share_gradient)
            slot.reader = self._update = self.host.link.on_host(partial(self._on_host, slot))

    def finish_update(self) -> None:
        """Wait for the update, bring the weights up, forget the gradients."""
        assert self._update is not None
        self._update.result()
        self.spread()
        self._clear_gradients()
        self._reduced, self._update = False, None
        self.passes_done = 0
        self._seen.clear()

    def spread(self) -> None:
        mine = self.weights[self._mine]
        source = self._updated_weights()
        if source.dtype != mine.dtype:
            slot = self.host.outgoing.take(mine.numel())
            self.host.link.on_host(partial(slot.buffer.copy_, source)).result()  # it has more threads
            slot.arrival = self.host.link.up(mine, slot.buffer)
            slot.arrival.before_computing()
        else:
            self.host.link.up(mine, source).before_computing()
        if self.shards > 1:
            dist.all_gather_into_tensor(self.weights, mine, group=self.group)

    def _updated_weights(self) -> Tensor:
        """The updated share, which is about to be copied."""
        self._updater.read_weights_again()
        return self.shard.detach()

    def host_tensors(self) -> Iterator[Tensor]:
        """Tensors in host memory beside the link's buffers."""
        return self._updater.host_tensors()

    def _clear_gradients(self) -> None:
        self.gradients.zero_()

    def _on_host(self, slot: Slot) -> None:
        """Runs in the host's thread."""
        slot.arrival.on_host()
        self.shard.grad = slot.buffer
        self._updater.step()
        self.shard.grad = None

    def end_pass(self) -> None:
        """End a backward pass in which some parameters got no gradient."""
        if self._seen:
            self._pass_done()

    def _accumulate(self, parameter: nn.Parameter) -> None:
        if id(parameter) in self._seen:
            self.end_pass()
        super()._accumulate(parameter)
        self._seen.add(id(parameter))
        if len(self._seen) == len(self.parameters):
            self._pass_done()

    def _pass_done(self) -> None:
        self._seen.clear()
        self.passes_done += 1
        self.when_passed()


def fp32_weights(link: HostLink, drive: Drive | None, elements: int, *, pinned: bool) -> Tensor:
    """Room for fp32 weights in host memory; no pages of it are touched where they are to lie on the drive."""
    if drive is not None:
        return torch.empty(elements, dtype=torch.float32, device=link.memory)
    return link.buffer(elements, torch.float32, pinned=pinned)


class Parking:
    """The states of some parameters of one optimizer, in host memory until the device updates; with `masters` the
    parameters themselves, too."""

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
        self._hosts: dict[tuple[int, str], Tensor] = {}
        self._coming: list[Arrival] | None = None
        self.following: Parking | None = None
        """Whose states are wanted next: they come while these are updated."""
        self.park()

    def bring(self) -> None:
        """Copy the states to the device, and begin with those of the next block."""
        for arrival in self._begin():
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
        for key, tensor in self._tensors():
            if key not in self._hosts:
                self._hosts[key] = self._link.buffer(tensor.numel(), tensor.dtype).view_as(tensor)
            self._link.down(self._hosts[key], tensor.data)
            tensor.data = self._hosts[key]
        self._coming = None

    def _begin(self) -> list[Arrival]:
        """Begin to copy the states to the device, unless they come already."""
        if self._coming is None:
            self._coming = []
            for key, tensor in self._tensors():
                if key in self._hosts:
                    tensor.data = torch.empty_like(self._hosts[key], device=self._link.device)
                    self._coming.append(self._link.up(tensor.data, self._hosts[key]))
        return self._coming

    def _tensors(self) -> Iterator[tuple[tuple[int, str], Tensor]]:
        """(key, tensor) of each parked tensor."""
        for index, parameter in enumerate(self._parameters):
            if self._masters:
                yield (index, ""), parameter
            for kind, values in self._optimizer.state.get(parameter, {}).items():
                if isinstance(values, Tensor) and values.dim() > 0:
                    yield (index, kind), held(values)


class ParkedStates(FlatParameters):
    """A block that the device updates, whose optimizer states are in host memory between updates."""

    resident = False

    def __init__(self, parameters: Sequence[nn.Parameter], *where: Any, link: HostLink, **how: Any) -> None:
        super().__init__(parameters, *where, **how)
        apart = self.shard.dtype != self.weights.dtype
        self.parking = Parking(self.optimizer, [self.shard], link, masters=apart)

    def finish_update(self) -> None:
        """Bring the states up, update, gather everyone's, park them again."""
        self.parking.bring()
        self.optimizer.step()
        FlatParameters.spread(self)
        self.gradients.zero_()
        self.parking.park()

    def spread(self) -> None:
        """Write the share into the weights, wherever it is, and gather everyone's."""
        self.parking.bring()
        super().spread()
        self.parking.park()


class ShardedBlock:
    """The update of one block's shards of one kind, all plain tensors or all DTensors of one mesh."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        lives: Residency,
        make: Make,
        link: HostLink,
        drive: Drive | None = None,
    ) -> None:
        self.parameters, self.lives, self.link, self._drive = list(parameters), lives, link, drive
        self.updated = self.parameters
        """Parameters that the optimizer updates."""
        if lives == "states":
            self.updated = [self._host_copy(parameter) for parameter in self.parameters]
        self.optimizer = make(self.updated)
        self.parking: Parking | None = None
        if lives == "parked":
            self.parking = Parking(self.optimizer, self.updated, link, masters=False)
        else:
            self._updater = HostOptimizer(
                self.optimizer, self.updated, make, drive, weights=lives == "states"
            )
        self._update: Future[None] | None = None

    def begin_update(self) -> None:
        """Have the CPU update what is on the host, beside other updates."""
        if self.lives == "parked":
            return
        arrivals = []
        if self.lives == "states":
            for parameter, host in zip(self.parameters, self.updated, strict=True):
                if parameter.grad is not None:
                    assert host.grad is not None
                    arrivals.append(self.link.down(host.grad, local(parameter.grad)))

        def update() -> None:
            for arrival in arrivals:
                arrival.on_host()
            self._updater.step()

        self._update = self.link.on_host(update)

    def finish_update(self) -> None:
        """Have the shards as they are after the update, and forget the gradients."""
        if self.parking is not None:
            self.parking.bring()
            self.optimizer.step()
            self.parking.park()
        else:
            assert self._update is not None
            self._update.result()
            self._update = None
            self.spread()
        for parameter in self.parameters:
            parameter.grad = None

    def spread(self) -> None:
        """Bring the shards to the device, where they are on the host and the device has copies."""
        if self.lives == "states":
            self._updater.read_weights_again()
            for parameter, host in zip(self.parameters, self.updated, strict=True):
                self.link.up(local(parameter.detach()), host.detach()).before_computing()

    def _host_copy(self, parameter: nn.Parameter) -> nn.Parameter:
        values = local(parameter.detach())
        host = nn.Parameter(fp32_weights(self.link, self._drive, values.numel(), pinned=True).view_as(values))
        host.grad = self.link.buffer(values.numel(), torch.float32).view_as(values)
        return host

    def host_tensors(self) -> Iterator[Tensor]:
        """Tensors in host memory beside the link's buffers."""
        if self.lives != "parked":
            yield from self._updater.host_tensors()
        if self.lives == "streamed":
            yield from self.parameters
            yield from (one.grad for one in self.parameters if one.grad is not None)
