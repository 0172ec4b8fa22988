"""Collectives between processes over message and group sizes; `size` is the full tensor's bytes.

On a CPU each comes behind products, as in a step: gloo's threads sleep until then, have lost their caches to them, and
wait for a core at every hop, which they do not where collectives follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from cost_models.measured.calibration.measurements import Measurement
from executor.microbenchmarks.scale import Scale
from executor.microbenchmarks.stopwatch import Call, Stopwatch

_REPEATS_SMALL, _REPEATS_LARGE = 6, 3
"""Of each round."""
_LARGE_BYTES = 2**21
_SIDE, _PRODUCTS = 256, 4
"""Of the products before a collective: some milliseconds of one core."""


def collectives(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time all operations over groups of 2, 4, … ranks up to all; only members of a group report."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for size in _group_sizes(world):
        members = list(range(size))
        group = dist.new_group(members)
        if rank in members:
            assert group is not None
            for message in scale.messages:
                yield from _one_size(watch, message, size, group)
        dist.barrier()


def _group_sizes(world: int) -> list[int]:
    """2, 4, 8, … and the world itself."""
    sizes = {2**power for power in range(1, world.bit_length()) if 2**power <= world}
    return sorted(sizes | ({world} if world > 1 else set()))


def _one_size(watch: Stopwatch, message: int, size: int, group: dist.ProcessGroup) -> Iterator[Measurement]:
    elements = max(size, message // 4 // size * size)
    full = torch.ones(elements, device=watch.device)
    shard = torch.ones(elements // size, device=watch.device)
    other = torch.empty_like(full)
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(other, shard, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, full, group=group),
        "all_to_all": lambda: dist.all_to_all_single(other, full, group=group),
    }
    if size == 2:
        calls["p2p"] = lambda: there_and_back(full, (0, 1), group)
    for name, call in calls.items():
        repeats = _REPEATS_LARGE if message >= _LARGE_BYTES else _REPEATS_SMALL
        timing = watch.elapsed(call, repeats, aside=_products(watch), group=group)
        trips = 2.0 if name == "p2p" else 1.0
        yield timing.shared(trips).row("collective", name, 4.0 * elements, (size,))


def _products(watch: Stopwatch) -> Call | None:
    """What a CPU computes before a collective; None on a GPU, whose collectives have their own multiprocessors."""
    if watch.device.type != "cpu":
        return None
    left = torch.ones(_SIDE, _SIDE)
    return lambda: torch.linalg.multi_dot([left] * (_PRODUCTS + 1))


def there_and_back(
    message: torch.Tensor, pair: tuple[int, int], group: dist.ProcessGroup | None = None
) -> None:
    """Send a message from the first of two ranks to the second, and back."""
    first, second = pair
    if dist.get_rank() == first:
        dist.send(message, second, group=group)
        dist.recv(message, second, group=group)
    else:
        dist.recv(message, first, group=group)
        dist.send(message, first, group=group)
