"""Microbenchmarks of links and of the host: collectives, host work, copies to host memory, updates on the host.

**Collectives** are timed over message and group sizes; `size` is the full tensor's bytes. On a CPU each comes behind
products, as in a step: gloo's threads sleep until then, have lost their caches to them, and wait for a core at every
hop, which they do not where collectives follow one another.

**Host time** of the executor (modules, dispatch, autograd, DTensor, hooks) is that of models so small that nothing else
counts. What a block adds to a step is the slope over models of more and more blocks; the rest of such a step is told by
none. Everything a training step does is in it: gradients added to the flat buffers, the parts of a split model that are
sent, shards that are gathered.

**Offload** asks a host for updates, copies each way, and updates behind passes. Updates are those of
`executor.axes.offload`: a fused AdamW over the one flat buffer of a block, with as many threads as a rank has. Copies
go through its `HostLink`: pinned and in streams on a GPU, within memory on a CPU, which makes them one after the other
itself. Both are measured on several processes at once, which share the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster
from cost_models.measured.calibration.microbenchmarks import Measurement
from cost_models.pipeline.pricing import estimate
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.axes.offload.link import HostLink, threads_for_updates
from executor.engine.engine import Engine
from executor.microbenchmarks.stopwatch import Call, Scale, Stopwatch, in_turn
from executor.run_config import EngineOptions
from executor.timing import cpu_threads
from planner.plan import make_plan

_REPEATS_SMALL, _REPEATS_LARGE = 6, 3
"""Repetitions in each round, for small messages and large ones."""
_LARGE_BYTES = 2**21
_SIDE, _PRODUCTS = 256, 4
"""Side and number of the products before a collective, some milliseconds of one core."""


def collectives(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time collectives of all kinds over groups of 2, 4, … ranks up to all; only members of a group report."""
    rank, world = dist.get_rank(), dist.get_world_size()
    for size in _doublings(2, world):
        members = list(range(size))
        group = dist.new_group(members)
        if rank in members:
            assert group is not None
            for message in scale.messages:
                yield from _one_size(watch, message, size, group)
        dist.barrier()


def _doublings(first: int, last: int) -> list[int]:
    """`first`, twice `first`, … below `last`, and `last`; empty if `last` is less than `first`."""
    sizes = {first << power for power in range(last.bit_length())} | {last}
    return sorted(size for size in sizes if first <= size <= last)


