"""ZeRO-2 and 3 of a block that is not all on the device: this rank's shards, as `fully_shard` has them.

states     shards and averaged gradients are on the device; fp32 copies of them on the host, which the CPU updates
parked     the optimizer's states come up for an update on the device, and go down again
streamed   `fully_shard` keeps shards and gradients on the host and copies shards up before it gathers them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor, nn

from cost_models.axes.offload.residency import PARKED, STATES, Residency
from executor.apply.local import local
from executor.offload.drive import Drive
from executor.offload.drive_states import StatesOnDrive
from executor.offload.link import HostLink
from executor.offload.parking import Parking

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


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
        self.parameters, self.lives, self.link = list(parameters), lives, link
        self._drive = None if lives == PARKED else drive
        self.updated = self.parameters
        """What the optimizer updates."""
        if lives == STATES:
            self.updated = [self._host_copy(parameter) for parameter in self.parameters]
        self.optimizer = make(self.updated)
        self.parking = Parking(self.optimizer, self.updated, link, masters=False) if lives == PARKED else None
        self._on_drive: StatesOnDrive | None = None
        if self._drive is not None:
            self._on_drive = StatesOnDrive(
                self.optimizer, self.updated, make, self._drive, weights=lives == STATES
            )
        self._update: Future[None] | None = None

    def begin_update(self) -> None:
        """Have the CPU update what is on the host, beside other updates."""
        if self.lives == PARKED:
            return
        arrivals = []
        if self.lives == STATES:
            for parameter, host in zip(self.parameters, self.updated, strict=True):
                if parameter.grad is not None:
                    assert host.grad is not None
                    arrivals.append(self.link.down(host.grad, local(parameter.grad)))

        def update() -> None:
            for arrival in arrivals:
                arrival.on_host()
            (self.optimizer if self._on_drive is None else self._on_drive).step()

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
        if self.lives == STATES:
            if self._on_drive is not None:
                self._on_drive.read_weights_again()
            for parameter, host in zip(self.parameters, self.updated, strict=True):
                self.link.up(local(parameter.detach()), host.detach()).before_computing()

    def _host_copy(self, parameter: nn.Parameter) -> nn.Parameter:
        values = local(parameter.detach())
        if self._drive is not None:  # for the moment until they are there
            host = nn.Parameter(values.to(self.link.memory, torch.float32, copy=True))
        else:
            host = nn.Parameter(self.link.buffer(values.numel(), torch.float32).view_as(values).copy_(values))
        host.grad = self.link.buffer(values.numel(), torch.float32).view_as(values)
        return host

    def host_tensors(self) -> Iterator[Tensor]:
        """What lies in host memory beside the link's buffers."""
        if self.lives == PARKED:
            return
        for parameter in self.updated:
            if self._on_drive is None:
                yield from (
                    one for one in self.optimizer.state[parameter].values() if isinstance(one, Tensor)
                )
            if self._on_drive is None or self.lives != STATES:
                yield parameter
            if self.lives != STATES and parameter.grad is not None:
                yield parameter.grad
