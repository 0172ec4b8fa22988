"""Bytes that offloaded blocks move in a step, busy seconds of a rank's channels to host memory and drive, and
the seconds by which these outlast the rank's passes.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import RESIDENCIES, UPDATED_BY_CPU
from cost_models.axes.offload.hosts import FP32, drive_step_bytes, ranks_on_host
from cost_models.axes.offload.residency import (
    STATES,
    STREAMED,
    blocks_with,
    gradients_leave,
    rank_parameters,
)
from cost_models.memory.device import is_own_host
from cost_models.memory.states import state_bytes, updates_parameters
from cost_models.operators.accumulation import gradient_dtype
from cost_models.question import Question
from cost_models.specs.cluster import FULL
from cost_models.specs.training import STATE_BYTES

Channel = Literal["host link down", "host link up", "CPU update", "drive read", "drive write"]
CHANNELS: dict[Channel, tuple[str, ...]] = {
    "host link down": ("down", "late_down", "park"),
    "host link up": ("up", "back"),
    "CPU update": ("update", "late_update"),
    "drive read": ("read",),
    "drive write": ("write",),
}
"""Name of a host channel → fields of `ChannelSeconds` whose seconds occupy the channel."""

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
    """Traffic per step and parameter of gradients between a rank and its host, (N,) each: bytes `down` to the
    host and `up`, CPU additions and copies. Parameters are those of the rank before ZeRO shards them."""

    down: Array
    up: Array
    sums: Array
    """Number of CPU additions of a microbatch's gradient to the sum of earlier microbatches."""
    trips: Array
    """Number of copies of a gradient to the host."""


def gradient_traffic(
    question: Question, columns: LayoutColumns, residency: str, *, experts: bool
) -> GradientTraffic:
    """Traffic per step of gradients of blocks whose states the CPU updates; `residency` is `states` or
    `streamed`, `experts` selects routed experts."""
    stack, none = question.stack, np.zeros(len(columns))
    shard = columns.shards(experts=experts, zero=1 if residency == STATES else 2)
    waits = stack.unsharded_gradients_until_sync & (columns.zero >= 2)
    every_microbatch = ~waits & ((residency == STREAMED) | gradients_leave(question, columns))
    trips = np.where(every_microbatch, columns.microbatches(question.training.global_batch), 1)
    in_full = updates_parameters(question, columns, experts=experts) | (question.training.precision in FULL)
    size = np.where(in_full, FP32, STATE_BYTES[gradient_dtype(question)])
    if not stack.offloads_gradients:
        return GradientTraffic(trips * size / shard, none, (trips - 1) / shard, trips)
    at_once = (columns.zero < 3) & (trips == 1)
    fetched = np.where(columns.zero == 3, trips, trips - 1)
    down = (np.where(at_once, 0, trips * size) + FP32) / shard
    return GradientTraffic(down, fetched * size / shard, none, trips)


def weight_traffic(question: Question, columns: LayoutColumns, *, experts: bool) -> Array:
    """(N,) bytes per step and parameter of weights copied to the device for a rank's streamed blocks, if
    every pass copies them again."""
    passes = 2 * columns.microbatches(question.training.global_batch)
    return passes * state_bytes(question, columns, experts=experts).stored


def ring_share(question: Question, columns: LayoutColumns) -> Array:
    """(N,) share of a step's passes through a rank's streamed blocks that find the block's weights already in
    a device buffer.

    Passes of a rank with one stage go back and forth (`residency.turns_of_rank`): each except the step's
    first begins with the blocks that the ring holds.
    """
    stays = question.stack.keeps_streamed_blocks & (columns.zero < 2) & (columns.vpp == 1)
    passes = 2 * columns.microbatches(question.training.global_batch)
    streamed = blocks_with(question, columns, STREAMED)
    share = np.minimum(columns.ring, streamed) / np.maximum(streamed, 1.0) * (passes - 1) / passes
    return np.where(stays, share, 0.0)


def update_seconds(question: Question) -> float:
    """Seconds per parameter of an optimizer update by all cores of a host (if the cluster is of CPUs, by one
    rank)."""
    cluster, measured = question.cluster, question.hardware.host_update_seconds
    if measured is not None:
        return measured
    if cluster.host_memory_bandwidth is None:
        return UNKNOWN_UPDATE
    return ADAM_BYTES / (ADAM_BANDWIDTH * cluster.host_memory_bandwidth)


