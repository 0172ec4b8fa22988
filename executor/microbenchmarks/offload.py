"""Times what offload asks of a host: the CPU's updates, copies each way, and what of an update hides behind passes.

Updates are those of `executor.axes.offload`: a fused AdamW over the one flat buffer of a block, with as many threads as
a rank has. Copies go through its `HostLink`: pinned and in streams on a GPU, within memory on a CPU, which makes them
one after the other itself. Both are measured on several processes at once, which share the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.distributed as dist

from cost_models.measured.calibration.measurements import Measurement
from executor.axes.offload.link import HostLink, threads_for_updates
from executor.microbenchmarks.scale import Scale
from executor.microbenchmarks.stopwatch import Call, Stopwatch, in_turn

_COPY_REPEATS = 4
"""Of each round; fixed, so that processes stay side by side."""
BLOCKS = 8
"""Updates that follow the backward passes of as many blocks."""
_ASIDE_SECONDS = 0.03
"""Between two updates: the interpreter's way through a fused AdamW takes 25 us where it was just gone, and ten times
that after other work."""
_SMALLEST = 16
"""Parameters of an update that takes no longer than being called does."""
_BACKWARD = 2
"""Products of a block's backward pass, for one of its forward pass."""


def offload(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Updates by threads, copies by ranks, and passes and updates apart and together."""
    link = HostLink(watch.device, 1)
    yield from _updates(watch, scale)
    yield from _copies(watch, scale, link)
    yield from _overlap(watch, scale)


def _updates(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """One block after the other, so that none is in a cache; with 1, 2, 4, … threads, up to a rank's. Then blocks of
    next to nothing, each after other work."""
    most = threads_for_updates(watch.device, dist.get_world_size())
    update = in_turn([block.step for block in blocks_of(scale.block_parameters)])
    for threads in sorted({1, most, *(2**power for power in range(1, most.bit_length()) if 2**power < most)}):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        # the thread's own clock does not see other threads
        one = watch.on_host(update, own_clock=threads == 1)
        torch.set_num_threads(before)
        yield one.row("offload", "update", float(scale.block_parameters), (threads,))
    smallest = in_turn([block.step for block in blocks_of(_SMALLEST)])
    yield watch.on_host(smallest, own_clock=True, aside=_something_else).row(
        "offload", "call", _SMALLEST, (1,)
    )


def _copies(watch: Stopwatch, scale: Scale, link: HostLink) -> Iterator[Measurement]:
    """From 1, 2, 4, … ranks up to all, while the others wait; only those that copy report."""
    world, rank = dist.get_world_size(), dist.get_rank()
    size = scale.copied_bytes
    pairs = [
        (link.buffer(size, torch.uint8), torch.zeros(size, dtype=torch.uint8, device=watch.device))
        for _ in range(BLOCKS)
    ]
    ways: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
        "down": link.down,
        "up": lambda host, device: link.up(device, host),
        "both": partial(_both, link),
    }
    for ranks in sorted({world, *(2**power for power in range(world.bit_length()) if 2**power < world)}):
        for name, way in ways.items():
            dist.barrier()
            if rank < ranks:
                copy = in_turn([partial(way, host, device) for host, device in pairs])
                yield watch.on_host(copy, own_clock=True).row("offload", name, float(size), (ranks,))
        dist.barrier()
    link.taken()


def _both(link: HostLink, host: torch.Tensor, device: torch.Tensor) -> None:
    """Halves of the two buffers change places, so that as much goes each way as one copy carries in one."""
    half = host.numel() // 2
    for _ in range(2):
        link.down(host[:half], device[:half])
        link.up(device[half:], host[half:])


def _overlap(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Passes alone, updates alone, which take twice as long, and each block's in a thread beside what follows."""
    blocks = blocks_of(scale.block_parameters)
    threads = threads_for_updates(watch.device, dist.get_world_size())
    updates = [block.step for block in blocks]
    with ThreadPoolExecutor(1, "host-update", lambda: torch.set_num_threads(threads)) as pool:

        def all_updates() -> None:
            for done in [pool.submit(update) for update in updates]:
                done.result()

        # half as long: updates are to outlast what hides them
        passes = _passes_of(watch, scale, watch.elapsed(all_updates, _COPY_REPEATS).quiet / 2)

        def together() -> None:
            begun = []
            passes(lambda block: begun.append(pool.submit(updates[block])))
            for done in begun:
                done.result()

        kinds: Sequence[tuple[str, Call]] = (
            ("passes", lambda: passes(lambda _: None)),
            ("updates", all_updates),
            ("together", together),
        )
        for name, call in kinds:
            dist.barrier()
            yield watch.elapsed(call, _COPY_REPEATS).row("offload", name, float(BLOCKS), (threads,))


def _passes_of(watch: Stopwatch, scale: Scale, seconds: float) -> Callable[[Callable[[int], object]], None]:
    """Matrix products that stand for the passes of blocks and take about so many seconds alone: forward passes of all
    blocks, then backward ones, after each of which something is done with its block."""
    side = scale.overlapped_side
    left, right = (scale.tensor(watch.device, side, side) for _ in range(2))
    multiply = partial(torch.mm, left, right, out=torch.empty_like(left))
    each = watch.elapsed(multiply, 2 * _COPY_REPEATS).quiet
    products = max(1, round(seconds / each / (BLOCKS * (1 + _BACKWARD))))

    def run(after_backward: Callable[[int], object]) -> None:
        for _ in range(BLOCKS * products):
            multiply()
        for block in range(BLOCKS):
            for _ in range(_BACKWARD * products):
                multiply()
            watch.settle()
            after_backward(block)

    return run


def _something_else() -> None:
    """Matrix products for a while, in place of passes."""
    left, end = torch.ones(256, 256), time.perf_counter() + _ASIDE_SECONDS
    while time.perf_counter() < end:
        torch.mm(left, left)


def blocks_of(size: int) -> list[torch.optim.Optimizer]:
    """The optimizers of some blocks of so many parameters, each of one flat buffer."""
    made: list[torch.optim.Optimizer] = []
    for _ in range(BLOCKS):
        flat = torch.nn.Parameter(torch.zeros(size))
        flat.grad = torch.ones_like(flat)
        made.append(torch.optim.AdamW([flat], fused=True))
    return made
