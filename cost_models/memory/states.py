"""Bytes of weights, gradients and optimizer states per parameter, under ZeRO 0–3.

Rajbhandari et al. 2020, table 1, with the types as variables: 16-bit training with Adam holds 2 (weight) + g (gradient)
+ 4 (master) + 8 (moments) bytes; stage 1 divides the last two by d, stage 2 the gradients too, stage 3 everything. Here
d is the size of the shard group: with context parallelism d·c ranks, with hybrid sharding fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.accumulation import accumulates_in_copy, gradient_dtype, reduces_every_microbatch
from cost_models.operators.parameters import (
    ENDS,
    Part,
    job_operators,
    total_parameters,
    trained_parameters,
    trained_share,
)
from cost_models.operators.record import products_of
from cost_models.question import Question
from cost_models.specs.cluster import FULL
from cost_models.specs.training import STATE_BYTES

MOMENTS: Mapping[str, int] = {"adamw": 2, "paged-adamw": 2, "lamb": 2, "sgd": 0, "muon": 1, "lion": 1}
"""Number of moments of each parameter in blocks, by optimizer. For embedding and head, `muon` has Adam's two
moments."""
_8BIT, _4BIT = 1.0 + 4.0 / 256, 0.5 + 4.0 / 128
_BLOCKWISE = {"lion-8bit": _8BIT, "adamw-4bit": 2 * _4BIT}
_BLOCKWISE |= dict.fromkeys(("adamw-8bit", "paged-adamw-8bit"), 2 * _8BIT)
"""Bytes of all moments of a parameter, by optimizer: in 8 bits with a scale in fp32 for each block of 256 (bitsandbytes
0.50, optim/optimizer.py; torchao 0.14, optim/adam.py), in 4 bits for each of 128 (torchao)."""


class StateBytes(NamedTuple):
    """Bytes per parameter of weights, gradients and optimizer states, for one part of the model, (N,) each.
    Parameters are those of the rank's share of the model."""

    weights: Array
    gradients: Array
    optimizer: Array
    gathered: Array
    """Bytes per parameter of a block's unsharded weights while the block computes (ZeRO-3)."""
    scattering: Array
    """Bytes per parameter of full gradients before their reduction (ZeRO-2 and 3)."""
    update: Array
    """Bytes per parameter of temporaries of the optimizer step."""
    updated: Array
    """Bytes per parameter of weights that the optimizer step writes. With a master copy these are the weights
    that passes compute with, else the updated weights themselves."""
    late_gradients: Array
    """Bytes per parameter of gradients that exist only after activations are freed. These are gradients of a
    step with a single microbatch."""
    stored: Array
    """Bytes per parameter of weights of the rank's shard in their stored type. Offload may copy them from
    host memory."""
    reduced: Array
    """Bytes per parameter of additional gradient shards that a reduction creates (`fully_shard`)."""

    worked_on: Array
    """Bytes per parameter of weights that the update reads and writes if the states hold no master copy."""

    @property
    def total(self) -> Array:
        """Bytes per parameter of weights, gradients and optimizer states together, which stay between steps."""
        return self.weights + self.gradients + self.optimizer


class DeviceShare(NamedTuple):
    """Share of a parameter's weights, gradients and optimizer states that stay on the device, (N,) or one
    number each: 0 if offload moves them, else 1."""

    optimizer: Array | float = 1.0
    weights: Array | float = 1.0
    gradients: Array | float = 1.0
    reduced: Array | float = 1.0
    """Share of the gradient shards that a reduction creates."""


ALL_ON_DEVICE = DeviceShare()


