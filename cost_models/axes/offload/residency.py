"""Residency of each block's states (the device, or a way of offloading to the host), bytes of offloaded
blocks in host memory and on drives, sums over a rank's blocks by residency, and the streamed blocks copied in
and dropped around each pass.

A layout counts the blocks of every rank with each residency:

    states      optimizer states (moments and master weights) on the host, where the CPU updates them
                (Ren et al. 2021, ZeRO-Offload)
    parked      the same states on the host, streamed to the device for its update
    streamed    weights, gradients and states on the host; a ring of `ring` buffers holds the weights in use, the CPU
                updates (Sun et al. 2022, STRONGHOLD; Rajbhandari et al. 2021, ZeRO-Infinity)

The remaining blocks stay on the device: the first of a rank, which a step needs first. `activations` moves
every block's activations for its backward pass, whatever the residency of its states. With `drive` the
optimizer states that the CPU updates, those of `states` and `streamed` blocks, are on the host's drive and
pass through its memory chunk by chunk. A part without a count means all remaining blocks.

A rank of n blocks, c_r of them with residency r and all others with residency o, costs

    n · v_o + Σ_r c_r (v_r − v_o)

where v is the cost of one block: affine in n, as every coefficient of `pipeline.stage_costs` must be.

The window follows one rule: before a pass the ring holds the next `ring` different streamed blocks that
passes will use, including the pass's own; a block that is not among the next is dropped when its pass is
done. For passes in model order this is the window of STRONGHOLD (Sun et al. 2022), forward and backward; it
also holds for the passes of a pipeline schedule. A rank's first blocks are not part of it: a step begins with
them while others are copied.

    load B     copy the weights of block B to the device
    drop B     free them on the device
    down B     add the gradients of block B to those on the host
    update B   the CPU updates block B, whose gradients are all there or are copied now

Each update is listed as early as it can begin; if the norm of all gradients must be known first, updates
follow the last pass. The executor carries this list out (`executor.axes.offload.blocks`), and traces show
it.

**Hosts.** Every rank counts as the fullest. Weights, gradients and states are stored in pinned buffers, from which they
are copied directly. PyTorch's allocator of pinned memory rounds sizes to a power of two bytes
(aten/src/ATen/core/CachingHostAllocator.h).

With `drive`, states that the CPU updates are on the drive: moments, the master copy of 16-bit weights, and
for blocks with `states` the fp32 weights that the CPU updates if there is no such copy. Every step reads all
of it and writes it back, chunk by chunk, through buffers in host memory (Rajbhandari et al. 2021,
ZeRO-Infinity, section 5.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple, get_args

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import RESIDENCIES, UPDATED_BY_CPU, Layout, Offload, Residency
from cost_models.axes.words import EVERY
from cost_models.memory.activations import activation_bytes
from cost_models.memory.device import is_own_host
from cost_models.memory.states import DeviceShare, StateBytes, state_bytes
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import BLOCK_PARTS, Part, parameters
from cost_models.operators.record import products_of
from cost_models.pipeline.seconds import head_parameters
from cost_models.question import Question
from cost_models.schedules.registry import build
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import FULL
from cost_models.units import FP32_BYTES

# ---------------------------------------------------------------- numbers of blocks


def offloads(columns: LayoutColumns) -> Bools:
    """Whether the layout keeps any data of blocks in host memory, (N,)."""
    return np.asarray(np.any([getattr(columns, f"offload_{kind}") > 0 for kind in Offload._fields], axis=0))


def counted_blocks(columns: LayoutColumns, residency: Residency) -> Ints:
    """Number of blocks per rank that each layout offloads in the way `residency` by stating their number,
    (N,). It is 0 if the layout offloads all remaining blocks, or none, in that way."""
    return np.where(offloads_rest(columns, residency), 0, getattr(columns, f"offload_{residency}"))


def named_blocks(columns: LayoutColumns) -> Ints:
    """Number of blocks per rank that each layout offloads by stating their number, summed over all ways to
    offload states, (N,)."""
    return np.asarray(np.sum([counted_blocks(columns, residency) for residency in RESIDENCIES], axis=0))


def offloads_rest(columns: LayoutColumns, kind: str) -> Bools:
    """Whether each layout offloads in the way `kind` all blocks for which it states no number, (N,). For
    `activations`, this means the activations of every block."""
    return np.asarray(getattr(columns, f"offload_{kind}") >= EVERY)


def blocks_with(question: Question, columns: LayoutColumns, residency: Residency) -> Array:
    """Number of blocks with a given residency on a rank with an even share of the blocks, (N,)."""
    remainder = question.model.num_layers / columns.pp - named_blocks(columns)
    return np.where(offloads_rest(columns, residency), remainder, counted_blocks(columns, residency))


# ---------------------------------------------------------------- sums over blocks


class Affine(NamedTuple):
    """Sum of a value over a rank's blocks as a linear function of the number of blocks: `layer` × number +
    `rank`, (N,) each."""

    layer: Array
    rank: Array


def over_residencies(columns: LayoutColumns, values: Mapping[Residency, Array]) -> Affine:
    """Sum of a value over a rank's blocks, as a linear function of the number of blocks. `values` are the
    value of one block, (N,), for each residency of its states."""
    layer = values["resident"]
    for residency in RESIDENCIES:
        layer = np.where(offloads_rest(columns, residency), values[residency], layer)
    deltas = [counted_blocks(columns, residency) * (values[residency] - layer) for residency in RESIDENCIES]
    return Affine(layer, sum(deltas, start=np.zeros(len(columns))))


def block_parameters(question: Question, columns: LayoutColumns) -> dict[Part, Array]:
    """Number of a block's parameters on a rank before ZeRO shards them, (N,), for each part: "block" (outside
    routed experts) and, in a mixture, "experts" (in routed experts)."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    parts = BLOCK_PARTS if question.model.has_experts else BLOCK_PARTS[:1]
    return dict(zip(parts, (counts.block, counts.experts), strict=False))


