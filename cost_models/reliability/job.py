"""A training job, input of its forecast.

What a start of the executor takes by the parts that `run` reports, from constants (`data/errors/start.yaml`).

    processes   CPU seconds of torchrun's process and then of a rank's, until it can join: Python, torch
    groups      request · ranks · (Σ over a rank's groups of n ranks (1 + 2 ⌈log2 n⌉) + 2 (⌈log2 ranks⌉ − 1))
    weights     seconds to build a block, times a rank's; and, unless they are loaded, to draw what the rank updates
    first_step  what it takes longer than later ones on the host: torch works out how operators on shards are split

Draws on a GPU move `draw_bytes` of its memory for an element; on a CPU their pieces stay in a cache.

One process serves the store that ranks meet at, so that requests of all ranks come one after another. A rank asks for
the addresses of those with whom it speaks: log2 n of a group for a sum or a gathering, as many more of all ranks, but
for its neighbour, for a barrier. By default
each rank asks for all others of each of its groups, 1 + 2 n requests, which grows as the square of the ranks (Jiang et
al. 2024, "MegaScale", section 3.5, counts barriers that do, too: 1,047 s on 2,048 GPUs, below 5 s without).

Left out: the way of a request, whose seconds overlap with those of others; the handshakes of torch and NCCL; what a
GPU's first step loads and allocates.

What the executor takes to read a checkpoint: verified, read and, where several ranks hold the same, sent.

Every file is read by one of n ranks, which forms its digest. Then each rank reads the pieces that it holds; or, where
links are faster than its share of the storage, one of the ranks that hold the same reads a piece and sends it to the
others (Jiang et al. 2024, "MegaScale", section 4.4). Of B bytes, from storage that all together read at S:

    verifying = B / S + digest · B / n
    reading   = min(Σ copies · B / S,  B / S + broadcast of what a rank holds)

The sums are over routed experts and everything else. Left out: what the hosts' page caches keep of the first reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.collectives import broadcast_seconds
from cost_models.communication.topology import Groups, axis_groups
from cost_models.defaults import OWN_STACKS
from cost_models.estimate import Breakdown
from cost_models.files import read_data
from cost_models.memory.device import is_own_host
from cost_models.memory.states import moment_bytes
from cost_models.operators.parameters import (
    parameters,
    total_parameters,
    trained_parameters,
    unfrozen_parameters,
)
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES


def group_sizes(layout: Layout) -> tuple[int, ...]:
    """Sizes of the process groups that each rank joins at start-up, for a layout. They are all ranks (twice, for
    checkpoints) and one group along each axis of its parameters."""
    shard = layout.shard_group
    return (layout.num_gpus, layout.num_gpus, layout.pp, layout.data_ranks // shard, shard, layout.tp)


def requests(sizes: Sequence[int]) -> int:
    """Number of a rank's requests to the rendezvous store for process groups of `sizes` ranks; the first group
    has all ranks."""
    return sum(1 + 2 * ceil(log2(size)) for size in sizes) + 2 * max(0, ceil(log2(sizes[0])) - 1)


def requests_of_all_pairs(sizes: Sequence[int]) -> int:
    """Number of a rank's requests to the rendezvous store if the rank connects to all others of its groups."""
    return sum(1 + 2 * size for size in sizes)


def store_seconds(ranks: int, requests_of_rank: int) -> float:
    """Seconds in which the rendezvous store serves the requests of all ranks one after another."""
    return ranks * requests_of_rank * float(read_data("errors/start")["request"])


def start_up(question: Question, layout: Layout, *, draws: bool = True) -> Breakdown:
    """Start-up seconds of our executor by part; weights are drawn if `draws`, else loaded."""
    seconds = read_data("errors/start")
    blocks, split = question.model.num_layers / layout.pp, layout.zero >= 2 or layout.tp > 1
    weights = blocks * float(seconds["split_block" if split else "block"])
    if draws:
        elements = total_parameters(question.model) * copies(question, layout) / layout.num_gpus
        on_gpu = float(seconds["draw_bytes"]) / question.cluster.gpu.memory_bandwidth
        weights += elements * (float(seconds["draw"]) if is_own_host(question.cluster) else on_gpu)
    groups = store_seconds(layout.num_gpus, requests(group_sizes(layout)))
    processes = float(seconds["processes"])
    first_step = blocks * float(seconds["first_split_block"]) if split else 0.0
    return Breakdown(processes=processes, groups=groups, weights=weights, first_step=first_step)


class Resume(NamedTuple):
    """Bytes and seconds with which the ranks of a layout read a checkpoint after a restart."""

    checkpoint_bytes: float
    """Bytes of the checkpoint."""
    held_bytes: float
    """Bytes of state that all ranks hold together, more than the checkpoint if several ranks hold the same
    state."""
    ranks: int
    sending: float
    """Seconds to send each part of the checkpoint from the rank that read it to the other ranks that hold
    it."""

    def reads_once(self, storage: float) -> bool:
        """Whether reading each part once and sending it to the other ranks is faster than every rank reading.
        `storage` is bytes/s for all readers together."""
        return (self.held_bytes - self.checkpoint_bytes) / storage > self.sending

    def seconds(self, storage: float) -> float:
        """Seconds until every rank has read its state from storage of `storage` bytes/s."""
        once = self.reads_once(storage)
        reading = self.checkpoint_bytes / storage + self.sending if once else self.held_bytes / storage
        digest = float(read_data("errors/start")["digest"]) * self.checkpoint_bytes / self.ranks
        return self.checkpoint_bytes / storage + digest + reading