def link_rate(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes/s of a GPU's link to host memory in each direction while both are in use. A CPU is its own
    host, and copies one way after the other."""
    cluster, measured = question.cluster, question.hardware.host_rates
    if measured is None:
        sharers = np.minimum(cluster.gpus_per_host_link, columns.ranks)
        rate: Array = (cluster.gpu.host_bandwidth or np.inf) / sharers
        return rate
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
        """(N,) seconds of a CPU update of `update` seconds together with reads and writes of the drive: the
        longer of both if they overlap, else the sum."""
        drive = self.read + self.write
        return np.maximum(update, drive) if overlaps else update + drive

    def longest(self, *, overlaps: bool) -> Array:
        """(N,) busy seconds per step of the busiest channel; `overlaps` is whether drive and CPU update run
        at the same time."""
        link: Array = np.maximum(self.down + self.park, self.up + self.back)
        return np.maximum(link, self.updating(self.update, overlaps=overlaps))

    @property
    def copies(self) -> Array:
        """(N,) seconds per step of all copies between device and host, both directions added."""
        return self.down + self.up + self.back + self.park


def channel_seconds(
    question: Question, columns: LayoutColumns, residencies: Sequence[str] = RESIDENCIES
) -> ChannelSeconds:
    """Busy seconds per step of the host channels of a rank with an even share of the blocks. Only blocks
    offloaded in one of the ways `residencies` count; the drive's seconds always cover all blocks."""
    none = np.zeros(len(columns))
    host_ranks, link = ranks_on_host(question, columns), link_rate(question, columns)
    per_parameter = update_seconds(question) * (1.0 if is_own_host(question.cluster) else host_ranks)
    copied_share = 1.0 - ring_share(question, columns)
    norms = question.stack.keeps_streamed_blocks & (columns.zero < 2)
    total = ChannelSeconds(*[none] * len(ChannelSeconds._fields))
    for experts, parameters_of in rank_parameters(question, columns):
        states, parked, streamed = (parameters_of[part] * (part in residencies) for part in RESIDENCIES)
        shard = columns.shards(experts=experts, zero=1)
        optimizer = state_bytes(question, columns, experts=experts).optimizer
        states_traffic, streamed_traffic = (
            gradient_traffic(question, columns, part, experts=experts) for part in UPDATED_BY_CPU
        )
        weights = streamed * copied_share * weight_traffic(question, columns, experts=experts)
        updated = (states + streamed * (1 + norms * NORM_BYTES / ADAM_BYTES)) / shard
        sums = states * states_traffic.sums + streamed * streamed_traffic.sums
        last_sums = sum(
            size * (one.sums / np.maximum(one.trips - 1, 1))
            for size, one in ((states, states_traffic), (streamed, streamed_traffic))
        )
        back = states * question.training.element_bytes / shard + parked * optimizer
        part = ChannelSeconds(
            down=(states * states_traffic.down + streamed * streamed_traffic.down) / link,
            up=(states * states_traffic.up + streamed * streamed_traffic.up + weights) / link,
            update=(updated + sums * ADDED_BYTES / ADAM_BYTES) * per_parameter,
            back=back / link,
            park=parked * optimizer / link,
            late_down=(
                states * states_traffic.down / states_traffic.trips
                + streamed * streamed_traffic.down / streamed_traffic.trips
            )
            / link,
            late_update=(updated + last_sums * ADDED_BYTES / ADAM_BYTES) * per_parameter,
            read=none,
            write=none,
        )
        total = ChannelSeconds(*map(np.add, total, part))
    updated_blocks = [blocks_with(question, columns, part) for part in UPDATED_BY_CPU if part in residencies]
    calls = sum(updated_blocks, none) * question.hardware.host_call_seconds * (1 + question.model.has_experts)
    total = total._replace(update=total.update + calls, late_update=total.late_update + calls)
    drive = question.cluster.drive
    if drive is None or not columns.offload_drive.any():
        return total
    read, written = drive_step_bytes(question, columns)
    return total._replace(read=host_ranks * read / drive.read, write=host_ranks * written / drive.write)


def exposed_seconds(
    question: Question, columns: LayoutColumns, passes: Array, channels: ChannelSeconds | None = None
) -> Array:
    """(N,) seconds per step by which host copies and CPU updates outlast a rank's `passes`, (N,) seconds.
    `channels` are by default those of the layouts.

    The result never falls when a channel becomes slower.
    """
    channels = channels or channel_seconds(question, columns)
    microbatches = columns.microbatches(question.training.global_batch)
    overlaps, overlap = question.stack.drive.overlaps, question.hardware.host_overlap * passes
    own, hidden = is_own_host(question.cluster), overlap * question.stack.overlaps_host
    update, none = channels.updating(channels.update, overlaps=overlaps), np.zeros_like(passes)
    streaming = none if own else np.maximum(channels.down, channels.up)
    late_update = channels.updating(channels.late_update, overlaps=overlaps)
    late = np.maximum(none if own else channels.late_down, late_update)
    begun = np.maximum(streaming, hidden) * (1 - 1 / microbatches)
    behind = reduce(np.maximum, [none, streaming - hidden, update - hidden, late + begun - hidden])
    if own:
        return channels.copies + behind
    if question.stack.overlaps_host:
        return reduce(np.maximum, [behind, channels.back, channels.park])
    return np.maximum(0.0, streaming - overlap) + update + channels.back + channels.park
