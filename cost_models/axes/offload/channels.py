"""Busy seconds per step of a rank's channels to host memory and drive, the seconds that the rank's passes do
not hide, and what limits the step of one layout.

    down      gradients, after every microbatch that reduces them
    up        weights of streamed blocks for every pass, and gradients that the device adds to
    update    the CPU's optimizer step: u seconds per parameter for the whole host, and fixed seconds per block
    back      updated weights of blocks with `states`, and parked states, copied to the device
    park      parked states, copied to the host
    read      states on the drive, before their update
    write     states on the drive, after their update

    exposed = max(max(down, up, U) − ω · passes, late, back, park)     if updates overlap the passes
            = max(0, max(down, up) − ω · passes) + U + back + park     if they follow the passes
            = all copies + max(0, U − ω · passes, late)                on a CPU, which makes its copies itself
    U       = max(update, read + write)     if chunks are read and written during the update of others
            = update + read + write         if they are not
    late    = max(down₁, U₁) + (1 − 1 / m) · max(down, up, ω · passes) − ω · passes       for m microbatches

A drive either reads or writes: its times add up. A block is updated once its last gradient is there, so
updates (U₁: U without the additions of gradients of earlier microbatches) and the last microbatch's gradients
(down₁) begin only after the passes, and the link traffic, of the other microbatches. `back` and `park` follow
all passes, both ways at once.

`passes` are the forward and backward passes of an even share of the blocks, without recomputation, so that
they do not depend on the placement. u = 28 B / (memory bandwidth · share) is the traffic of Adam (Ren et al.
2021, ZeRO-Offload, section 5.1: it reads weight, gradient and moments and writes three of them in fp32); ω is
a constant of the profile. Sun et al. 2022 (STRONGHOLD, section III) and Rajbhandari et al. 2021
(ZeRO-Infinity, section 5) describe the streams.

Weights of streamed blocks are copied in their stored type, for the forward and the backward pass of every
microbatch, except those that stayed in the ring: `fully_shard` casts after the copy
(torch/distributed/fsdp/_fully_shard/_fsdp_param.py, all_gather_inputs), and so does FSDP 1
(torch/distributed/fsdp/_flat_param.py, _use_low_precision_shard); with a master copy the 16-bit weights are
copied.

Gradients of several microbatches are added by the CPU (`_fsdp_collectives.py`, foreach_reduce: in the
parameter's type) or by the device: DeepSpeed copies the earlier sum to the device, and sends the final sum in
fp32 once more after the last microbatch (zero/stage3.py, partition_grads; under ZeRO-1 and 2
stage_1_and_2.py, copy_grads_in_partition, where a single microbatch is sent in fp32 at once).

**What limits a step** (`host_windows`): the busiest channel, the smallest ring of buffers that hides weight
copies, and the microbatch sizes from which transfers and updates are hidden.

With F FLOP/s reached by a block's passes, a link of BW bytes/s and u seconds of the CPU per parameter,
weights of e bytes hide behind forward passes from (e / 2) · F / BW tokens of a microbatch on. The CPU's
update, which waits for the gradients of the last microbatch, hides behind that microbatch's passes from u · F
/ 6 tokens on. Neither depends on the model. Here both are computed from prices: F is the rate of this block,
only the share ω of the passes (from the profile) hides anything, and only offloaded blocks are updated there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import RESIDENCIES, UPDATED_BY_CPU, Residency
from cost_models.axes.offload.residency import (
    block_parameters,
    blocks_with,
    drive_step_bytes,
    gradients_leave,
    rank_parameters,
    ranks_on_host,
)
from cost_models.estimate import Estimate
from cost_models.memory.device import is_own_host
from cost_models.memory.states import state_bytes, updates_parameters
from cost_models.operators.accumulation import gradient_dtype
from cost_models.operators.parameters import Part
from cost_models.pipeline.seconds import Pieces
from cost_models.question import Question
from cost_models.specs.cluster import FULL
from cost_models.specs.training import STATE_BYTES
from cost_models.units import FP32_BYTES

Channel = Literal["host link down", "host link up", "CPU update", "drive read", "drive write"]
CHANNELS: dict[Channel, tuple[str, ...]] = {
    "host link down": ("down", "late_down", "park"),
    "host link up": ("up", "back"),
    "CPU update": ("update", "late_update"),
    "drive read": ("read",),
    "drive write": ("write",),
}
"""Fields of `ChannelSeconds` whose seconds occupy each host channel, by name of the channel."""

ADAM_BYTES = 28.0
"""Bytes of host memory traffic per parameter of Adam's update in fp32."""
NORM_BYTES = 4.0
"""Bytes of host memory read per parameter for the norm of gradients in fp32."""
ADDED_BYTES = 12.0
"""Bytes of host memory traffic per parameter to add two fp32 gradients: both are read, one is written."""
ADAM_BANDWIDTH = 0.43
"""Share of a host's memory bandwidth that Adam reaches: 0.257 ns a parameter on a DGX-2, whose two sockets
have 256 GB/s (Ren et al. 2021, table 4: 2.57 s for 10 B parameters)."""
UNKNOWN_UPDATE = 2.57e-10
"""Seconds per parameter of a CPU update if the host's memory bandwidth is unknown: those of a DGX-2
(`ADAM_BANDWIDTH`)."""


