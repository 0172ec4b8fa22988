"""Collectives of embeddings among some ranks, which count the bytes that this one sends to others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


class Sent:
    """Bytes that this rank sent to others, by stage of the step."""

    def __init__(self) -> None:
        self.by_stage: Counter[str] = Counter()
        self._stage = ""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What is sent inside belongs to this stage."""
        before, self._stage = self._stage, name
        try:
            yield
        finally:
            self._stage = before

    def add(self, count: int) -> None:
        """Count bytes that are sent now."""
        self.by_stage[self._stage] += count

    def taken(self) -> dict[str, int]:
        """Bytes by stage since the last call."""
        taken = dict(self.by_stage)
        self.by_stage.clear()
        return taken


class Peers:
    """The ranks of a group, and this one among them. A group of one sends nothing."""

    def __init__(self, sent: Sent, group: dist.ProcessGroup | None = None) -> None:
        self.sent, self.group = sent, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def all_to_all(self, sends: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """`sends[r]`, flat, goes to rank r; returned is what each rank sends here, `counts[r]` elements."""
        if self.size == 1:
            return [sends[0]]
        came = self.exchange(torch.cat(list(sends)), [one.numel() for one in sends], counts)
        return list(torch.split(came, list(counts)))

    def exchange(self, message: Tensor, sizes: Sequence[int], counts: Sequence[int]) -> Tensor:
        """A flat message, `sizes[r]` elements for rank r → what came, one rank after another: `counts[r]` of each.

        Nothing else is held beside these two.
        """
        if self.size == 1:
            return message
        self.sent.add((sum(sizes) - sizes[self.rank]) * message.element_size())
        came = message.new_empty(sum(counts))
        self._all_to_all(came, message, counts, sizes)
        return came

    def reduce_scatter(self, parts: Tensor) -> Tensor:
        """(ranks, n) what this rank adds to each → (n,) this rank's sum."""
        if self.size == 1 or not parts.numel():
            return parts[0]
        mine = parts.new_empty(parts.shape[1])
        self.sent.add((self.size - 1) * mine.numel() * mine.element_size())
        self._reduce_scatter(mine, parts.contiguous().view(-1))
        return mine

    def all_gather(self, mine: Tensor) -> Tensor:
        """(n,) → (ranks, n)"""
        if self.size == 1 or not mine.numel():
            return mine.expand(self.size, *mine.shape)
        everyone = mine.new_empty(self.size * mine.numel())
        self.sent.add((self.size - 1) * mine.numel() * mine.element_size())
        self._all_gather(everyone, mine.contiguous())
        return everyone.view(self.size, -1)

    def all_gather_uneven(self, mine: Tensor, counts: Sequence[int]) -> list[Tensor]:
        """(n,) → what every rank has, `counts[r]` elements of rank r."""
        return self.all_to_all([mine] * self.size, counts)

    def sum_in_order(self, values: Tensor) -> Tensor:
        """(n,) added over ranks in their order: the same to the bit everywhere, and at every attempt.

        An all-reduce as a ring has it, ranks summing a share each, whose order no library chooses.
        """
        if self.size == 1 or not values.numel():
            return values
        number = values.numel()
        share = -(-number // self.size)
        even = [share] * self.size
        missing = share * self.size - number
        padded = torch.nn.functional.pad(values, (0, missing)) if missing else values
        mine = _added(self.exchange(padded, even, even).view(self.size, share))
        return self.all_gather(mine).flatten()[:number]

    def _all_to_all(self, came: Tensor, sent: Tensor, counts: Sequence[int], sizes: Sequence[int]) -> None:
        """Fill `came`, of each rank `counts[r]` elements; `sent` has `sizes[r]` for each."""
        dist.all_to_all_single(came, sent, list(counts), list(sizes), group=self.group)

    def _reduce_scatter(self, mine: Tensor, parts: Tensor) -> None:
        dist.reduce_scatter_tensor(mine, parts, group=self.group)

    def _all_gather(self, everyone: Tensor, mine: Tensor) -> None:
        dist.all_gather_into_tensor(everyone, mine, group=self.group)


def _added(parts: Tensor) -> Tensor:
    """(ranks, n) → (n,)"""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
