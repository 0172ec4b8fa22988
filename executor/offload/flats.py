"""ZeRO-0 and 1 of a block that is not all on the device: its flat buffers, and who updates them where.

    states     gradients add up and are averaged on the device and go down once a step; the CPU updates, weights come up
    parked     the optimizer's states come up for an update on the device, and go down again
    streamed   weights are on the device for their passes only; gradients go down after every backward pass and add up
               on the host, where the CPU updates (`executor.offload.streaming`)

Without clipping the CPU updates a block while others are in their backward pass, as soon as its last gradient is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from executor.apply.flat_parameters import FlatParameters
from executor.offload.link import Arrival, HostLink
from executor.offload.parking import Parking
from executor.offload.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPart:
    """What the offloaded blocks of a rank share."""

    link: HostLink
    passes: int
    """Backward passes of a block in one step."""
    at_once: bool
    """Whether a block is updated as soon as its gradients are there; else once the norm of all is known."""
    incoming: Staging
    """Gradients on their way to those on the host."""
    outgoing: Staging
    """Updated weights on their way to the device."""


class StatesOnHost(FlatParameters):
    """A block whose fp32 weights and moments are in host memory, where the CPU updates them."""

    def __init__(self, parameters: Sequence[nn.Parameter], *where: Any, host: HostPart, **how: Any) -> None:
        self.host = host
        self._seen: set[int] = set()
        self.passes_done = 0
        """Backward passes of this step that are over."""
        self._down: Arrival | None = None
        self._update: Future[list[Tensor]] | None = None
        self.when_passed: Callable[[], None] = lambda: None
        """Called when all gradients of a backward pass have come."""
        super().__init__(parameters, *where, **how)

    def _share(self) -> tuple[nn.Parameter, Tensor]:
        shard = nn.Parameter(self._host_copy(self.weights[self._mine]))
        shard.grad = self.host.link.buffer(shard.numel(), torch.float32)
        return shard, shard.grad

    def _host_copy(self, values: Tensor) -> Tensor:
        """Values in fp32, in host memory."""
        return self.host.link.buffer(values.numel(), torch.float32).copy_(values)

    def reduce(self) -> None:
        """Average over the replicas, and send this rank's share down."""
        if self._down is None:
            self.end_pass()
            super().reduce()
            assert self.shard.grad is not None
            self._down = self.host.link.down(self.shard.grad, self.share_gradient)

    def norms(self) -> list[Tensor]:
        """The norm of each of the gradients in `reduced`, which are on the host."""
        if self._update is not None:
            return self._update.result()
        self._await_gradients()
        return super().norms()

    def scale(self, factor: float) -> None:
        """Multiply the averaged gradient of this rank's share."""
        assert self.shard.grad is not None
        self.shard.grad.mul_(factor)

    def begin_update(self) -> None:
        """Have the CPU update the share, unless it does already."""
        if self._update is None:
            self._update = self.host.link.on_host(self._on_host)

    def finish_update(self) -> None:
        """Wait for the update, bring the weights up, forget the gradients."""
        assert self._update is not None
        assert self._down is not None
        self._update.result()
        self._down.before_computing()
        self.spread()
        self._clear_gradients()
        self._forget()

    def spread(self) -> None:
        """Bring the share up and gather everyone's."""
        mine = self.weights[self._mine]
        source = self.shard.detach()
        if source.dtype != mine.dtype:
            with self.host.outgoing.take(mine.numel()) as slot:
                slot.arrival = self.host.link.up(mine, slot.buffer.copy_(source))
                slot.arrival.before_computing()
        else:
            self.host.link.up(mine, source).before_computing()
        if self.shards > 1:
            dist.all_gather_into_tensor(self.weights, mine, group=self.group)

    def _clear_gradients(self) -> None:
        self.gradients.zero_()

    def _forget(self) -> None:
        self._down = self._update = None
        self.passes_done = 0
        self._seen.clear()

    def _on_host(self) -> list[Tensor]:
        """Runs in the host's thread: the gradients' norms, then the update."""
        self._await_gradients()
        found = FlatParameters.norms(self)
        self.optimizer.step()
        return found

    def _await_gradients(self) -> None:
        """Wait until the averaged gradient of the share is on the host."""
        assert self._down is not None
        self._down.on_host()

    def end_pass(self) -> None:
        """Take note that a backward pass is over, though not every parameter got a gradient."""
        if self._seen:
            self._pass_done()

    def _accumulate(self, parameter: nn.Parameter) -> None:
        if id(parameter) in self._seen:
            self.end_pass()
        super()._accumulate(parameter)
        self._seen.add(id(parameter))
        if len(self._seen) == len(self.parameters):
            self._pass_done()

    def _take_gradients_down(self) -> None:
        """After every backward pass: here they stay on the device until the last."""

    def _pass_done(self) -> None:
        whole = len(self._seen) == len(self.parameters)
        self._seen.clear()
        self.passes_done += 1
        self._take_gradients_down()
        self.when_passed()
        if whole and self.host.at_once and self.passes_done == self.host.passes:
            self.settle()
            self.reduce()
            self.begin_update()


class ParkedStates(FlatParameters):
    """A block whose optimizer states are in host memory between updates, which the device makes."""

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