def end_parameters(question: Question, columns: LayoutColumns) -> Array:
    """Number of embedding and head parameters on the pipeline rank that has most of them, (N,)."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    head = head_parameters(question, columns, counts)
    return np.where(columns.pp == 1, counts.embedding + head, np.maximum(counts.embedding, head))


def rank_parameters(question: Question, columns: LayoutColumns) -> dict[Part, Array]:
    """Number of a rank's parameters that are offloaded in each of the ways `RESIDENCIES`, (3, N), by part of
    the model. The parts are parameters outside routed experts and, in a mixture, in routed experts. The rank
    has an even share of the blocks; embedding and head count outside experts where they are offloaded like
    blocks."""
    blocks = np.array([blocks_with(question, columns, residency) for residency in RESIDENCIES])
    sizes = {part: blocks * size for part, size in block_parameters(question, columns).items()}
    if question.stack.offloads_ends:
        ends_too = np.array([offloads_rest(columns, residency) for residency in RESIDENCIES])
        sizes["block"] += ends_too * end_parameters(question, columns)
    return sizes


# ---------------------------------------------------------------- what the device holds


def states_on_device(
    question: Question, columns: LayoutColumns, residency: Residency, part: Part = "block"
) -> StateBytes:
    """Bytes of states on the device per parameter of a block with a given residency, for parameters inside or
    outside routed experts (`part`).

    Where the CPU updates them, sharded gradients leave the device as they are reduced (Ren et al. 2021, ZeRO-Offload).
    Streamed blocks keep nothing there: their buffers are the ring's (`price`). Whatever the residency, gradients that
    are not scattered before the last microbatch wait for it on the device.
    """
    optimizer, weights = float(residency == "resident"), float(residency != "streamed")
    leave = (residency == "streamed") | ((residency == "states") & gradients_leave(question, columns))
    gradients = np.where(leave & ~gradients_wait(question, columns), 0.0, 1.0)
    share = DeviceShare(optimizer, weights, gradients, reduced=np.where(leave, 0.0, 1.0))
    return state_bytes(question, columns, part, share)


def gradients_wait(question: Question, columns: LayoutColumns) -> Bools:
    """Whether gradients of several microbatches add up unsharded on the device before ZeRO-2 or 3 scatters
    them, (N,)."""
    scattered = (columns.zero >= 2) & (columns.replicas > 1)
    several = columns.microbatches(question.training.global_batch) > 1
    return question.stack.unsharded_gradients_until_sync & scattered & several


def gradients_leave(question: Question, columns: LayoutColumns) -> Bools:
    """Whether gradients of blocks whose states are on the host are copied to the host during the backward
    pass, (N,)."""
    return (columns.zero >= 2) | (question.stack.offloads_gradients & np.equal(columns.replicas, 1))


# ---------------------------------------------------------------- what a host holds


STAGING_BUFFERS = 2
"""Number of block-sized staging buffers in host memory that the project's executor uses under ZeRO-0 and 1.
They are for gradients that are not stored on the host, and for updated 16-bit weights
(executor/axes/offload/link.py)."""


def ranks_on_host(question: Question, columns: LayoutColumns) -> Ints:
    """Number of ranks that share one host, (N,)."""
    return np.minimum(columns.ranks, question.cluster.gpus_per_node)


ValueOf = Callable[[Question, LayoutColumns, Residency, Part], Array]
"""Function from question, layouts, residency and part of a block to a value per parameter, (N,), such as bytes."""


def _fullest_rank(question: Question, columns: LayoutColumns, value_of: ValueOf) -> Array:
    """Total of a value, such as bytes, over the parameters of the rank with most parameters, (N,). `value_of`
    gives the value per parameter for each residency of the block's states.

    Blocks are spread evenly; the larger of embedding and head is added if the ends are offloaded like blocks.
    """
    rank, blocks = np.zeros(len(columns)), -(-question.model.num_layers // columns.pp)
    for part, size in block_parameters(question, columns).items():
        values = {at: value_of(question, columns, at, part) for at in get_args(Residency)}
        layer, besides = over_residencies(columns, values)
        rank = rank + (blocks * layer + besides) * size
        if part == "block":
            ends = layer
    if question.stack.offloads_ends:
        rank = rank + end_parameters(question, columns) * ends
    return rank


def host_bytes(question: Question, columns: LayoutColumns, recompute: Sequence[str] | None = None) -> Array:
    """Bytes that offloaded states and activations, or a reference model's weights, occupy in the memory of
    one host, (N,).

    `recompute` are the policies of placed layouts; None: the policy that keeps least among those the job
    allows.
    """
    blocks, ranks_here = -(-question.model.num_layers // columns.pp), ranks_on_host(question, columns)
    if not offloads(columns).any():
        blocks_kept = blocks * (question.training.reference == "host")
        return blocks_kept * reference_bytes(question, columns) * ranks_here
    rank = _fullest_rank(question, columns, _bytes_off_device) * question.stack.host_buffers
    rank = rank + drive_buffer_bytes(question, columns) + _staging_bytes(question, columns)
    if (away := offloads_rest(columns, "activations")).any():
        live = np.minimum(columns.pp, columns.microbatches(question.training.global_batch))
        used = [RECOMPUTE_POLICIES.index(policy) for policy in recompute or question.training.recompute]
        block_bytes = activation_bytes(question, columns).block[:, used]
        activations = block_bytes.max(axis=1) if recompute else block_bytes.min(axis=1)
        rank = rank + np.where(away, live * blocks * activations, 0.0)
    return rank * ranks_here


def reference_bytes(question: Question, columns: LayoutColumns) -> Array:
    """Bytes of a rank's part of one block of a frozen reference model, in the training precision, (N,). Under
    ZeRO-3 a rank's part is its shard."""
    shards = block_shards(question, columns, zero=3)
    return question.training.element_bytes * sum(shards, np.zeros(len(columns)))