def state_bytes(
    question: Question, columns: LayoutColumns, part: Part = "block", on_device: DeviceShare = ALL_ON_DEVICE
) -> StateBytes:
    """Bytes per parameter of weights, gradients and optimizer states on the device, for one `part` of the
    model under each layout. In fine-tuning they are per parameter of the model, not per trained parameter.

    With w bytes for passes and m for the update: if the shards are the parameters (`fully_shard`, and every
    trainer without a master copy), m/d, and gathered from them w, which ZeRO-2 holds all step and ZeRO-3 a
    block at a time, counted as `gathered` (Zhao et al. 2023, PyTorch FSDP, sections 3.2 and 4.4). Otherwise
    w, or w/d under ZeRO-3, and a master copy of m (Rajbhandari et al. 2020). Frozen weights have no other
    states; they are sharded and gathered like trained ones. Quantised weights are gathered in their stored
    type, and each matrix is widened to 16 bits where it is used.
    """
    stack, training = question.stack, question.training
    ranks = columns.shards(part).astype(np.float64)
    sharded, zero3 = _is_sharded(question, columns, part), columns.zero == 3
    compute, mixed = training.element_bytes, training.precision not in FULL
    gradient = STATE_BYTES[gradient_dtype(question)] if mixed else 4.0
    extra_gradient = compute if accumulates_in_copy(question) and mixed else 0.0
    moments = 0.0 if training.optimizer.startswith("paged-") else moment_bytes(question, part)
    waits = not training.optimizer_in_backward  # else gradients are gone before the next comes
    waiting = on_device.gradients * waits
    optimizer_ranks = np.where(columns.zero >= 1, ranks, 1.0)
    scatters = reduces_every_microbatch(question, columns)
    gradient_ranks = np.where(scatters, ranks, 1.0)
    late = sharded & stack.fully_shard & (columns.microbatches(training.global_batch) == 1)
    reduces = sharded & stack.fully_shard & (late | ~scatters)

    state = STATE_BYTES[training.state_dtype]
    weight = compute if stack.master_weights or not mixed else state
    master = state if stack.master_weights and mixed else 0.0
    updated = master or weight
    remainders = stack.master_remainders and master > weight and training.precision != "fp16"
    shards_are_weights = sharded & (stack.fully_shard or not stack.master_weights)
    passes_weight = weight / np.where(zero3, ranks, 1.0)
    weights = np.where(shards_are_weights, updated / ranks + np.where(zero3, 0.0, compute), passes_weight)
    masters = np.where(shards_are_weights, 0.0, master - weight if remainders else master)
    written = np.where(shards_are_weights, updated, weight)
    temporary = _temporary_bytes(question, columns, optimizer_ranks)
    states = StateBytes(
        weights=on_device.weights * weights,
        gradients=waiting * np.where(late, 0.0, (gradient + extra_gradient) / gradient_ranks),
        optimizer=on_device.optimizer * (masters + moments) / optimizer_ranks,
        gathered=np.where(sharded & zero3, compute, 0.0),
        scattering=np.where(sharded, gradient, 0.0),
        worked_on=np.where(masters > 0, 0.0, written) / optimizer_ranks,
        update=on_device.optimizer * waits * temporary / optimizer_ranks,
        updated=written / optimizer_ranks,
        stored=np.where(shards_are_weights, updated / ranks, passes_weight),
        late_gradients=waiting * np.where(late, gradient / ranks, 0.0),
        reduced=on_device.reduced * waits * np.where(reduces, gradient / ranks, 0.0),
    )
    if training.tuning is None:
        if training.reference == "resident" or (training.reference == "host" and part in ENDS):
            states = states._replace(weights=states.weights + compute / np.where(zero3, ranks, 1))
        return states
    trained, gathers = trained_share(question, columns, part), sharded & zero3
    share = np.where(shards_are_weights, 1 / ranks + ~zero3, np.where(zero3, 1 / ranks, 1.0))
    copies = {"weights": share, "gathered": gathers, "stored": np.where(shards_are_weights, 1 / ranks, share)}
    frozen = {name: trained.frozen * copy for name, copy in copies.items()}
    sizes = states._asdict().items()
    return StateBytes(**{name: trained.share * size + frozen.get(name, 0.0) for name, size in sizes})


def moment_bytes(question: Question, part: Part = "block") -> float:
    """Bytes of optimizer moments (such as Adam's mean and variance) per trained parameter."""
    training = question.training
    if training.optimizer in _BLOCKWISE:
        return _BLOCKWISE[training.optimizer]
    if training.optimizer == "adafactor":
        return _factored_bytes(question, part)
    of_ends = training.optimizer == "muon" and part in ENDS
    moment = STATE_BYTES[training.moment_dtype or training.state_dtype]
    return MOMENTS["adamw" if of_ends else training.optimizer] * moment


def ends_differ(question: Question) -> bool:
    """Whether embedding and head have other bytes of states per parameter than the blocks have."""
    job = question.training
    return bool(job.tuning) or job.reference == "host" or job.optimizer in ("adafactor", "muon")


def _factored_bytes(question: Question, part: Part) -> float:
    """Bytes per parameter of Adafactor's mean squares in fp32, a number for each row and column of every
    matrix. Other parameters are left out."""
    model = question.model
    matrices = [(model.vocab_size, model.hidden_size)]
    if part not in ENDS:
        operators = [one for one in job_operators(model, question.training.tuning) if one.trained]
        matrices = [(gemm.inputs, out) for _, gemm in products_of(operators) for out in gemm.outputs]
    sums, elements = (sum(map(of, matrices)) for of in (sum, lambda sides: sides[0] * sides[1]))
    return 4.0 * sums / max(1.0, elements)


def updates_parameters(question: Question, columns: LayoutColumns, part: Part) -> Bools:
    """Whether the optimizer updates the parameters themselves instead of a separate master copy, (N,)."""
    sharded = _is_sharded(question, columns, part) & question.stack.fully_shard
    return sharded | (not question.stack.master_weights)


def _temporary_bytes(question: Question, columns: LayoutColumns, shard: Array) -> Array:
    """Temporary bytes of the optimizer update per parameter of the optimizer's shard, (N,); 0 with an fp32
    accumulator.

    DeepSpeed's ZeRO-3 updates groups of `update_group` parameters of the shard.
    """
    shard_bytes = 0.0 if accumulates_in_copy(question) else question.stack.optimizer_temporary_bytes
    group = question.stack.update_group
    if group is None:
        return np.full(len(columns), shard_bytes)
    model, tuning = question.full_model or question.model, question.training.tuning
    adapted = tuning and tuning.left is None
    trained = trained_parameters(model, tuning) if tuning and adapted else total_parameters(model)
    rank_parameters = trained / (columns.tp * columns.pp * columns.ep * shard)
    return shard_bytes * np.where(columns.zero == 3, np.minimum(1.0, group / rank_parameters), 1.0)


def _is_sharded(question: Question, columns: LayoutColumns, part: Part) -> Bools:
    """Whether weights or gradients are sharded over data-parallel ranks, (N,). `fully_shard` also treats
    experts that only one rank has as sharded."""
    unshared = (columns.replicas > 1) & (part == "experts") & question.stack.fully_shard
    return (columns.zero >= 2) & ((columns.shards(part) > 1) | unshared)
