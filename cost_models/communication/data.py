"""Data-parallel communication: gradients reduced, weights gathered, and how much of it is exposed.

Per step and rank, in elements × (d−1)/d (Rajbhandari et al. 2020): replicas 2Ψ, ZeRO-1/2 2Ψ (scatter + gather),
ZeRO-3 Ψ per gather and per scatter. Hybrid sharding scatters and gathers inside a shard group and all-reduces each
shard over the groups (Zhao et al. 2023, PyTorch FSDP). A stack that overlaps shows only what outlasts the compute it
hides behind.

LAMB adds up the squares of every parameter and of its update over all ranks with slices of it (You et al. 2020).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    broadcast_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import AxisGroups, ReplicaGroups
from cost_models.operators.accumulation import gradient_dtype, reduces_every_microbatch
from cost_models.operators.block import block_operators
from cost_models.operators.tuning import WHOLE, Tuned
from cost_models.question import Question
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import STATE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSeconds:
    """Seconds for one module (a block, the embedding, the head), each (N,); nothing is hidden yet."""

    gather: Array
    """ZeRO-3, per microbatch, before each pass."""
    backward_reduce: Array
    """Gradients reduced after every microbatch (ZeRO-2/3 without delayed synchronisation)."""
    step_reduce: Array
    """Gradients reduced once a step."""
    step_gather: Array
    """Updated weights gathered once a step (ZeRO-1/2)."""

    def __add__(self, other: DataSeconds) -> DataSeconds:
        return DataSeconds(
            **{field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        )


def data_seconds(
    question: Question,
    columns: LayoutColumns,
    groups: ReplicaGroups,
    module_parameters: Array,
    owners: Array | float = 1.0,
    of: Tuned = WHOLE,
) -> DataSeconds:
    """Costs over the ranks that hold a module, of `module_parameters` (N,) parameters on each, trained as `of` says.

    Where the stack updates by owner, `owners` (N,) ranks have tensors of the module; below 1 where one owns several.
    """
    stack, profile = question.stack, question.hardware
    element = question.training.element_bytes
    weights = module_parameters * of.share * element
    gradients = module_parameters * of.share * STATE_BYTES[gradient_dtype(question)]
    zero = columns.zero
    scatter = reduce_scatter_seconds(gradients, groups.shard, profile)
    if (groups.copies.size > 1).any():
        scatter = scatter + all_reduce_seconds(gradients / groups.shard.size, groups.copies, profile)
    everywhere = (zero == 0) | ((zero == 1) & stack.scatters_by_all_reduce)
    reduce = np.where(everywhere, all_reduce_seconds(gradients, groups.every, profile), scatter)
    gather = all_gather_seconds(weights, groups.shard, profile)
    pieces = stack.zero3_collectives_per_block
    whole, pieced = module_parameters * (element * of.share + of.frozen), gather
    if pieces != 1 or of is not WHOLE:
        pieced = pieces * all_gather_seconds(whole / pieces, groups.shard, profile)
    updated = gather
    if of is not WHOLE:  # of what is frozen no gradient is reduced, and no weight is sent but to compute with
        trains = np.asarray(of.share) > 0
        reduce, updated = reduce * trains, np.where(zero == 3, pieced, gather * trains)
    elif stack.updates_by_owner:
        # one after another each owner sends its part to all others
        updated = owners * broadcast_seconds(weights / owners, groups.shard, profile)
    each_microbatch = reduces_every_microbatch(question, columns)
    regathers = (zero == 3) & stack.zero3_gathers_every_microbatch
    none = np.zeros(len(columns))
    return DataSeconds(
        gather=np.where(regathers, pieced, none),
        backward_reduce=np.where(each_microbatch, reduce, none),
        step_reduce=np.where(each_microbatch, none, reduce),
        step_gather=np.where((zero >= 1) & ~regathers, updated, none),
    )


def owners_of(columns: LayoutColumns, module: Array, held: Array, tensors: float) -> Array:
    """(N,) ranks that own tensors of a module: as many as its share of the `held` parameters, at most one a tensor."""
    return np.minimum(tensors, columns.shard * module / held)


def no_seconds(rows: int) -> DataSeconds:
    """Zero seconds in every phase, for modules that no other rank holds."""
    none = np.broadcast_to(np.float64(0.0), (rows,))
    return DataSeconds(**{field.name: none for field in fields(DataSeconds)})


def exposed(
    communication: Array, window: Array, profile: HardwareProfile, *, overlapped: bool | Bools
) -> Array:
    """(N,) seconds of `communication` still exposed when it runs behind `window` seconds of compute, if `overlapped`.

    Both together take max(C, M) + κ min(C, M): while they overlap each slows the other down.
    """
    if not np.any(overlapped):
        return communication
    contended = profile.overlap_slowdown * np.minimum(communication, window)
    left = np.maximum(0.0, communication - window) + contended
    return left if np.all(overlapped) else np.where(overlapped, left, communication)


def norms_seconds(question: Question, columns: LayoutColumns, groups: AxisGroups) -> Array:
    """(N,) seconds of LAMB's all-reduce of norms, once a step: two numbers per parameter tensor, so all latency.

    Priced as one over tensor ranks and one over those that ZeRO shards over, or, with experts, over all replicas. Two
    numbers for the two copies of a tied matrix are left out. Nothing for other optimizers.
    """
    if question.training.optimizer != "lamb":
        return np.zeros(len(columns))
    blocks = question.model.num_layers / columns.pp
    tensors = blocks * len(block_operators(question.model))
    message = 2 * STATE_BYTES["fp32"] * tensors
    experts = question.model.has_experts
    over_data = groups.data.every if experts else groups.data.shard
    shared = (columns.zero >= 1) | experts
    seconds = np.where(shared, all_reduce_seconds(message, over_data, question.hardware), 0.0)
    return seconds + all_reduce_seconds(message, groups.tp, question.hardware)
