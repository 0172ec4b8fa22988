"""Seconds that a rank's channels to host memory and drive are busy in a step, and what of them outlasts its passes.

    down      gradients, as `axes.offload.traffic` counts them
    up        weights of streamed blocks for every pass, and gradients that the device adds to
    update    the CPU's optimizer step of every parameter that it owns: u seconds a parameter of the whole host, and so
              much for each block
    back      updated weights of blocks with `states`, and parked states, on their way up
    park      parked states on their way down
    read      states on the drive, for their update
    write     the same, updated

    exposed = max(max(down, up, U) − ω · passes, late, back, park)     where updates run behind the passes
            = max(0, max(down, up) − ω · passes) + U + back + park     where they come after them
            = all copies + max(0, U − ω · passes, late)                on a CPU, which makes its copies itself
    U       = max(update, read + write)     where chunks are read and written beside the update of others
            = update + read + write         where they are not
    late    = max(down₁, U₁) + (1 − 1 / m) · max(down, up, ω · passes) − ω · passes       of m microbatches

A drive reads or writes: its times add up. A block is updated once its last gradient is there, so updates (U₁: U without
the additions of gradients of earlier microbatches) and the last microbatch's gradients (down₁) begin when the passes of
the others are over, and what the link carried for them. What comes back or is parked does so after all passes, both
ways at once.

`passes` are the forward and backward passes of an even share of the blocks, without what is recomputed: a layout's own,
whatever its placement. u = 28 B / (memory bandwidth · share) is the traffic of Adam (Ren et al. 2021, ZeRO-Offload,
section 5.1: it reads weight, gradient and moments and writes three of them in fp32), ω a constant of the profile.
Sun et al. 2022 (STRONGHOLD, section III) and Rajbhandari et al. 2021 (ZeRO-Infinity, section 5) describe the streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Literal

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import RESIDENCIES, UPDATED_BY_CPU
from cost_models.axes.offload.residency import held, parameters_by_residency
from cost_models.axes.offload.traffic import (
    ADDED_BYTES,
    drive_step_bytes,
    gradient_traffic,
    stays_in_ring,
    weight_traffic,
)
from cost_models.memory.device import is_own_host
from cost_models.memory.states import state_bytes
from cost_models.question import Question

Channel = Literal["host link down", "host link up", "CPU update", "drive read", "drive write"]
CHANNELS: dict[Channel, tuple[str, ...]] = {
    "host link down": ("down", "late_down", "park"),
    "host link up": ("up", "back"),
    "CPU update": ("update", "late_update"),
    "drive read": ("read",),
    "drive write": ("write",),
}
"""What of `ChannelSeconds` each is busy with."""

ADAM_BYTES = 28.0
"""Bytes of host memory that the update of a parameter in fp32 moves."""
NORM_BYTES = 4.0
"""That the norm of a gradient in fp32 reads."""
ADAM_BANDWIDTH = 0.43
"""Share of a host's memory bandwidth that it reaches: 0.257 ns a parameter on a DGX-2, whose two sockets have 256 GB/s
(Ren et al. 2021, table 4: 2.57 s for 10 B parameters)."""
UNKNOWN_UPDATE = 2.57e-10
"""Seconds per parameter on a host whose bandwidth nobody says: the same."""


def _nothing() -> Array:
    return np.zeros(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSeconds:
    """Busy seconds of a rank's channels in a step, (N,) each."""

    down: Array
    up: Array
    update: Array
    back: Array
    park: Array
    late_down: Array
    """What of `down` waits for the last microbatch."""
    late_update: Array
    """The same of `update`."""
    read: Array = field(default_factory=_nothing)
    write: Array = field(default_factory=_nothing)

    def of_update(self, *, overlaps: bool) -> Array:
        """(N,) of the CPU's update with what it takes from the drive and back: beside one another, or in turn."""
        return self._with_drive(self.update, overlaps=overlaps)

    def of_late_update(self, *, overlaps: bool) -> Array:
        """(N,) the same of what waits for the last microbatch."""
        return self._with_drive(self.late_update, overlaps=overlaps)

    @property
    def copies(self) -> Array:
        """(N,) of all that goes either way."""
        return self.down + self.up + self.back + self.park

    def _with_drive(self, update: Array, *, overlaps: bool) -> Array:
        drive = self.read + self.write
        return np.maximum(update, drive) if overlaps else update + drive

    def longest(self, *, overlaps: bool) -> Array:
        """(N,) of the busiest one."""
        link: Array = np.maximum(self.down + self.park, self.up + self.back)
        return np.maximum(link, self.of_update(overlaps=overlaps))

    def slower(self, channel: Channel, times: float) -> ChannelSeconds:
        """The same with one channel so many times slower."""
        return replace(self, **{name: times * getattr(self, name) for name in CHANNELS[channel]})

    @classmethod
    def least(cls, some: Sequence[ChannelSeconds]) -> ChannelSeconds:
        """The least seconds of each channel over several records."""
        return cls(
            **{own.name: reduce(np.minimum, [getattr(one, own.name) for one in some]) for own in fields(cls)}
        )


