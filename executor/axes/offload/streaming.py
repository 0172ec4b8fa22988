"""Streamed blocks, whose weights are on the device for their passes only; and the window that moves them.

The window carries out a list of moves (`cost_models.axes.offload.residency`) around the passes of a rank's blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cost_models.axes.offload.residency import Move, Turn
from executor.axes.flat_parameters import FlatParameters, part_of
from executor.axes.offload.blocks import HostPart, StatesOnHost, fp32_weights
from executor.axes.offload.link import HERE, Arrival, Slot
from executor.timing import Passes


class StreamedBlock(StatesOnHost):
    """ZeRO-0 and 1 of a block whose weights are on the device for its passes only, its gradients for its backward."""

    def __init__(self, parameters: Sequence[nn.Parameter], *where: Any, host: HostPart, **how: Any) -> None:
        super().__init__(parameters, *where, host=host, **how)
        self._coming: Arrival | None = None
        self._sent = self._down = HERE
        self._norms: list[Tensor] = []
        self._adding: Future[None] | None = None
        self._alone = dist.get_world_size(self.group) == 1 and self.copies is None
        for buffer in (self.weights, self.gradients):
            _free(buffer)

    def _share(self) -> tuple[nn.Parameter, Tensor]:
        link = self.host.link
        self.host_weights = link.buffer(self.weights.numel(), self.weights.dtype)
        self.host_gradients = link.buffer(self.weights.numel(), torch.float32)
        mine = self.host_weights[self._mine]
        if self._masters_apart:
            mine = fp32_weights(link, self.host.drive, len(mine), pinned=False)
        shard = nn.Parameter(mine)
        shard.grad = self.host_gradients[self._mine]
        return shard, shard.grad

    @property
    def _masters_apart(self) -> bool:
        return self.weights.dtype != torch.float32

    def load(self) -> None:
        if self._coming is None:
            _allocate(self.weights)
            self._coming = self.host.link.up(self.weights, self.host_weights)

    def await_weights(self) -> None:
        self.load()
        assert self._coming is not None
        self._coming.before_computing()

    def drop(self) -> None:
        self._coming = None
        _free(self.weights)

    def gradient(self, parameter: Tensor) -> Tensor:
        return part_of(self.host_gradients, self._starts[id(parameter)], self._gradients[id(parameter)])

    def settle(self) -> None:
        """Add up over tensor-parallel ranks what each computed from its part of the sequence; on the device."""
        self.end_pass()
        if self._pending:
            self._await_sums()
            super().settle()

    def reduce(self) -> None:
        """Average over the replicas, unless that is done: where there are others, on the device."""
        if self._reduced:
            return
        self.end_pass()
        self._reduced = True
        if self.passes_done == 0:  # what lies there is of the step before
            self.host_gradients.zero_()
        assert self.shard.grad is not None
        if self._alone:
            if self.mean_over > 1:
                self._compute_on_host(self._average)
            return
        self._await_sums()
        _allocate(self.gradients)
        self.host.link.up(self.gradients, self.host_gradients).before_computing()
        FlatParameters.reduce(self)
        self._down = self.host.link.down(self.shard.grad, self.share_gradient)
        _free(self.gradients)

    def norms(self) -> list[Tensor]:
        if self._update is None:
            self._compute_on_host(self._take_norms)
        else:
            self._update.result()
        return self._norms

    def scale(self, factor: float) -> None:
        assert self.shard.grad is not None
        self._compute_on_host(partial(self.shard.grad.mul_, factor))

    def begin_update(self) -> None:
        if self._update is None:
            self._update = self.host.link.on_host(self._updated)

    def spread(self) -> None:
        """Write the share into the weights on the host, unless an update did, and gather everyone's there, by way of
        the device."""
        if self._update is None:
            self._compute_on_host(self._write_weights)
        if self.shards == 1:
            return
        mine = self.host_weights[self._mine]
        _allocate(self.weights)
        share = self.weights[self._mine]
        self.host.link.up(share, mine).before_computing()
        dist.all_gather_into_tensor(self.weights, share, group=self.group)
        self.host.link.down(self.host_weights, self.weights).on_host()
        _free(self.weights)

    def _compute_on_host(self, what: Callable[[], object]) -> None:
        """Have the host's thread do it, whose operators have all of a rank's threads, and wait."""
        self.host.link.on_host(what).result()

    def _updated(self) -> None:
        """Update the share, in the host's thread, which computes norms, too, as the update does not wait for them."""
        self._await_gradients()
        if self.host.at_once:
            self._norms = super().norms()
        self._updater.step()
        self._write_weights()

    def _take_norms(self) -> None:
        self._await_gradients()
        self._norms = super().norms()

    def _average(self) -> None:
        """Make the sums of the shares' gradients means."""
        self._await_sums()
        assert self.shard.grad is not None
        self.shard.grad.div_(self.mean_over)

    def _write_weights(self) -> None:
        """Write the updated share into the weights on the host, where these are in another precision."""
        mine = self.host_weights[self._mine]
        if self.shard.dtype != mine.dtype:
            mine.copy_(self._updated_weights())

    def _await_gradients(self) -> None:
        """Wait until the averaged gradient of the share is on the host."""
        self._await_sums()
        self._down.on_host()

    def _await_sums(self) -> None:
        """Wait until the gradients of all passes are added up on the host."""
        self._sent.on_host()
        if self._adding is not None:
            self._adding.result()

    def _accumulate(self, parameter: nn.Parameter) -> None:
        if not self._seen or id(parameter) in self._seen:
            self.end_pass()
            _allocate(self.gradients)
            self.gradients.zero_()
        super()._accumulate(parameter)

    def down(self) -> None:
        """Add the gradients of a pass to those on the host; the first pass of a step overwrites them."""
        if not self.gradients.untyped_storage().nbytes():
            return
        link = self.host.link
        if self.passes_done == 1:
            self._sent = link.down(self.host_gradients, self.gradients)
        else:
            slot = self.host.incoming.take(self.gradients.numel())
            slot.arrival = link.down(slot.buffer, self.gradients)
            slot.reader = self._adding = link.on_host(partial(self._add, slot))
        _free(self.gradients)

    def _add(self, slot: Slot) -> None:
        self._sent.on_host()
        slot.arrival.on_host()
        self.host_gradients.add_(slot.buffer)

    def _clear_gradients(self) -> None:
        """Those of the next step's first pass overwrite them."""
        self._adding = None