class GradientTraffic(NamedTuple):
    """Gradient bytes, additions and copies between a rank and its host, per step and parameter, (2, N) each.
    The fields are bytes `down` to the host and `up`, CPU additions, and copies; the rows are the residencies
    in `UPDATED_BY_CPU`. Parameters are those of the rank before ZeRO shards them."""

    down: Array
    up: Array
    sums: Array
    """Number of CPU additions of a microbatch's gradient to the sum of earlier microbatches."""
    trips: Array
    """Number of copies of a gradient to the host."""


def gradient_traffic(question: Question, columns: LayoutColumns, part: Part = "block") -> GradientTraffic:
    """Gradient bytes, additions and copies between a rank and its host, per step and parameter of blocks
    whose states the CPU updates. `part` chooses the parameters inside or outside routed experts."""
    stack, shard = question.stack, np.array([columns.shards(part, zero) for zero in (1, 2)])
    waits = stack.unsharded_gradients_until_sync & (columns.zero >= 2)
    every_microbatch = ~waits & (np.array([[False], [True]]) | gradients_leave(question, columns))
    trips = np.where(every_microbatch, columns.microbatches(question.training.global_batch), 1)
    in_full = updates_parameters(question, columns, part) | (question.training.precision in FULL)
    size, none = np.where(in_full, FP32_BYTES, STATE_BYTES[gradient_dtype(question)]), np.zeros(trips.shape)
    if not stack.offloads_gradients:
        return GradientTraffic(trips * size / shard, none, (trips - 1) / shard, trips)
    at_once = (columns.zero < 3) & (trips == 1)
    fetched = np.where(columns.zero == 3, trips, trips - 1)
    down = (np.where(at_once, 0, trips * size) + FP32_BYTES) / shard
    return GradientTraffic(down, fetched * size / shard, none, trips)


def weight_traffic(question: Question, columns: LayoutColumns, part: Part) -> Array:
    """Bytes of weights copied to the device per step and per parameter of a rank's streamed blocks, (N,).
    Every pass is taken to copy them again."""
    passes = 2 * columns.microbatches(question.training.global_batch)
    return passes * state_bytes(question, columns, part).stored


def ring_share(question: Question, columns: LayoutColumns) -> Array:
    """Share of a step's passes through streamed blocks for which the block's weights are already in a device
    buffer, (N,).

    Passes of a rank with one stage go back and forth (`residency.turns_of_rank`): each except the step's
    first begins with the blocks that the ring holds.
    """
    stays = question.stack.keeps_streamed_blocks & (columns.zero < 2) & (columns.vpp == 1)
    passes = 2 * columns.microbatches(question.training.global_batch)
    streamed = blocks_with(question, columns, "streamed")
    share = np.minimum(columns.ring, streamed) / np.maximum(streamed, 1.0) * (passes - 1) / passes
    return np.where(stays, share, 0.0)