def update_seconds(question: Question) -> float:
    """Seconds in which a whole host updates one parameter, and on a CPU one rank."""
    cluster, measured = question.cluster, question.hardware.host_update_seconds
    if measured is not None:
        return measured
    if cluster.host_memory_bandwidth is None:
        return UNKNOWN_UPDATE
    return ADAM_BYTES / (ADAM_BANDWIDTH * cluster.host_memory_bandwidth)


def link_rate(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes/s that a GPU has of its link to host memory, each way while both carry; a CPU is its own host, and
    copies one after the other."""
    cluster = question.cluster
    if (measured := question.hardware.host_rates) is not None:
        here = _ranks_here(question, columns)
        at = np.searchsorted([one.ranks for one in measured.copies], here).clip(max=len(measured.copies) - 1)
        own = [
            2 / (1 / one.down + 1 / one.up) if is_own_host(cluster) else one.both for one in measured.copies
        ]
        found: Array = np.array(own)[at]
        return found
    sharers = np.minimum(cluster.gpus_per_host_link, columns.ranks)
    rate: Array = (cluster.gpu.host_bandwidth or np.inf) / sharers
    return rate


def _ranks_here(question: Question, columns: LayoutColumns) -> Array:
    """(N,) ranks that share a host."""
    return np.minimum(columns.ranks, question.cluster.gpus_per_node).astype(float)


def channel_seconds(question: Question, columns: LayoutColumns) -> ChannelSeconds:
    """What the blocks of a rank, spread evenly, move and have updated."""
    total = _of_blocks(question, columns, RESIDENCIES)
    drive = question.cluster.drive
    if drive is None or not columns.offload_drive.any():
        return total
    read, written = drive_step_bytes(question, columns)
    here = _ranks_here(question, columns)
    return replace(total, read=here * read / drive.read, write=here * written / drive.write)


def seconds_by_residency(question: Question, columns: LayoutColumns) -> dict[str, ChannelSeconds]:
    """What of them is of blocks with each residency; those of the drive belong to all that the CPU updates."""
    return {part: _of_blocks(question, columns, (part,)) for part in RESIDENCIES}


def _of_blocks(question: Question, columns: LayoutColumns, residencies: Sequence[str]) -> ChannelSeconds:
    """Of a rank's blocks with one of these residencies, but for the drive."""
    each = [
        _of_parameters(
            question,
            columns,
            {
                part: own if part in residencies else np.zeros(len(columns))
                for part, own in parameters_of.items()
            },
            experts=experts,
        )
        for experts, parameters_of in parameters_by_residency(question, columns)
    ]
    names = [own.name for own in fields(ChannelSeconds)]
    total = ChannelSeconds(**{name: sum((getattr(one, name) for one in each), _nothing()) for name in names})
    calls = _calls(question, columns, residencies)
    return replace(total, update=total.update + calls, late_update=total.late_update + calls)


def _calls(question: Question, columns: LayoutColumns, residencies: Sequence[str]) -> Array:
    """(N,) seconds of a rank's updates whatever their sizes: one of each block, and one of its experts."""
    blocks, each = question.model.num_layers / columns.pp, question.hardware.host_call_seconds
    updated = [held(columns, part, blocks) for part in UPDATED_BY_CPU if part in residencies]
    return sum(updated, _nothing()) * each * (1 + question.model.has_experts)


def _of_parameters(
    question: Question, columns: LayoutColumns, parameters_of: dict[str, Array], *, experts: bool
) -> ChannelSeconds:
    """Of so many parameters of each residency on a rank."""
    training = question.training
    states, parked, streamed = (parameters_of[part] for part in RESIDENCIES)
    ranks = columns.expert_shard if experts else columns.shard
    shard = np.where(columns.zero >= 1, ranks, 1)
    optimizer = state_bytes(question, columns, experts=experts).optimizer
    of_states, of_streamed = (
        gradient_traffic(question, columns, residency=part, experts=experts)
        for part in ("states", "streamed")
    )
    blocks = held(columns, "streamed", question.model.num_layers / columns.pp)
    comes = 1.0 - stays_in_ring(question, columns, blocks)
    down = states * of_states.down + streamed * of_streamed.down
    up = (
        states * of_states.up
        + streamed * of_streamed.up
        + streamed * comes * weight_traffic(question, columns, experts=experts)
    )
    back = states * training.element_bytes / shard + parked * optimizer
    sums = states * of_states.sums + streamed * of_streamed.sums
    link = link_rate(question, columns)
    sharers = 1.0 if is_own_host(question.cluster) else _ranks_here(question, columns)
    each = update_seconds(question) * sharers
    norms = question.stack.keeps_streamed_blocks & (columns.zero < 2)
    updated = (states + streamed * (1 + norms * NORM_BYTES / ADAM_BYTES)) / shard
    last = states * of_states.last_sum + streamed * of_streamed.last_sum
    return ChannelSeconds(
        down=down / link,
        up=up / link,
        back=back / link,
        park=parked * optimizer / link,
        update=(updated + sums * ADDED_BYTES / ADAM_BYTES) * each,
        late_down=(
            states * of_states.down / of_states.trips + streamed * of_streamed.down / of_streamed.trips
        )
        / link,
        late_update=(updated + last * ADDED_BYTES / ADAM_BYTES) * each,
    )


def exposed_seconds(question: Question, columns: LayoutColumns, passes: Array) -> Array:
    """(N,) seconds by which the channels outlast what they run behind: (N,) seconds of a rank's passes in a step."""
    microbatches = columns.microbatches(question.training.global_batch)
    return left_in_sight(question, channel_seconds(question, columns), passes, microbatches)


def left_in_sight(
    question: Question, channels: ChannelSeconds, passes: Array, microbatches: Array | Ints
) -> Array:
    """The same of known channels: it rises with each of them."""
    beside, overlap = question.stack.drive.overlaps, question.hardware.host_overlap * passes
    own, hidden = is_own_host(question.cluster), overlap * question.stack.overlaps_host
    update, none = channels.of_update(overlaps=beside), np.zeros_like(passes)
    streaming = none if own else np.maximum(channels.down, channels.up)
    late = np.maximum(none if own else channels.late_down, channels.of_late_update(overlaps=beside))
    begun = np.maximum(streaming, hidden) * (1 - 1 / microbatches)
    behind = reduce(np.maximum, [none, streaming - hidden, update - hidden, late + begun - hidden])
    if own:
        return channels.copies + behind
    if question.stack.overlaps_host:
        return reduce(np.maximum, [behind, channels.back, channels.park])
    return np.maximum(0.0, streaming - overlap) + update + channels.back + channels.park