def _one_size(watch: Stopwatch, message: int, size: int, group: dist.ProcessGroup) -> Iterator[Measurement]:
    """Time all collectives of one message size in one group."""
    elements = max(size, message // 4 // size * size)
    full = torch.ones(elements, device=watch.device)
    shard = torch.ones(elements // size, device=watch.device)
    output = torch.empty_like(full)
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(output, shard, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, full, group=group),
        "all_to_all": lambda: dist.all_to_all_single(output, full, group=group),
    }
    if size == 2:
        calls["p2p"] = lambda: there_and_back(full, (0, 1), group)
    for name, call in calls.items():
        repeats = _REPEATS_LARGE if message >= _LARGE_BYTES else _REPEATS_SMALL
        timing = watch.elapsed(call, repeats, aside=_products(watch), group=group)
        trips = 2.0 if name == "p2p" else 1.0
        yield timing.shared(trips).row("collective", name, 4.0 * elements, (size,))


def _products(watch: Stopwatch) -> Call | None:
    """Call that computes matrix products on a CPU before a collective; None on a GPU."""
    if watch.device.type != "cpu":
        return None
    left = torch.ones(_SIDE, _SIDE)
    return lambda: torch.linalg.multi_dot([left] * (_PRODUCTS + 1))


def there_and_back(message: Tensor, pair: tuple[int, int], group: dist.ProcessGroup | None = None) -> None:
    """Send a message from the first rank of a pair to the second, and back."""
    first, second = pair
    if dist.get_rank() == first:
        dist.send(message, second, group=group)
        dist.recv(message, second, group=group)
    else:
        dist.recv(message, first, group=group)
        dist.send(message, first, group=group)


_SEQUENCE, _HIDDEN, _HEADS = 16, 32, 2
_SHAPE = (_SEQUENCE, _HIDDEN, _HEADS)
_BLOCKS = (2, 3, 4, 6)
_STAGES, _PIPELINED = 2, "block.pipelined"
_MICROBATCHES = 2
"""Microbatches of a step; shards are gathered for each microbatch, and gradients scattered once."""
_REPEATS = {"cpu": 2, "cuda": 9}
"""Steps in each round; a GPU has one round. Their number is fixed, as split models communicate and must run equally
often on every process.
"""
_TRAINED: dict[Precision, Precision] = {"fp32": "fp32", "bf16": "bf16", "fp16": "bf16", "fp8": "bf16"}
"""Precision in which the executor launches operators, by the precision that is calibrated."""


Engines = dict[str, dict[int, Engine]]
"""Tiny engines by the kind of their blocks (plain, sharded, …), then by number of blocks."""


def tiny_engines(device: torch.device, precision: Precision) -> Engines:
    """Engines of tiny models, by layout and number of blocks: of plain blocks, and on several processes of sharded
    ones. With an even number of processes also of tensor-parallel blocks and, on a CPU, whose thread clock does not
    count waiting, a pipeline of two stages.
    """
    world = dist.get_world_size()
    layouts = {"block": f"dp{world}"}
    if world > 1:
        layouts["block.sharded"] = f"dp{world} zero3"
    if world % _HEADS == 0:
        split = f"tp{_HEADS} dp{world // _HEADS}"
        layouts |= {"block.tensor-parallel": split, "block.sequence-parallel": f"{split} sp"}
        if device.type == "cpu":
            layouts[_PIPELINED] = f"pp{_STAGES} dp{world // _STAGES}"
    engines: Engines = {}
    for name, layout in layouts.items():
        # of a pipeline only what blocks do not explain
        counts = _BLOCKS[:1] if name == _PIPELINED else _BLOCKS
        engines[name] = {blocks: _engine(layout, blocks, device, precision) for blocks in counts}
    return engines


def host_overhead(watch: Stopwatch, engines: Engines) -> Iterator[Measurement]:
    """Measure the host time of a microbatch's passes, for each number of blocks, and of an update of few parameters."""
    repeats, fewest = _REPEATS[watch.device.type], _BLOCKS[0]
    tokens_BS = torch.zeros(_MICROBATCHES, _SEQUENCE, dtype=torch.long)
    for name, by_blocks in engines.items():
        for blocks, engine in by_blocks.items():
            step = watch.host(partial(engine.forward_backward, tokens_BS, tokens_BS), repeats)
            step = step.shared(_MICROBATCHES)
            yield step.row("host", name, float(blocks), _SHAPE)
    update = watch.host(engines["block"][fewest].update, repeats)
    yield update.row("host", "update", float(fewest), _SHAPE)


def _engine(layout: str, blocks: int, device: torch.device, precision: Precision) -> Engine:
    """Engine of a tiny GPT under this layout; a microbatch has one sequence on each replica."""
    parsed = parse_layout(layout)
    model = TransformerSpec(
        num_layers=blocks,
        hidden_size=_HIDDEN,
        num_heads=_HEADS,
        num_kv_heads=_HEADS,
        head_dim=_HIDDEN // _HEADS,
        ffn_hidden_size=4 * _HIDDEN,
        vocab_size=_HIDDEN,
        max_positions=_SEQUENCE,
    )
    batch, trained = _MICROBATCHES * parsed.dp, _TRAINED[precision]
    training = TrainingSpec(global_batch=batch, sequence_length=_SEQUENCE, precision=trained)
    question = complete_question(model, resolve_cluster("local", parsed.num_gpus), training)
    return Engine(make_plan(question, estimate(question, parsed)), device, EngineOptions())


_COPY_REPEATS = 4
"""Repetitions in each round, a fixed number so that processes stay side by side."""
BLOCKS = 8
"""Number of blocks whose updates follow their backward passes."""
_ASIDE_SECONDS = 0.03
"""Seconds of other work between two updates. A fused AdamW's way through the interpreter takes 25 us when repeated at
once, and ten times that after other work.
"""
_SMALLEST = 16
"""Parameters of an update so small that it takes no longer than its call."""
_BACKWARD = 2
"""Products in a block's backward pass for each product of its forward pass."""


def host_updates(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time a block's update with 1, 2, 4, … threads, then a tiny block's update that follows other work."""
    limit = threads_for_updates(watch.device, dist.get_world_size())
    update = in_turn([block.step for block in blocks_of(scale.block_parameters)])
    for threads in _doublings(1, limit):
        with cpu_threads(threads):  # the thread's own clock does not see other threads
            timing = watch.on_host(update, own_clock=threads == 1)
        yield timing.row("offload", "update", float(scale.block_parameters), (threads,))
    smallest = in_turn([block.step for block in blocks_of(_SMALLEST)])
    timing = watch.on_host(smallest, own_clock=True, aside=_other_work)
    yield timing.row("offload", "call", _SMALLEST, (1,))


def host_copies(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time copies from 1, 2, 4, … ranks up to all, while other ranks wait; only ranks that copy report."""
    link = HostLink(watch.device, 1)
    world, rank = dist.get_world_size(), dist.get_rank()
    size = scale.copied_bytes
    zeros = partial(torch.zeros, size, dtype=torch.uint8, device=watch.device)
    pairs = [(link.buffer(size, torch.uint8), zeros()) for _ in range(BLOCKS)]
    ways: dict[str, Callable[[Tensor, Tensor], object]] = {
        "down": link.down,
        "up": lambda host, device: link.up(device, host),
        "both": partial(_copy_both_ways, link),
    }
    for ranks in _doublings(1, world):
        for name, way in ways.items():
            dist.barrier()
            if rank < ranks:
                copy = in_turn([partial(way, host, device) for host, device in pairs])
                yield watch.on_host(copy, own_clock=True).row("offload", name, float(size), (ranks,))
        dist.barrier()


def _copy_both_ways(link: HostLink, host: Tensor, device: Tensor) -> None:
    """Copy half of each buffer in both directions, twice, so that each direction carries a whole buffer's bytes."""
    half = host.numel() // 2
    for _ in range(2):
        link.down(host[:half], device[:half])
        link.up(device[half:], host[half:])


def overlapped_updates(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Time the passes alone, the updates alone, and both at once with the updates in a thread of their own;
    passes are sized to take half as long as updates."""
    blocks = blocks_of(scale.block_parameters)
    threads = threads_for_updates(watch.device, dist.get_world_size())
    updates = [block.step for block in blocks]
    with ThreadPoolExecutor(1, "host-update", lambda: torch.set_num_threads(threads)) as pool:

        def all_updates() -> None:
            """Run the updates of all blocks in the thread, and wait for them."""
            for update_task in [pool.submit(update) for update in updates]:
                update_task.result()

        # half as long: updates are to outlast what hides them
        passes = _passes_of(watch, scale, watch.elapsed(all_updates, _COPY_REPEATS).quiet / 2)

        def copies_and_updates() -> None:
            """Run the passes of all blocks, each followed by its update in the thread, and wait for the updates."""
            begun = []
            passes(lambda block: begun.append(pool.submit(updates[block])))
            for update_task in begun:
                update_task.result()

        kinds: Sequence[tuple[str, Call]] = (
            ("passes", lambda: passes(lambda _: None)),
            ("updates", all_updates),
            ("together", copies_and_updates),
        )
        for name, call in kinds:
            dist.barrier()
            yield watch.elapsed(call, _COPY_REPEATS).row("offload", name, float(BLOCKS), (threads,))


def _passes_of(watch: Stopwatch, scale: Scale, seconds: float) -> Callable[[Callable[[int], object]], None]:
    """Function that stands in for the passes of blocks by computing matrix products for about `seconds`. It does the
    forward passes of all blocks, then their backward passes, with a call after each backward pass.
    """
    side = scale.overlapped_side
    left, right = (scale.tensor(watch.device, side, side) for _ in range(2))
    multiply = partial(torch.mm, left, right, out=torch.empty_like(left))
    product_seconds = watch.elapsed(multiply, 2 * _COPY_REPEATS).quiet
    products = max(1, round(seconds / product_seconds / (BLOCKS * (1 + _BACKWARD))))

    def run(after_backward: Callable[[int], object]) -> None:
        """Run all passes; after each block's backward pass call `after_backward` with the block's index."""
        for _ in range(BLOCKS * products):
            multiply()
        for block in range(BLOCKS):
            for _ in range(_BACKWARD * products):
                multiply()
            watch.settle()
            after_backward(block)

    return run


def _other_work() -> None:
    """Compute matrix products for `_ASIDE_SECONDS`, in place of passes."""
    left, end = torch.ones(256, 256), time.perf_counter() + _ASIDE_SECONDS
    while time.perf_counter() < end:
        torch.mm(left, left)


def blocks_of(size: int) -> list[torch.optim.Optimizer]:
    """Optimizers of `BLOCKS` blocks with `size` parameters each, in one flat buffer each."""
    optimizers: list[torch.optim.Optimizer] = []
    for _ in range(BLOCKS):
        flat = torch.nn.Parameter(torch.zeros(size))
        flat.grad = torch.ones_like(flat)
        optimizers.append(torch.optim.AdamW([flat], fused=True))
    return optimizers