def update_seconds(question: Question) -> float:
    """Seconds per parameter that the CPU of a host needs for an optimizer update, with all cores. On a
    cluster of CPUs, a rank counts as a host."""
    measured, bandwidth = question.hardware.host_update_seconds, question.cluster.host_memory_bandwidth
    by_bandwidth = ADAM_BYTES / (ADAM_BANDWIDTH * bandwidth) if bandwidth else UNKNOWN_UPDATE
    return by_bandwidth if measured is None else measured


def link_rate(question: Question, columns: LayoutColumns) -> Array:
    """Bandwidth of a GPU's link to host memory in each direction while both are in use, bytes/s (N,). A CPU
    is its own host, and copies one way after the other."""
    cluster, measured = question.cluster, question.hardware.host_rates
    if measured is None:
        sharers = np.minimum(cluster.gpus_per_host_link, columns.ranks)
        return np.asarray((cluster.gpu.host_bandwidth or np.inf) / sharers)
    copies = measured.copies
    rates = [2 / (1 / one.down + 1 / one.up) if is_own_host(cluster) else one.both for one in copies]
    at = np.searchsorted([one.ranks for one in copies], ranks_on_host(question, columns))
    return np.asarray(np.array(rates)[at.clip(max=len(copies) - 1)])


class ChannelSeconds(NamedTuple):
    """Busy seconds per step of a rank's channels to the host (link down and up, CPU update, drive), (N,)
    each."""

    down: Array
    up: Array
    update: Array
    back: Array
    park: Array
    late_down: Array
    """Part of `down` that can start only when the last microbatch's gradients exist."""
    late_update: Array
    """Part of `update` that can start only when the last microbatch's gradients exist."""
    read: Array
    write: Array

    def updating(self, update: Array, *, overlaps: bool) -> Array:
        """Seconds of a CPU update and its drive traffic together, (N,), if the update alone takes `update`
        seconds. This is the longer of both if they overlap, else the sum."""
        drive = self.read + self.write
        return np.maximum(update, drive) if overlaps else update + drive

    def longest(self, *, overlaps: bool) -> Array:
        """Busy seconds per step of the busiest channel to the host, (N,). With `overlaps` drive and CPU
        update run at the same time."""
        link: Array = np.maximum(self.down + self.park, self.up + self.back)
        return np.maximum(link, self.updating(self.update, overlaps=overlaps))

    @property
    def copies(self) -> Array:
        """Seconds per step of all copies between device and host, both directions added, (N,)."""
        return self.down + self.up + self.back + self.park


def channel_seconds(
    question: Question, columns: LayoutColumns, residencies: Sequence[Residency] = RESIDENCIES
) -> ChannelSeconds:
    """Busy seconds per step of the host channels of a rank with an even share of the blocks. Only blocks
    offloaded in one of the ways `residencies` count, except for the drive, whose seconds cover all blocks."""
    none = np.zeros(len(columns))
    host_ranks, link = ranks_on_host(question, columns), link_rate(question, columns)
    per_parameter = update_seconds(question) * (1.0 if is_own_host(question.cluster) else host_ranks)
    copied_share = 1.0 - ring_share(question, columns)
    norms = question.stack.keeps_streamed_blocks & (columns.zero < 2)
    total = ChannelSeconds(*[none] * len(ChannelSeconds._fields))
    counts = np.array([[residency in residencies] for residency in RESIDENCIES])
    for part, sizes in rank_parameters(question, columns).items():
        states, parked, streamed = sizes * counts
        by_cpu, traffic = np.array([states, streamed]), gradient_traffic(question, columns, part)
        shard = columns.shards(part, zero=1)
        parked_bytes = parked * state_bytes(question, columns, part).optimizer
        weights = streamed * copied_share * weight_traffic(question, columns, part)
        updated = (states + streamed * (1 + norms * NORM_BYTES / ADAM_BYTES)) / shard
        sums = (by_cpu * traffic.sums).sum(axis=0)
        last_sums = (by_cpu * (traffic.sums / np.maximum(traffic.trips - 1, 1))).sum(axis=0)
        seconds = ChannelSeconds(
            down=(by_cpu * traffic.down).sum(axis=0) / link,
            up=((by_cpu * traffic.up).sum(axis=0) + weights) / link,
            update=(updated + sums * ADDED_BYTES / ADAM_BYTES) * per_parameter,
            back=(states * question.training.element_bytes / shard + parked_bytes) / link,
            park=parked_bytes / link,
            late_down=(by_cpu * traffic.down / traffic.trips).sum(axis=0) / link,
            late_update=(updated + last_sums * ADDED_BYTES / ADAM_BYTES) * per_parameter,
            read=none,
            write=none,
        )
        total = ChannelSeconds(*map(np.add, total, seconds))
    blocks = [blocks_with(question, columns, each) for each in UPDATED_BY_CPU if each in residencies]
    calls = sum(blocks, none) * question.hardware.host_call_seconds * (1 + question.model.has_experts)
    total = total._replace(update=total.update + calls, late_update=total.late_update + calls)
    drive = question.cluster.drive
    if drive is None or not columns.offload_drive.any():
        return total
    read, written = drive_step_bytes(question, columns)
    return total._replace(read=host_ranks * read / drive.read, write=host_ranks * written / drive.write)


