"""Bytes of weights, gradients and optimizer states per parameter, under ZeRO 0–3.

Rajbhandari et al. 2020, table 1, with the types as variables: 16-bit training with Adam holds 2 (weight) + g (gradient)
+ 4 (master) + 8 (moments) bytes; stage 1 divides the last two by d, stage 2 the gradients too, stage 3 everything. Here
d is the size of the shard group: with context parallelism d·c ranks, with hybrid sharding fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.accumulation import accumulates_apart, gradient_dtype, reduces_every_microbatch
from cost_models.operators.parameters import total_parameters
from cost_models.operators.tuning import ENDS, Part, Tuned, job_operators, trained_parameters, tuned
from cost_models.question import Question
from cost_models.specs.cluster import FULL
from cost_models.specs.training import STATE_BYTES

MOMENTS: Mapping[str, int] = {"adamw": 2, "paged-adamw": 2, "lamb": 2, "sgd": 0, "muon": 1, "lion": 1}
"""Of each parameter; `muon` has Adam's two of embedding and head."""
_8BIT, _4BIT = 1.0 + 4.0 / 256, 0.5 + 4.0 / 128
_BLOCKWISE = {
    "adamw-8bit": 2 * _8BIT,
    "paged-adamw-8bit": 2 * _8BIT,
    "lion-8bit": _8BIT,
    "adamw-4bit": 2 * _4BIT,
}
"""Bytes of all together: in 8 bits with a scale in fp32 for each block of 256 (bitsandbytes 0.50, optim/optimizer.py;
torchao 0.14, optim/adam.py), in 4 bits for each of 128 (torchao)."""


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
        """Bytes that stay between steps, and the gradients."""
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
    question: Question,
    columns: LayoutColumns,
    *,
    experts: bool = False,
    end: Part | None = None,
    held: Held = ALL_HELD,
) -> StateBytes:
    """Bytes per parameter on the device under each layout's ZeRO stage, of routed experts, of an `end`, or of
    everything else; of a fine-tuning job so many for each parameter that the model has."""
    part: Part = "experts" if experts else end or "block"
    own = _trained_bytes(question, columns, part, held)
    if question.training.tuning is None:
        reference = question.training.reference
        if reference != "resident" and not (reference == "host" and end):
            return own
        ranks = np.where(columns.zero == 3, columns.expert_shard if experts else columns.shard, 1)
        return replace(own, weights=own.weights + question.training.element_bytes / ranks)
    return _beside_frozen(question, columns, own, tuned(question, columns, part), experts=experts)


def _beside_frozen(
    question: Question, columns: LayoutColumns, own: StateBytes, beside: Tuned, *, experts: bool
) -> StateBytes:
    """Of the share that is trained, and of frozen weights, which are only kept: by shard, and gathered, as `own` are.

    A trainer gathers quantised weights as they are kept, and makes each matrix 16 bits wide where it is used.
    """
    ranks = (columns.expert_shard if experts else columns.shard).astype(np.float64)
    sharded = _is_sharded(question, columns, ranks, experts)
    whole = np.where(columns.zero == 3, 0.0, 1.0)
    shards_are_weights = sharded & (question.stack.fully_shard or not question.stack.master_weights)
    kept = np.where(shards_are_weights, 1 / ranks + whole, np.where(columns.zero == 3, 1 / ranks, 1.0))
    frozen = {
        "weights": beside.frozen * kept,
        "gathered": beside.frozen * np.where(sharded & (columns.zero == 3), 1.0, 0.0),
        "stored": beside.frozen * np.where(shards_are_weights, 1 / ranks, kept),
    }
    names = [field.name for field in fields(StateBytes)]
    return StateBytes(**{name: beside.share * getattr(own, name) + frozen.get(name, 0.0) for name in names})


def moment_bytes(question: Question, part: Part = "block") -> float:
    """Bytes of optimizer moments for each parameter that is trained."""
    training = question.training
    moment = STATE_BYTES[training.moment_dtype or training.state_dtype]
    match training.optimizer:
        case name if name in _BLOCKWISE:
            return _BLOCKWISE[name]
        case "adafactor":
            return _factored_bytes(question, part)
        case "muon" if part in ENDS:
            return MOMENTS["adamw"] * moment
        case optimizer:
            return MOMENTS[optimizer] * moment


def ends_apart(question: Question) -> bool:
    """Whether a parameter of embedding and head has other states than one of a block."""
    training = question.training
    apart = training.tuning is not None or training.reference == "host"
    return apart or training.optimizer in ("adafactor", "muon")