def block_shards(question: Question, columns: LayoutColumns, *, zero: int) -> list[Array]:
    """Number of a block's parameters on one rank, outside and (in a mixture) inside routed experts, (N,)
    each. ZeRO stages from `zero` on shard them."""
    sizes = block_parameters(question, columns).items()
    return [size / columns.shards(part, zero) for part, size in sizes]


def _bytes_off_device(question: Question, columns: LayoutColumns, residency: Residency, part: Part) -> Array:
    """Bytes in host memory per parameter of a block with a given residency, (N,)."""
    if residency == "resident":
        return np.zeros(len(columns))
    full = state_bytes(question, columns, part)
    on_device = states_on_device(question, columns, residency, part)
    scattered = gradients_wait(question, columns) & (residency in UPDATED_BY_CPU)
    copied = full.worked_on if residency == "states" else 0.0  # weights on both sides
    away = full.total - on_device.total + np.where(scattered, full.reduced, 0.0) + copied
    away = away + _rounding_bytes(question, columns, residency, part)
    return away - _bytes_on_drive(question, columns, residency, part)


def _rounding_bytes(question: Question, columns: LayoutColumns, residency: Residency, part: Part) -> Array:
    """Bytes per parameter that rounding adds to buffers of fp32 gradients in host memory, (N,): each matrix's
    buffer is rounded up to a power of two.

    `fully_shard` pins the gradients that it reduces once a step (_fsdp_collectives.py, foreach_reduce).
    """
    requested = allocated = np.zeros(len(columns))
    once = question.stack.unsharded_gradients_until_sync
    if residency != "streamed" or not once or is_own_host(question.cluster):
        return requested
    shard = columns.shards(part)
    for _, gemm in products_of(block_operators(question.model)):
        experts_together = question.model.num_experts / columns.ep if gemm.routed else 1.0
        ranks = shard * np.where(gemm.split == "whole", 1, columns.etp if gemm.routed else columns.tp)
        for outputs in gemm.outputs if gemm.routed == (part == "experts") else ():
            size = FP32_BYTES * experts_together * gemm.inputs * outputs / ranks
            requested, allocated = requested + size, allocated + 2 ** np.ceil(np.log2(size))
    excess = FP32_BYTES / shard * (allocated / np.maximum(requested, 1.0) - 1)
    return np.where(columns.zero >= 2, excess, 0.0)