def resume_of(question: Question, layout: Layout, checkpoint_size: float) -> Resume:
    """Compute the bytes read and the seconds of sending with which the ranks of a layout load a checkpoint of
    `checkpoint_size` bytes."""
    ranks, sending = layout.num_gpus, 0.0
    for share, holders in _parts(question, layout):
        message = np.array([checkpoint_size * share * float(holders.size[0]) / ranks])
        sending += float(broadcast_seconds(message, holders, question.hardware)[0])
    held = checkpoint_size * copies(question, layout)
    return Resume(checkpoint_bytes=checkpoint_size, held_bytes=held, ranks=ranks, sending=sending)


def copies(question: Question, layout: Layout) -> float:
    """Mean number of ranks that hold, and update, the same parameter."""
    return sum(share * float(holders.size[0]) for share, holders in _parts(question, layout))


def _parts(question: Question, layout: Layout) -> Iterator[tuple[float, Groups]]:
    """Yield (share of the model's parameters, groups of ranks with equal copies) for all but routed experts, then
    for routed experts."""
    model, groups = question.model, axis_groups(question.cluster, LayoutColumns.of([layout]))
    routed = model.num_layers * float(parameters(model, np.array([1])).experts[0]) / total_parameters(model)
    for share, holders in ((1 - routed, groups.data), (routed, groups.experts)):
        yield share, holders.replicas if layout.zero == 0 else holders.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job as input of a reliability forecast, with steps, step time and checkpoint size."""

    steps: int
    step_seconds: float
    checkpoint_bytes: float
    """Bytes of a checkpoint, with weights and states of the entire model once."""
    gpus: int
    nodes: int
    host_bandwidth: float | None
    """Bytes/s of a GPU's share of the link to its host; None if unknown."""
    watts: float | None = None
    """Power limit of a GPU in watts."""
    start: Breakdown | None = None
    """Seconds of the first start by part. None: unknown."""
    restart: Breakdown | None = None
    """Seconds of a restart by part; no start is faster, as it draws no weights. None: unknown."""
    resume: Resume | None = None
    """Bytes and seconds with which a restart reads a checkpoint; None: each byte is read once."""

    @property
    def start_seconds(self) -> float:
        """Seconds of the job's first start; 0 where they are unknown."""
        return 0.0 if self.start is None else self.start.total

    def reading(self, storage: float) -> float:
        """Seconds in which a restart reads a checkpoint at `storage` bytes/s."""
        return self.checkpoint_bytes / storage if self.resume is None else self.resume.seconds(storage)

    @property
    def seconds(self) -> float:
        """Seconds of all training steps without failures, saving or start."""
        return self.steps * self.step_seconds


def job_of(question: Question, step_seconds: float, layout: Layout | None = None) -> Job:
    """Build the job to forecast from a planning question and the seconds of a step. For a `layout` that our own
    executor runs, with its starts and how it reads checkpoints.

    Every rank saves an even share of the checkpoint, as torch.distributed.checkpoint spreads what several ranks hold.
    """
    training, cluster = question.training, question.cluster
    assert training.tokens is not None
    link = min((one.cluster.gpu.host_bandwidth or math.inf) for one in question.pools)
    job = Job(
        steps=math.ceil(training.tokens / training.tokens_per_step),
        step_seconds=step_seconds,
        checkpoint_bytes=checkpoint_bytes(question),
        gpus=cluster.num_gpus,
        nodes=cluster.nodes,
        host_bandwidth=None if math.isinf(link) else link / cluster.gpus_per_host_link,
        watts=cluster.gpu_watts or cluster.gpu.tdp_watts,
    )
    if layout is None or question.stack.name not in OWN_STACKS:
        return job
    start, restart = (start_up(question, layout, draws=drawn) for drawn in (True, False))
    resume = resume_of(question, layout, job.checkpoint_bytes)
    return replace(job, start=start, restart=restart, resume=resume)


def checkpoint_bytes(question: Question) -> float:
    """Size of a checkpoint in bytes, with weights, master weights and optimizer moments. It is 14 a parameter
    with Adam in 16 bits over fp32; of adapters alone where all else is frozen."""
    training = question.training
    master = STATE_BYTES[training.state_dtype] if training.element_bytes < 4 else 0.0
    state_per_parameter = training.element_bytes + master + moment_bytes(question)
    if training.tuning is not None:
        return trained_parameters(question.model, training.tuning) * state_per_parameter
    elements = total_parameters(question.model)
    if training.freeze:
        states = state_per_parameter - training.element_bytes
        return elements * training.element_bytes + unfrozen_parameters(question.model, training) * states
    return elements * state_per_parameter