def exposed_seconds(
    question: Question, columns: LayoutColumns, passes: Array, channels: ChannelSeconds | None = None
) -> Array:
    """Seconds per step by which host copies and CPU updates delay a rank whose passes take `passes` seconds,
    (N,). `channels` are by default computed from the layouts.

    The result never falls when a channel becomes slower.
    """
    channels = channels or channel_seconds(question, columns)
    microbatches = columns.microbatches(question.training.global_batch)
    overlaps, overlap = question.stack.drive.overlaps, question.hardware.host_overlap * passes
    own_host, hidden = is_own_host(question.cluster), overlap * question.stack.overlaps_host
    update, none = channels.updating(channels.update, overlaps=overlaps), np.zeros_like(passes)
    streaming = none if own_host else np.maximum(channels.down, channels.up)
    late_update = channels.updating(channels.late_update, overlaps=overlaps)
    late = np.maximum(none if own_host else channels.late_down, late_update)
    begun = np.maximum(streaming, hidden) * (1 - 1 / microbatches)
    behind = reduce(np.maximum, [none, streaming - hidden, update - hidden, late + begun - hidden])
    if own_host:
        return channels.copies + behind
    if question.stack.overlaps_host:
        return reduce(np.maximum, [behind, channels.back, channels.park])
    return np.maximum(0.0, streaming - overlap) + update + channels.back + channels.park


def passes_seconds(pieces: Pieces) -> Array:
    """Seconds of all forward and backward passes of a step, on a rank with an even share of the blocks, (N,)."""
    question, columns = pieces.question, pieces.columns
    blocks = question.model.num_layers / columns.pp * columns.microbatches(question.training.global_batch)
    return blocks * (pieces.block.forward + pieces.block.backward)


# ---------------------------------------------------------------- what limits a step


Binding = Channel | Literal["host memory", "drive", "device memory", "nothing"]
WORTH_NAMING = 0.01
"""Minimum share of the step time from which waiting for a host channel is reported as the bottleneck."""
FULL_TIER = 0.97
"""Share of a memory tier's limit (host, drive, device) from which the tier is reported as full."""


class HostWindows(NamedTuple):
    """Busy seconds per step of each channel between a rank and its host, with the seconds of passes that can
    hide them."""

    down: float
    up: float
    """Busy seconds per step of the host link in each direction, including copies after the update."""
    update: float
    read: float
    """Busy seconds per step of reads from the drive; 0 without a drive."""
    write: float
    hidden: float
    """Seconds per step of passes that can hide host copies and CPU updates."""
    late_hidden: float
    """Seconds of the last microbatch's passes, which alone can hide updates that wait for its gradients."""
    exposed: float
    """Seconds per step that the device waits for host copies and CPU updates."""
    binding: Binding
    transfer: float | None
    """Seconds to copy a streamed block's weights to the device; None without streamed blocks."""
    forward: float
    """Seconds of a block's forward pass of one microbatch."""
    ring: int | None
    """Smallest number of weight buffers with which forward passes never wait for weights; None if no number
    suffices, or no block is streamed."""
    forward_tokens: float | None
    """Minimum tokens of a microbatch on a rank with which two weight buffers suffice; None without streamed
    blocks."""
    microbatch_tokens: float
    """Number of tokens of a microbatch on a rank."""
    update_tokens: float | None
    """Minimum tokens of a microbatch on a rank with which passes hide the CPU's update. None if the stack updates
    after the passes, or the CPU updates nothing."""