def _staging_bytes(question: Question, columns: LayoutColumns) -> Array:
    """Bytes in host memory of a rank's staging buffers for gradients and 16-bit weights in transfer, (N,).

    Blocks with `states` need a rank's share of a block, for gradients and for updated weights; streamed
    blocks need an entire block, to add gradients to those of earlier microbatches. All share buffers of the
    largest size.
    """
    several = columns.microbatches(question.training.global_batch) > 1
    with_states, streamed = (blocks_with(question, columns, residency) > 0 for residency in UPDATED_BY_CPU)
    incoming = outgoing = np.zeros(len(columns))
    for part, size in block_parameters(question, columns).items():
        share = size / columns.shards(part, zero=1)
        incoming = np.maximum(incoming, np.where(streamed & several, size, with_states * share))
        outgoing = np.maximum(outgoing, with_states * share)
    narrow = question.training.precision not in FULL
    buffer = FP32_BYTES * incoming + question.training.element_bytes * outgoing * narrow
    return np.where(columns.zero < 2, STAGING_BUFFERS * question.stack.keeps_streamed_blocks * buffer, 0.0)


# ---------------------------------------------------------------- drives


def _bytes_on_drive(question: Question, columns: LayoutColumns, residency: Residency, part: Part) -> Array:
    """Bytes on the drive per parameter of a block with a given residency, (N,); 0 if the CPU does not update
    the block. Every step writes all of them."""
    if residency not in UPDATED_BY_CPU or not columns.offload_drive.any():
        return np.zeros(len(columns))
    states, use = state_bytes(question, columns, part), question.stack.drive
    gradients = use.gradients * (FP32_BYTES / columns.shards(part, zero=1))
    stored = states.optimizer + (states.worked_on if residency == "states" else 0.0)
    return np.where(columns.offload_drive > 0, stored + gradients, 0.0)


def drive_bytes(question: Question, columns: LayoutColumns) -> Array:
    """Bytes used on the drives of one host, counting each rank as the rank with most parameters, (N,)."""
    return _fullest_rank(question, columns, _bytes_on_drive) * ranks_on_host(question, columns)


def drive_step_bytes(question: Question, columns: LayoutColumns) -> tuple[Array, Array]:
    """Bytes read from the drive and bytes written per step by a rank with an even share of the blocks, (N,)
    each."""
    read = written = np.zeros(len(columns))
    for part, (with_states, _, streamed) in rank_parameters(question, columns).items():
        reread = question.stack.drive.rereads_weights * (FP32_BYTES / columns.shards(part, zero=1))
        no_copy = state_bytes(question, columns, part).worked_on == 0
        for residency, size in zip(UPDATED_BY_CPU, (with_states, streamed), strict=True):
            stored = _bytes_on_drive(question, columns, residency, part)
            weights_there = (columns.offload_drive > 0) & ((residency == "states") | no_copy)
            read = read + size * (stored + np.where(weights_there, reread, 0.0))
            written = written + size * stored
    return read, written


def drive_buffer_bytes(question: Question, columns: LayoutColumns) -> Array:
    """Bytes in host memory of a rank's buffers through which states on the drive pass, chunk by chunk, (N,).

    A buffer is no larger than the parameters that the rank updates, or, if a block has several chunks, than
    those of a block that it updates at a time: its experts, or all others.
    """
    use = question.stack.drive
    if not use.buffers or not columns.offload_drive.any():
        return np.zeros(len(columns))

    def updated(question: Question, columns: LayoutColumns, residency: Residency, part: Part) -> Array:
        """Share of the parameters of a block with the given residency that one rank updates from the drive,
        (N,), in one `part` of the model."""
        on_drive = (columns.offload_drive > 0) & (residency in UPDATED_BY_CPU)
        return np.where(on_drive, 1 / columns.shards(part, zero=1), 0.0)

    buffer_size: Array = np.minimum(use.chunk, _fullest_rank(question, columns, updated))
    if use.block_chunks:
        of_block = np.max(block_shards(question, columns, zero=1), axis=0)
        buffer_size = np.minimum(buffer_size, of_block / use.block_chunks)
    return use.buffers * FP32_BYTES * buffer_size


