"""Bytes over the link to host memory in a step, for a parameter whose states live there: gradients down, weights up.

Weights of streamed blocks come up as they are kept, for the forward and for the backward pass of every microbatch, but
for those that stayed in the ring:
`fully_shard` casts what it has fetched (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, all_gather_inputs), and so
does FSDP 1 (torch/distributed/fsdp/_flat_param.py, _use_low_precision_shard); with a master copy 16 bits come.

Gradients that leave the device do so after every microbatch that reduces them. The CPU adds them to those before
(`_fsdp_collectives.py`, foreach_reduce: in the parameter's type), or the device does: DeepSpeed brings what was there
up, and sends the sum in fp32 once more when the last has come (zero/stage3.py, partition_grads; under ZeRO-1 and 2
stage_1_and_2.py, copy_grads_in_partition, whose only microbatch goes down in fp32 at once).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.memory.states import gradients_leave, state_bytes, updates_parameters
from cost_models.operators.accumulation import gradient_dtype
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES

Array = npt.NDArray[np.float64]

FP32 = 4.0
ADDED_BYTES = 12.0
"""Bytes of host memory that adding two gradients moves: both are read, one is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientTraffic:
    """Of a parameter of the rank's whole model, (N,) each."""

    down: Array
    up: Array
    sums: Array
    """Times that the CPU adds a gradient to what was there."""
    trips: Array
    """Times that it goes down."""

    @property
    def last_sum(self) -> Array:
        """Of `sums` what the last trip adds."""
        return self.sums / np.maximum(self.trips - 1, 1)


def gradient_traffic(
    question: Question, columns: LayoutColumns, *, residency: str, experts: bool
) -> GradientTraffic:
    """What the gradient of a parameter with `states` or `streamed` moves in a step."""
    stack = question.stack
    ranks = columns.expert_shard if experts else columns.shard
    shard = np.where(columns.zero >= (1 if residency == "states" else 2), ranks, 1)
    waits = stack.unsharded_gradients_until_sync & (columns.zero >= 2)
    every = ~waits & (True if residency == "streamed" else gradients_leave(question, columns))
    trips = np.where(every, columns.microbatches(question.training.global_batch), 1)
    in_full = updates_parameters(question, columns, experts=experts) | (question.training.precision == "fp32")
    size = np.where(in_full, FP32, STATE_BYTES[gradient_dtype(question)])
    if not stack.sums_gradients_on_device:
        return GradientTraffic(
            down=trips * size / shard, up=np.zeros(len(columns)), sums=(trips - 1) / shard, trips=trips
        )
    at_once = (columns.zero < 3) & (trips == 1)
    fetched = np.where(columns.zero == 3, trips, trips - 1)
    return GradientTraffic(
        down=(np.where(at_once, 0, trips * size) + FP32) / shard,
        up=fetched * size / shard,
        sums=np.zeros(len(columns)),
        trips=trips,
    )


def stays_in_ring(question: Question, columns: LayoutColumns, streamed: Array) -> Array:
    """(N,) share of a step's passes through a rank's streamed blocks whose weights are there from the pass before.

    Passes of a rank with one stage go back and forth (`tiers.window`): each but the step's first begins on the blocks
    that the ring holds.
    """
    stays = question.stack.keeps_streamed_blocks & (columns.zero < 2) & (columns.vpp == 1)
    passes = 2 * columns.microbatches(question.training.global_batch)
    share = np.minimum(columns.ring, streamed) / np.maximum(streamed, 1.0) * (passes - 1) / passes
    return np.where(stays, share, 0.0)


def weight_traffic(question: Question, columns: LayoutColumns, *, experts: bool) -> Array:
    """(N,) bytes that come up for every parameter of a rank's streamed blocks in a step, of which none stays."""
    passes = 2 * columns.microbatches(question.training.global_batch)
    up: Array = passes * state_bytes(question, columns, experts=experts).stored
    return up
