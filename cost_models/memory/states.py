"""Bytes of weights, gradients and optimizer states per parameter, under ZeRO 0–3.

Rajbhandari et al. 2020, table 1, with the types as variables: 16-bit training with Adam holds 2 (weight) + g (gradient)
+ 4 (master) + 8 (moments) bytes; stage 1 divides the last two by d, stage 2 the gradients too, stage 3 everything. Here
d is the size of the shard group: with context parallelism d·c ranks, with hybrid sharding fewer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.accumulation import accumulates_apart, gradient_dtype, reduces_every_microbatch
from cost_models.operators.parameters import total_parameters
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES

MOMENTS = {"adamw": 2, "lamb": 2, "sgd": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter of the rank's share of the model, each (N,)."""

    weights: Array
    gradients: Array
    optimizer: Array
    gathered: Array
    """Unsharded weights of a block while it computes (ZeRO-3), bytes per parameter."""
    scattering: Array
    """Full gradients on their way into the reduction (ZeRO-2 and 3), bytes per parameter."""
    update: Array
    """Temporaries of the optimizer step, bytes per parameter."""
    updated: Array
    """Weights that the optimizer step writes, bytes per parameter: beside a master copy, or those it works on."""
    late_gradients: Array
    """Gradients that exist only once activations are gone, bytes per parameter: those of a step's only microbatch."""
    stored: Array
    """Weights of the rank's shard as they are kept, bytes per parameter: what a stream from host memory brings."""
    reduced: Array
    """Shards of gradients that a reduction makes beside those counted, bytes per parameter (`fully_shard`)."""

    worked_on: Array
    """Weights that the step works on where no master copy is among the states, bytes per parameter."""

    @property
    def total(self) -> Array:
        """What stays between steps, and the gradients."""
        return self.weights + self.gradients + self.optimizer


class Held(NamedTuple):
    """What the device holds of a parameter's states: 1, or 0 for what an axis keeps elsewhere; (N,) or one number."""

    optimizer: Array | float = 1.0
    weights: Array | float = 1.0
    gradients: Array | float = 1.0
    reduced: Array | float = 1.0
    """Gradients that a reduction makes."""


ALL_HELD = Held()


def state_bytes(
    question: Question, columns: LayoutColumns, *, experts: bool = False, held: Held = ALL_HELD
) -> StateBytes:
    """Bytes per parameter on the device under each layout's ZeRO stage, of routed experts or of everything else."""
    stack, training = question.stack, question.training
    compute = training.element_bytes
    mixed = training.precision != "fp32"
    gradient = STATE_BYTES[gradient_dtype(question)] if mixed else 4.0
    extra_gradient = compute if accumulates_apart(question) and mixed else 0.0
    moments = MOMENTS[training.optimizer] * STATE_BYTES[training.moment_dtype or training.state_dtype]
    ranks = (columns.expert_shard if experts else columns.shard).astype(np.float64)
    sharded = (columns.zero >= 2) & ((ranks > 1) | _wrapped_alone(question, columns, experts))
    shard = {stage: np.where(columns.zero >= stage, ranks, 1.0) for stage in (1, 2)}
    others = (columns.expert_replicas if experts else columns.replicas) > 1
    bucketed = np.where(stack.reducer_buckets & (columns.zero == 0) & others, compute * mixed, 0.0)
    copied = np.where((columns.zero == 1) & (ranks > 1), stack.gather_copies * compute, 0.0)
    each = reduces_every_microbatch(question, columns)
    gradient_shard = np.where(each, shard[2], 1.0)
    late = sharded & stack.fully_shard & (columns.microbatches(training.global_batch) == 1)
    weights, master, written, stored = _weights_and_master(question, columns, ranks, sharded)
    return StateBytes(
        weights=held.weights * weights,
        gradients=held.gradients
        * np.where(late, 0.0, (gradient + extra_gradient) / gradient_shard + bucketed),
        optimizer=held.optimizer * (master + moments) / shard[1],
        gathered=np.where(sharded & (columns.zero == 3), compute, 0.0),
        scattering=np.where(sharded, gradient, 0.0),
        worked_on=np.where(master > 0, 0.0, written) / shard[1],
        update=held.optimizer * _temporary_bytes(question, columns, shard[1]) / shard[1] + copied,
        updated=written / shard[1],
        stored=stored,
        late_gradients=held.gradients * np.where(late, gradient / ranks, 0.0),
        reduced=held.reduced * np.where(sharded & stack.fully_shard & (late | ~each), gradient / ranks, 0.0),
    )


def _weights_and_master(
    question: Question, columns: LayoutColumns, ranks: Array, sharded: Bools
) -> tuple[Array, Array, Array, Array]:
    """(N,) bytes of weights; of a master copy that is optimizer state beside them; of the weights that the step writes,
    before these two are divided; of the rank's shard of weights as it is kept. `sharded` are ZeRO-2 and 3.

    With w bytes to compute with and m to update: where the shards are the parameters (`fully_shard`, and every trainer
    without a master copy) m/d, and from them gathered w, which ZeRO-2 holds all step and ZeRO-3 a block at a time, as
    `gathered` counts (Zhao et al. 2023, PyTorch FSDP, sections 3.2 and 4.4). Elsewhere w, or w/d under ZeRO-3, beside
    a master copy of m (Rajbhandari et al. 2020).
    """
    stack, training = question.stack, question.training
    mixed = training.precision != "fp32"
    compute = training.element_bytes
    weight = compute if stack.master_weights or not mixed else 4.0
    master = STATE_BYTES[training.state_dtype] if stack.master_weights and mixed else 0.0
    updated = master or weight
    remainders = stack.master_remainders and master > weight and training.precision != "fp16"
    kept = master - weight if remainders else master
    own = sharded & (stack.fully_shard or not stack.master_weights)
    apart = updated / ranks + np.where(columns.zero == 3, 0.0, compute)
    beside = weight / np.where(columns.zero == 3, ranks, 1.0)
    stored = np.where(own, updated / ranks, beside)
    return np.where(own, apart, beside), np.where(own, 0.0, kept), np.where(own, updated, weight), stored


def updates_parameters(question: Question, columns: LayoutColumns, *, experts: bool) -> Bools:
    """(N,): whether the update works on the parameters themselves, and no 16-bit copy of them is kept."""
    ranks = columns.expert_shard if experts else columns.shard
    sharded = (columns.zero >= 2) & ((ranks > 1) | _wrapped_alone(question, columns, experts))
    return (sharded & question.stack.fully_shard) | (not question.stack.master_weights)


def _temporary_bytes(question: Question, columns: LayoutColumns, shard: Array) -> Array:
    """(N,) bytes per parameter of the optimizer's shard that the update holds; an fp32 accumulator needs no such copy.

    DeepSpeed's ZeRO-3 updates a group of so many parameters of the shard at a time.
    """
    each = 0.0 if accumulates_apart(question) else question.stack.optimizer_temporary_bytes
    group = question.stack.update_group
    if group is None:
        return np.full(len(columns), each)
    held = total_parameters(question.whole or question.model) / (columns.tp * columns.pp * columns.ep * shard)
    return each * np.where(columns.zero == 3, np.minimum(1.0, group / held), 1.0)


def _wrapped_alone(question: Question, columns: LayoutColumns, experts: bool) -> Bools:
    """(N,) experts that only this rank holds: `fully_shard` treats them as it does the rest, with a shard of all."""
    return (columns.replicas > 1) & experts & question.stack.fully_shard