def _factored_bytes(question: Question, part: Part) -> float:
    """Of a matrix (in, out) the mean squares of its rows and of its columns, in fp32, for each of its elements; what is
    no matrix is left out."""
    model = question.model
    matrices = [(float(model.vocab_size), float(model.hidden_size))]
    if part not in ENDS:
        trained = [one for one in job_operators(model, question.training.tuning) if one.gemm and one.trained]
        gemms = [one.gemm for one in trained if one.gemm]
        matrices = [(float(gemm.inputs), float(out)) for gemm in gemms for out in gemm.outputs]
    sums, elements = (sum(map(of, matrices)) for of in (sum, lambda sides: sides[0] * sides[1]))
    return 4.0 * sums / max(1.0, elements)


def _trained_bytes(question: Question, columns: LayoutColumns, part: Part, held: Held) -> StateBytes:
    """Bytes per parameter that is trained."""
    stack, training = question.stack, question.training
    experts = part == "experts"
    compute = training.element_bytes
    mixed = training.precision not in FULL
    gradient = STATE_BYTES[gradient_dtype(question)] if mixed else 4.0
    extra_gradient = compute if accumulates_apart(question) and mixed else 0.0
    moments = 0.0 if training.optimizer.startswith("paged-") else moment_bytes(question, part)
    waits = not training.optimizer_in_backward  # else gradients are gone before the next comes
    ranks = (columns.expert_shard if experts else columns.shard).astype(np.float64)
    sharded = _is_sharded(question, columns, ranks, experts)
    shard = {stage: np.where(columns.zero >= stage, ranks, 1.0) for stage in (1, 2)}
    each = reduces_every_microbatch(question, columns)
    gradient_shard = np.where(each, shard[2], 1.0)
    late = sharded & stack.fully_shard & (columns.microbatches(training.global_batch) == 1)
    weights, master, written, stored = _weights_and_master(question, columns, ranks, sharded)
    return StateBytes(
        weights=held.weights * weights,
        gradients=held.gradients * waits * np.where(late, 0.0, (gradient + extra_gradient) / gradient_shard),
        optimizer=held.optimizer * (master + moments) / shard[1],
        gathered=np.where(sharded & (columns.zero == 3), compute, 0.0),
        scattering=np.where(sharded, gradient, 0.0),
        worked_on=np.where(master > 0, 0.0, written) / shard[1],
        update=held.optimizer * waits * _temporary_bytes(question, columns, shard[1]) / shard[1],
        updated=written / shard[1],
        stored=stored,
        late_gradients=held.gradients * waits * np.where(late, gradient / ranks, 0.0),
        reduced=held.reduced
        * waits
        * np.where(sharded & stack.fully_shard & (late | ~each), gradient / ranks, 0.0),
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
    mixed = training.precision not in FULL
    compute = training.element_bytes
    state = STATE_BYTES[training.state_dtype]
    weight = compute if stack.master_weights or not mixed else state
    master = state if stack.master_weights and mixed else 0.0
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
    sharded = _is_sharded(question, columns, ranks, experts)
    return (sharded & question.stack.fully_shard) | (not question.stack.master_weights)


def _temporary_bytes(question: Question, columns: LayoutColumns, shard: Array) -> Array:
    """(N,) bytes per parameter of the optimizer's shard that the update holds; an fp32 accumulator needs no such copy.

    DeepSpeed's ZeRO-3 updates a group of so many parameters of the shard at a time.
    """
    each = 0.0 if accumulates_apart(question) else question.stack.optimizer_temporary_bytes
    group = question.stack.update_group
    if group is None:
        return np.full(len(columns), each)
    model, tuning = question.whole or question.model, question.training.tuning
    adapted = tuning is not None and tuning.left is None
    trained = trained_parameters(model, tuning) if adapted and tuning else total_parameters(model)
    held = trained / (columns.tp * columns.pp * columns.ep * shard)
    return each * np.where(columns.zero == 3, np.minimum(1.0, group / held), 1.0)


def _is_sharded(question: Question, columns: LayoutColumns, ranks: Array | Ints, experts: bool) -> Bools:
    """(N,): whose weights or gradients are cut up. Experts that only this rank holds `fully_shard` treats as it does
    the rest, with a shard of all."""
    alone = (columns.replicas > 1) & experts & question.stack.fully_shard
    return (columns.zero >= 2) & ((ranks > 1) | alone)