def host_windows(question: Question, estimate: Estimate) -> HostWindows | None:
    """Busy seconds per step of a layout's channels to the host, with the seconds of passes that can hide
    them. None without offload, or over several pools."""
    layout, batches = estimate.layout, estimate.microbatches
    if not any(layout.offload) or question.has_pools:
        return None
    columns = LayoutColumns.of([layout])
    pieces, channels = Pieces(question, columns), channel_seconds(question, columns)
    passes, forward = passes_seconds(pieces), float(pieces.block.forward[0])
    hidden = question.hardware.host_overlap * float(passes[0])
    late = float(channels.updating(channels.late_update, overlaps=question.stack.drive.overlaps)[0])

    def exposed(*slow: str) -> float:
        """Exposed seconds per step if the channels named in `slow` take a tenth longer."""
        busy = channels._replace(**{name: 1.1 * getattr(channels, name) for name in slow})
        return float(exposed_seconds(question, columns, passes, busy)[0])

    tiers: list[tuple[Binding, float, float | None]] = [
        ("host memory", estimate.host_bytes, estimate.host_limit),
        ("drive", estimate.drive_bytes, estimate.drive_limit),
        ("device memory", estimate.peak_bytes, estimate.memory_limit),
    ]
    full = (name for name, size, limit in tiers if limit is not None and size > FULL_TIER * limit)
    binding: Binding = next(full, "nothing")
    if (waits := exposed()) > WORTH_NAMING * estimate.step_seconds:
        slowest: Channel = max(CHANNELS, key=lambda name: exposed(*CHANNELS[name]))
        binding = slowest
    streamed = float(blocks_with(question, columns, "streamed")[0])
    tokens = layout.mbs * question.training.sequence_length / layout.cp
    transfer = ring = forward_tokens = None
    if streamed:
        sizes = block_parameters(question, columns).items()
        copied = sum(size * weight_traffic(question, columns, part) for part, size in sizes)
        # a step has two passes of every microbatch
        transfer = float((copied / link_rate(question, columns))[0]) / (2 * batches)
        blocks_before = int(question.model.num_layers / layout.pp - streamed)
        ring = smallest_ring(forward, transfer, int(streamed), blocks_before)
        forward_tokens = tokens * transfer / forward
    hides = question.stack.overlaps_host and late > 0 and hidden > 0
    return HostWindows(
        down=float((channels.down + channels.park)[0]),
        up=float((channels.up + channels.back)[0]),
        update=float(channels.update[0]),
        read=float(channels.read[0]),
        write=float(channels.write[0]),
        hidden=hidden,
        late_hidden=hidden / batches,
        exposed=waits,
        binding=binding,
        transfer=transfer,
        forward=forward,
        ring=ring,
        forward_tokens=forward_tokens,
        microbatch_tokens=tokens,
        update_tokens=tokens * batches * late / hidden if hides else None,
    )


def smallest_ring(forward: float, transfer: float, streamed: int, blocks_before: int) -> int | None:
    """Smallest number of weight buffers, at least two, with which no forward pass waits for a streamed
    block's weights; None if no number suffices. The last `streamed` blocks are streamed; a pass takes
    `forward` seconds, a copy `transfer` seconds.

    The first block is copied while `blocks_before` other blocks run. Without such blocks it is there when its
    pass begins.
    """
    for ring in range(2, max(2, streamed) + 1):
        ends = [blocks_before * forward]
        ready = 0.0
        for block in range(streamed):
            begins = 0.0 if block < ring else ends[block - ring + 1]
            ready = 0.0 if block == 0 and not blocks_before else max(ready, begins) + transfer
            if ready > ends[-1] * (1 + 1e-9):
                break
            ends.append(ends[-1] + forward)
        else:
            return ring
    return None
