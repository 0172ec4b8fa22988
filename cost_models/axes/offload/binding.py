"""Windows of the channels to host memory: which channel binds, how long a ring hides weights, and from how many tokens
on a step waits for none of them.

With F FLOP/s reached by a block's passes, a link of BW bytes/s and u seconds of the CPU for a parameter, weights of e
bytes hide behind the forward passes from (e / 2) · F / BW tokens of a microbatch on. The CPU's update, which waits for
the gradients of the last microbatch, hides behind the passes of that from u · F / 6 tokens on. Neither depends on the
model. Here both are as priced: F is what this block reaches, of the passes the share ω of the profile hides something,
and only what is offloaded is updated there.
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
"""Share of a step from which exposed seconds of a channel bind."""
FULL = 0.97
"""Share of a tier from which it counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWindows:
    """Seconds of a step of the fullest rank, and what would hide them."""

    down: float
    up: float
    """Busy seconds of the link each way, those after the update among them."""
    update: float
    read: float
    """From the drive; 0 where nothing lies there."""
    write: float
    hidden: float
    """Seconds of the passes that can hide any of them."""
    late_hidden: float
    """Those of the last microbatch, whose gradients updates wait for."""
    exposed: float
    """Seconds that a step waits for them."""
    binding: Binding
    transfer: float | None
    """Seconds in which a streamed block's weights come up; None where none is streamed."""
    forward: float
    """Seconds of a block's forward pass of one microbatch."""
    ring: int | None
    """Least buffers with which forward passes never wait for weights once they run; None: no ring does, or none is
    streamed."""
    forward_tokens: float | None
    """Tokens of a microbatch on a rank from which two buffers suffice."""
    microbatch_tokens: float
    """Tokens of a microbatch on a rank."""
    update_tokens: float | None
    """Tokens of a microbatch on a rank from which the CPU's update hides; None where the stack updates after the
    passes, or the CPU updates nothing."""


def host_windows(question: Question, estimate: Estimate) -> HostWindows | None:
    """Windows of a placed layout; None of one that keeps nothing in host memory, or that lies over pools."""
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

    binding: Binding = "nothing"
    if (waits := exposed(channels)) > WORTH_NAMING * estimate.step_seconds:
        slower = {
            name: channels._replace(**{own: 1.1 * getattr(channels, own) for own in busy})
            for name, busy in CHANNELS.items()
        }
        costliest = max(CHANNELS, key=lambda name: exposed(slower[name]))
        binding = costliest
    else:
        tiers: list[tuple[Binding, float, float | None]] = [
            ("host memory", estimate.host_bytes, estimate.host_limit),
            ("drive", estimate.drive_bytes, estimate.drive_limit),
            ("device memory", estimate.peak_bytes, estimate.memory_limit),
        ]
        full = (name for name, size, limit in tiers if limit is not None and size > FULL * limit)
        binding = next(full, binding)
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
    """Least buffers, from two on, with which no forward pass of `streamed` blocks waits, the first of which comes while
    `before` other blocks run; without such, the first block is there when its pass begins. None: no number does."""
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