# ---------------------------------------------------------------- blocks of one layout, and their window


def residencies(layout: Layout, blocks: int) -> list[Residency]:
    """Residency (device, or a way of offloading) of the states of each of a rank's blocks, in model order.
    The first blocks are those on the device, as a step needs the first blocks first.

    A rank with fewer blocks than the counts name, in a pipeline of uneven stages, has the last of them.
    """
    counts: dict[Residency, int] = {"resident": 0, **dict(zip(RESIDENCIES, layout.offload, strict=False))}
    base: Residency = next((residency for residency, count in counts.items() if count >= EVERY), "resident")
    counts[base] = max(0, blocks - layout.offload.explicit_blocks)
    lives = [residency for residency, count in counts.items() for _ in range(count)]
    return lives[len(lives) - blocks :]


def blocks_of_stages(layout: Layout, stages: Sequence[int]) -> dict[int, range]:
    """Blocks of each virtual stage, as a range of indices in the model, by stage."""
    return {stage: range(sum(layout.layers[:stage]), sum(layout.layers[: stage + 1])) for stage in stages}


def residency_of_blocks(layout: Layout, stages: Sequence[int]) -> dict[int, Residency]:
    """Residency of the states of each block on one rank's virtual stages `stages`, by index of the block in
    the model."""
    blocks = [*chain.from_iterable(blocks_of_stages(layout, stages).values())]
    return dict(zip(blocks, residencies(layout, len(blocks)), strict=True))


class BlockPass(NamedTuple):
    """Forward (`F`) or backward (`B`) pass of one microbatch through one block."""

    kind: str
    block: int
    microbatch: int


class Move(NamedTuple):
    """Load to the device, release, copy to the host, or CPU update of a block's data."""

    what: Literal["load", "drop", "down", "update"]
    block: int

    def __str__(self) -> str:
        return f"{self.what} {self.block}"


class Turn(NamedTuple):
    """Pass of a microbatch through a block, with the moves of blocks' data before and after it."""

    use: BlockPass
    before: tuple[Move, ...]
    after: tuple[Move, ...]


def turns_of_rank(
    layout: Layout, stages: Sequence[int], microbatches: int, *, at_once: bool = True, retain: bool = True
) -> list[Turn]:
    """Passes of one rank through its blocks in a step, in order, each with the data moves before and after
    it. `stages` are the rank's virtual stages; the layout's blocks must be placed.

    Args:
        at_once: whether the CPU updates a block as soon as its gradients are there.
        retain: whether a block stays that is among the next; else it leaves after each pass and comes again.
    """
    lives, blocks = residency_of_blocks(layout, stages), blocks_of_stages(layout, stages)
    pipeline = (layout.schedule, layout.pp, layout.vpp) if layout.pp > 1 else ("1f1b", 1, 1)
    table = build(*pipeline, microbatches)
    uses: list[BlockPass] = []
    for kind, stage, microbatch in table.actions(int(table.rank_of_stage[stages[0]])):
        assert kind in ("F", "B"), "split backward passes do not go with offload"
        uses += [BlockPass(kind, block, microbatch) for block in blocks[stage][:: 1 if kind == "F" else -1]]
    last = {use.block: at for at, use in enumerate(uses) if use.kind == "B"}
    next_blocks: list[list[int]] = [[]]  # next `ring` different streamed blocks, at each pass and at the end
    for use in reversed(uses):
        streamed = [use.block] * (lives[use.block] == "streamed")
        next_blocks.append([*dict.fromkeys([*streamed, *next_blocks[-1]])][: layout.ring])
    next_blocks.reverse()
    turns: list[Turn] = []
    loaded: set[int] = set()
    for at, use in enumerate(uses):
        loads = tuple(Move("load", block) for block in next_blocks[at] if block not in loaded)
        loaded |= {move.block for move in loads}
        moves: list[Move] = []
        block, residency = use.block, lives[use.block]
        if residency == "streamed" and use.kind == "B":
            moves.append(Move("down", block))
        if residency == "streamed" and not (retain and block in next_blocks[at + 1]):
            moves.append(Move("drop", block))
            loaded.discard(block)
        if at_once and residency in UPDATED_BY_CPU and last[block] == at:
            moves.append(Move("update", block))
        turns.append(Turn(use, loads, tuple(moves)))
    return turns