def _allocate(buffer: Tensor) -> None:
    """Give a freed buffer its memory back, with no values in it."""
    buffer.untyped_storage().resize_(buffer.nbytes)


def _free(buffer: Tensor) -> None:
    buffer.untyped_storage().resize_(0)


class Window:
    """Carries out the list of moves of a step as the blocks of a rank run."""

    def __init__(
        self,
        turns: Sequence[Turn],
        modules: Mapping[int, nn.Module],
        flats: Mapping[int, Sequence[StatesOnHost]],
        passes: Passes,
    ) -> None:
        self._turns, self._flats, self._passes = turns, flats, passes
        self._at = 0
        self._aside: int | None = None
        """Block whose weights were loaded for a pass outside any step."""
        for block, module in modules.items():
            module.register_forward_pre_hook(partial(self._before, "F", block))
            module.register_forward_hook(partial(self._after_forward, block))
        for block, own in flats.items():
            for flat in own:
                flat.when_passed = partial(self._after_backward, block)

    def begin(self) -> None:
        """A step begins."""
        self._at = 0
        self._backward = dict.fromkeys(self._flats, 0)
        self._open: Turn | None = None

    def end(self) -> None:
        """All passes of the step are over."""
        self._close()
        assert self._at == len(self._turns)

    def _after_forward(self, block: int, module: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(partial(self._before, "B", block))  # type: ignore[no-untyped-call]
        self._close()

    def _after_backward(self, block: int) -> None:
        runs = self._open is not None and self._open.use[:2] == ("B", block)
        if runs and all(flat.passes_done == self._backward[block] for flat in self._flats[block]):
            self._close()

    def _before(self, kind: str, block: int, *_: Any) -> None:
        self._close()
        if self._aside is not None:
            for flat in self._flats.get(self._aside, ()):
                flat.drop()
        self._aside = None if self._passes.running else block
        if self._passes.running:
            turn = self._turns[self._at]
            assert turn.use[:2] == (kind, block), f"{kind}{block} runs, and {turn.use} was to"
            self._at += 1
            self._open = turn
            if kind == "B" and block in self._backward:
                self._backward[block] += 1
            self._move(turn.before)
        for flat in self._flats.get(block, ()):
            flat.await_weights()

    def _close(self) -> None:
        """Make the moves after the current turn; a backward pass ends at the latest when another turn begins."""
        turn, self._open = self._open, None
        if turn is None:
            return
        for flat in self._flats.get(turn.use.block, ()):
            flat.end_pass()
        self._move(turn.after)

    def _move(self, moves: Sequence[Move]) -> None:
        for move in moves:
            for flat in self._flats[move.block]:
                getattr(flat, move.what)()
