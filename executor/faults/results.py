"""Checks results of devices and links: copies, products, sums over all ranks and exchanges with known results.

Numbers are small integers, which any order of additions adds up alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from cost_models.base import Spec

if TYPE_CHECKING:
    import torch

MEMORY, MATMUL, ALL_REDUCE, ALL_TO_ALL = "memory", "matmul", "all-reduce", "all-to-all"
Spoil = Callable[[str, "torch.Tensor"], "torch.Tensor"]
"""Function that replaces the result of a check, with which tests make results wrong."""
_SIDE, _COPIED, _EXCHANGED = 256, 2**22, 1024
"""Rows of a product, numbers of a copy, numbers that a rank sends to each other one."""


class WrongResult(Spec):
    """A check whose result was wrong."""

    check: str
    ranks: tuple[int, ...]
    """One rank, or both ranks of an exchange; empty for all ranks."""


def wrong_results(device: torch.device, spoil: Spoil = lambda _, result: result) -> tuple[WrongResult, ...]:
    """Compute known results on all ranks of the process group, and return on every rank which are wrong on any."""
    import torch
    import torch.distributed as dist

    from executor.messages import gather_json

    rank, ranks = dist.get_rank(), dist.get_world_size()
    numbers = torch.arange(_COPIED, dtype=torch.int32) % 251
    rows = torch.arange(_SIDE)
    left, right = (((rows[:, None] * step + rows) % 7 - 3).float() for step in (3, 5))
    values = torch.arange(_EXCHANGED, device=device) % 97
    summed, received = values * (rank + 1), torch.empty(ranks, _EXCHANGED, dtype=torch.int64, device=device)
    dist.all_reduce(summed)
    messages = (rank * ranks + torch.arange(ranks, device=device))[:, None].repeat(1, _EXCHANGED)
    dist.all_to_all_single(received, messages)
    product = torch.mm(left.to(device), right.to(device))
    results = {
        MEMORY: (numbers.to(device).clone(), numbers),
        MATMUL: (product.long(), left.long() @ right.long()),
        ALL_REDUCE: (summed, values.cpu() * (ranks * (ranks + 1) // 2)),
    }
    correct = {check: torch.equal(spoil(check, one).cpu(), known) for check, (one, known) in results.items()}
    failed = [check for check, is_correct in correct.items() if not is_correct]
    exchanged = (spoil(ALL_TO_ALL, received).cpu() == (torch.arange(ranks) * ranks + rank)[:, None]).all(1)
    gathered = gather_json([failed, (~exchanged).nonzero().flatten().tolist()])
    return (*_of_ranks([checks for checks, _ in gathered]), *_of_pairs([senders for _, senders in gathered]))


def _of_ranks(failed: Sequence[Sequence[str]]) -> Iterator[WrongResult]:
    """Wrong results of single ranks; if the all-reduce is wrong on every rank, no single rank is blamed."""
    for check in (MEMORY, MATMUL, ALL_REDUCE):
        ranks = [(rank,) for rank, checks in enumerate(failed) if check in checks]
        everywhere = check == ALL_REDUCE and len(ranks) == len(failed)
        yield from (WrongResult(check=check, ranks=one) for one in ([()] if everywhere else ranks))


def _of_pairs(senders: Sequence[Sequence[int]]) -> Iterator[WrongResult]:
    """Wrong all-to-alls: first ranks that occur in several wrong pairs, then the wrong pairs without such a rank."""
    pairs = {tuple(sorted({rank, sender})) for rank, some in enumerate(senders) for sender in some}
    while pairs:
        ((rank, times),) = Counter(rank for pair in pairs for rank in pair).most_common(1)
        if times == 1:
            break
        yield WrongResult(check=ALL_TO_ALL, ranks=(rank,))
        pairs = {pair for pair in pairs if rank not in pair}
    yield from (WrongResult(check=ALL_TO_ALL, ranks=pair) for pair in sorted(pairs))
