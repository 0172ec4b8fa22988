"""Host channels of an offloading layout compared with its passes: the channel that limits the step, the
smallest ring of buffers that hides weight copies, and the microbatch sizes from which transfers and updates
are hidden.

With F FLOP/s reached by a block's passes, a link of BW bytes/s and u seconds of the CPU per parameter,
weights of e bytes hide behind forward passes from (e / 2) · F / BW tokens of a microbatch on. The CPU's
update, which waits for the gradients of the last microbatch, hides behind that microbatch's passes from u · F
/ 6 tokens on. Neither depends on the model. Here both are computed from prices: F is the rate of this block,
only the share ω of the passes (from the profile) hides anything, and only offloaded blocks are updated there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload.channels import (
    CHANNELS,
    Channel,
    ChannelSeconds,
    channel_seconds,
    exposed_seconds,
    link_rate,
    weight_traffic,
)
from cost_models.axes.offload.residency import STREAMED, block_parameters, blocks_with
from cost_models.estimate import Estimate
from cost_models.pipeline.seconds import Pieces
from cost_models.question import Question

Binding = Channel | Literal["host memory", "drive", "device memory", "nothing"]
WORTH_NAMING = 0.01
"""Minimum share of the step time that waiting for a host channel takes before the channel is reported as the
bottleneck."""
FULL = 0.97
"""Share of a memory tier's limit (host, drive, device) from which the tier is reported as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWindows:
    """Busy seconds per step of a rank's channels to the host, and the conditions under which passes hide
    them."""

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
    """Minimum tokens of a microbatch on a rank with which passes hide the CPU's update; None if the stack
    updates after the passes, or the CPU updates nothing."""


def host_windows(question: Question, estimate: Estimate) -> HostWindows | None:
    """Busy seconds of an offloading layout's channels to the host, and the conditions under which passes hide
    them. None if the layout keeps nothing in host memory, or spans several pools."""
    layout, batches = estimate.layout, estimate.microbatches
    if not any(layout.offload) or question.has_pools:
        return None
    columns = LayoutColumns.of([layout])
    block, blocks = Pieces(question, columns).block, question.model.num_layers / layout.pp
    passes = blocks * batches * (block.forward + block.backward)
    forward, hidden = float(block.forward[0]), question.hardware.host_overlap * float(passes[0])
    channels = channel_seconds(question, columns)
    late = float(channels.updating(channels.late_update, overlaps=question.stack.drive.overlaps)[0])

    def exposed(busy: ChannelSeconds) -> float:
        return float(exposed_seconds(question, columns, passes, busy)[0])

    tiers: list[tuple[Binding, float, float | None]] = [
        ("host memory", estimate.host_bytes, estimate.host_limit),
        ("drive", estimate.drive_bytes, estimate.drive_limit),
        ("device memory", estimate.peak_bytes, estimate.memory_limit),
    ]
    full = (name for name, size, limit in tiers if limit is not None and size > FULL * limit)
    binding: Binding = next(full, "nothing")
    if (waits := exposed(channels)) > WORTH_NAMING * estimate.step_seconds:
        slower = {
            name: exposed(channels._replace(**{own: 1.1 * getattr(channels, own) for own in busy}))
            for name, busy in CHANNELS.items()
        }
        binding, _ = max(slower.items(), key=lambda item: item[1])
    streamed = float(blocks_with(question, columns, STREAMED)[0])
    transfer: float | None = None
    if streamed:  # a step has two passes of every microbatch
        sizes = [
            size * weight_traffic(question, columns, experts=experts)
            for experts, size in block_parameters(question, columns)
        ]
        transfer = float((sum(sizes) / link_rate(question, columns))[0]) / (2 * batches)
    tokens = layout.mbs * question.training.sequence_length / layout.cp
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
        ring=None
        if transfer is None
        else smallest_ring(forward, transfer, int(streamed), int(blocks - streamed)),
        forward_tokens=None if transfer is None else tokens * transfer / forward,
        microbatch_tokens=tokens,
        update_tokens=tokens * batches * late / hidden if hides else None,
    )


def smallest_ring(forward: float, transfer: float, streamed: int, before: int) -> int | None:
    """Smallest number of weight buffers, two or more, with which no forward pass of the `streamed` last
    blocks waits for a copy; None if no number suffices. A pass takes `forward` seconds, a copy `transfer`
    seconds.

    The first block is copied while `before` other blocks run; without such blocks it is there when its pass
    begins.
    """
    for ring in range(2, max(2, streamed) + 1):
        ends = [before * forward]
        ready = 0.0
        for block in range(streamed):
            begins = 0.0 if block < ring else ends[block - ring + 1]
            ready = 0.0 if block == 0 and not before else max(ready, begins) + transfer
            if ready > ends[-1] * (1 + 1e-9):
                break
            ends.append(ends[-1] + forward)
        else:
            return ring
    return None
