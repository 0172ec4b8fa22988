"""Batches one step ahead: a thread reads the next one and sends it to the device while a step runs.

Ranks that work on the same sequences, those of tensor and context parallelism, have them read by one of them, which
sends them to the others: MegaScale's readers, one for a host (Jiang et al. 2024, section 3.4), and Megatron's broadcast
(megatron/core/tensor_parallel/data.py). Stages between the ends of a pipeline read nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from executor.data.batches import Batches
from executor.pinned import carried_to

if TYPE_CHECKING:
    from executor.axes.axis import Rank

Batch = TypeVar("Batch")


class Ahead(Generic[Batch]):
    """What `draw` makes of each number up to `last`, made one number ahead in a thread of its own.

    On a GPU `draw` runs on a stream of its own, which begins when the work before the last step is done, so that memory
    of a batch is not written to while a step may still read it.
    """

    def __init__(self, draw: Callable[[int], Batch], device: torch.device, last: int) -> None:
        self._draw, self._device, self._end = draw, device, last
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="data")
        cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if cuda else None  # type: ignore[no-untyped-call]
        self._next: tuple[int, Future[Batch]] | None = None
        self._last: Batch | None = None

    def take(self, number: int) -> Batch:
        """The batch of this number, which the current stream may use; waits until it is there. Draws the next."""
        coming = self._next if self._next is not None and self._next[0] == number else self._begin(number)
        batch = coming[1].result()
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._next = self._begin(number + 1) if number < self._end else None
        self._last = batch
        return batch

    def _begin(self, number: int) -> tuple[int, Future[Batch]]:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return number, self._pool.submit(self._on_stream, number)

    def _on_stream(self, number: int) -> Batch:
        with torch.cuda.stream(self._stream):  # nothing without a stream
            return self._draw(number)


class SharedBatches:
    """The sequences of this rank's replica: read once by those ranks that work on the same, one step ahead."""

    def __init__(self, batches: Batches, rank: Rank, num_stages: int, last: int) -> None:
        self._rank = rank
        self._needed = batches.tower is not None or not {0, num_stages - 1}.isdisjoint(rank.stages)
        """Whether this rank has the first stage, which takes tokens, or the last, which takes their targets; behind a
        vision tower another stage may take tokens."""
        self._reads = rank.place.tp == rank.place.cp == 0
        lengths = batches.training.sequences
        self._shapes = [(rank.share.sequences, length) for length in (*lengths, lengths[-1])]
        self._batches, self._ahead = batches, Ahead(self._read, rank.device, last)
        self._images = Ahead(self._see, rank.device, last) if batches.tower is not None else None
        """Each rank that has the first stage draws its own."""

    def take(self, step: int) -> tuple[Tensor, ...]:
        """A replica's images behind a vision tower, else nothing, then what `_tokens` says."""
        tokens = self._tokens(step)
        if self._images is None:
            return tokens
        first = 0 in self._rank.stages
        return (self._images.take(step) if first else torch.empty(len(tokens[0]), 0), *tokens)

    def _tokens(self, step: int) -> tuple[Tensor, ...]:
        """(B, S) tokens, of each sequence of a sample, and targets of the replica on the device; steps count from 0.

        Every rank of the job calls it. Stages that need neither get zeros.
        """
        rank = self._rank
        if not self._needed:
            return tuple(torch.zeros(shape, dtype=torch.int64, device=rank.device) for shape in self._shapes)
        sizes = [prod(shape) for shape in self._shapes]
        if self._reads:
            every = self._ahead.take(step)
        else:
            every = torch.empty(sum(sizes), dtype=torch.int64, device=rank.device)
        if rank.context_group is not None and rank.place.tp == 0:
            dist.broadcast(every, group=rank.context_group, group_src=0)
        if rank.mesh["tp"].size() > 1:
            dist.broadcast(every, group=rank.mesh["tp"].get_group(), group_src=0)
        return tuple(
            one.view(shape) for one, shape in zip(torch.split(every, sizes), self._shapes, strict=True)
        )

    def _read(self, step: int) -> Tensor:
        """All tensors of the batch one after the other."""
        read = self._batches.tokens(step, self._rank.share.first, self._rank.share.last)
        return carried_to(self._rank.device, torch.cat([one.flatten() for one in read]))

    def _see(self, step: int) -> Tensor:
        share = self._rank.share
        return carried_to(self._rank.device, self._batches.images(step, share.first, share.last))
