"""Parts of time coefficients: seconds of compute and of the communication of every axis.

Time terms: seconds by the part of a step that a user sees, their sum, and what jitter adds to them.

A term is `{part: seconds}`. Parts in `HIDDEN_PARTS` run behind others: they are shown, never added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.communication.context import ContextSeconds, context_seconds
from cost_models.communication.data import (
    DataSeconds,
    data_seconds,
    exposed,
    no_seconds,
    norms_seconds,
    owners_of,
)
from cost_models.communication.stage import TensorSeconds, expert_seconds, tensor_seconds
from cost_models.communication.topology import MeshGroups, axis_groups
from cost_models.compute.block import BlockSeconds, block_seconds
from cost_models.compute.device import Device, device_of
from cost_models.compute.ends import EndSeconds, end_seconds
from cost_models.operators.block import block_operators
from cost_models.operators.documents import waiting
from cost_models.operators.parameters import Parameters, parameters
from cost_models.operators.tuning import Part, tuned
from cost_models.question import Question
from cost_models.specs.stack import USER_BUFFERS

Term = dict[str, Array]
Terms = dict[str, Term]
"""Coefficient of `StageCosts` → its term in seconds or bytes by part: (N,), or where it has policies (N, P)."""

TIME_PARTS = (
    "compute",
    "recompute",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "pp_comm",
    "dp_comm",
    "optimizer",
    "offload",
    "host",
    "jitter",
)
HIDDEN_AS = {"offload_hidden": "offload"}
"""Names of hidden parts that are not communication of an axis."""
HIDDEN_PARTS = ("tp_hidden", "cp_hidden", "ep_hidden", "dp_hidden", *HIDDEN_AS)
FRAGMENTATION = "fragmentation"
"""Bytes that the allocator holds and no tensor uses; all other parts are what it counts as allocated."""
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "working", "buffers", FRAGMENTATION)
_BEFORE, _BEHIND = (
    TIME_PARTS[: TIME_PARTS.index("optimizer")],
    TIME_PARTS[TIME_PARTS.index("optimizer") + 1 :],
)
_ADDED = (*_BEFORE, *MEMORY_PARTS, *_BEHIND)
"""Parts in the order in which they are added up: those of time and those of memory each in their own."""


def total(term: Term) -> Array:
    """Sum of the parts of a term, seconds or bytes; hidden parts take no time of their own."""
    return sum((term[part] for part in _ADDED if part in term), start=np.zeros(1))


def sum_terms(own: Term, *others: Term, times: int = 1) -> Term:
    """A term plus `times` times each of the other terms, part by part; a missing part counts as zero."""
    summed = dict(own)
    for other in others:
        for part, value in other.items():
            summed[part] = summed.get(part, np.zeros(1)) + times * value
    return summed


def jitter(question: Question, columns: LayoutColumns) -> Array:
    """(N,) what stragglers and noise add, as a share: so much for each doubling of the nodes that a layout occupies.

    On a CPU also what else runs on its cores, and the turns that more processes than cores take. Rates are measured in
    a process's own time, which does not pass while another has its core.
    """
    cluster, profile = question.cluster, question.hardware
    doublings = np.log2(np.maximum(1.0, columns.ranks / cluster.gpus_per_node))
    stragglers = profile.jitter_per_doubling * doublings
    if cluster.gpu.kind != "cpu":
        return stragglers
    slowdown = (1.0 + stragglers) * (1.0 + profile.contention)
    if profile.measured_peak is not None and cluster.host_cores:
        here = np.minimum(columns.ranks, cluster.gpus_per_node)
        slowdown = slowdown * np.maximum(1.0, here / cluster.host_cores)
    return slowdown - 1.0


def with_jitter(term: Term, slowdown: Array) -> Term:
    """Adds what stragglers and noise cost, in proportion to the term."""
    seconds = total(term)
    return {**term, "jitter": term.get("jitter", 0.0) + (seconds.T * slowdown).T}


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Parallel groups, and data-parallel seconds of each module."""

    groups: MeshGroups
    block: DataSeconds
    """Seconds of a block; its experts are over the ranks that hold the same experts."""
    embedding: DataSeconds
    head: DataSeconds
    norms: Array
    """Seconds in which LAMB adds up its norms."""


@dataclass(frozen=True)
class Pieces:
    """Parts of the time coefficients of N layouts, each computed on first use."""

    question: Question
    columns: LayoutColumns
    data_parallel: bool = True
    """Whether other ranks hold the same parameters; False: as if none did."""
    whole: bool = True
    """Whether embedding and head are asked for too; False: blocks alone, and what a rank does once a step."""

    @cached_property
    def device(self) -> Device:
        """In the training precision."""
        return device_of(self.question)

    @cached_property
    def links(self) -> Links:
        """Groups and data-parallel seconds, which do not depend on the microbatch."""
        names = ("tp", "cp", "pp", "dp", "ep", "etp", "shard", "zero", "order")
        return over_distinct(self.columns, names, lambda rows: _links_of(replace(self, columns=rows)))

    @cached_property
    def block(self) -> BlockSeconds:
        """Compute of a block."""
        return block_seconds(self.question, self.columns, self.device, data_parallel=self.data_parallel)

    def waited(self, core: Array) -> Term:
        """What ranks wait for the one with most attention, behind seconds of a block's; no term where sequences are
        alike."""
        return {} if self.question.training.lengths is None else {"jitter": (core.T * self._waiting).T}

    @cached_property
    def _waiting(self) -> Array:
        return waiting(self.question, self.columns, data_parallel=self.data_parallel)

    @cached_property
    def ends(self) -> EndSeconds:
        """Compute of embedding and head."""
        return end_seconds(self.question, self.columns, device_of(self.question, wide=True))

    @cached_property
    def tensor(self) -> TensorSeconds:
        """Communication of tensor ranks."""
        return tensor_seconds(self.question, self.columns, self.links.groups.tp)

    @cached_property
    def context(self) -> ContextSeconds:
        """Communication of context ranks."""
        kernels = self.block.core_forward, self.block.core_backward
        return context_seconds(self.question, self.columns, self.links.groups.cp, *kernels)

    @cached_property
    def experts(self) -> Array:
        """(N,) exchange of tokens between experts, one pass of one block."""
        return expert_seconds(self.question, self.columns, self.links.groups)

    @cached_property
    def counts(self) -> Parameters:
        """Parameters of a rank."""
        x = self.columns
        return parameters(self.question.model, x.tp, ep=x.ep, etp=x.etp)

    @cached_property
    def head_parameters(self) -> Array:
        """(N,) of a rank that holds the head."""
        return head_parameters(self.question, self.columns, self.counts)

    @property
    def none(self) -> Array:
        """(N,) zeros."""
        return np.zeros(len(self.columns))

    @cached_property
    def experts_shown(self) -> Array:
        """(N,) seconds by which the exchange with experts lengthens one pass of a block.

        What runs behind compute is that of another microbatch: forward behind backward and the other way round, so both
        exchanges of a block hide behind both its passes. Compute is slower by what any overlap costs.
        """
        window = (self.block.forward + self.block.backward) / 2
        hidden = np.minimum(self.question.stack.overlap_expert_exchange * self.experts, window)
        return self.experts - (1.0 - self.question.hardware.overlap_slowdown) * hidden

    @property
    def experts_hidden(self) -> Array:
        """(N,) hidden seconds of the exchange with experts."""
        return np.maximum(0.0, self.experts - self.experts_shown)

    @cached_property
    def hides_tensor_parallel(self) -> Bools:
        """(N,): the stack has kernels that send while they multiply, and memory that all of a tensor group reach: user
        buffers and symmetric memory are of one node."""
        stack, precision = self.question.stack, self.question.training.precision
        hides = precision in USER_BUFFERS or not stack.transformer_engine
        return hides & ~self.links.groups.tp.crosses_nodes

    @cached_property
    def regather(self) -> Array:
        """(N,) seconds of a block's backward pass that wait for inputs to be gathered again, behind products towards
        inputs."""
        half = self.block.matrices_backward / 2
        return exposed(self.tensor.block_regather, half, self.question.hardware, overlapped=True)

    @cached_property
    def summed(self) -> Array:
        """(N,) that wait for gradients of inputs to be summed, behind products towards the same matrices' weights."""
        return exposed(
            self.tensor.block_summed, self.block.column_weight, self.question.hardware, overlapped=True
        )

    @property
    def head_summed(self) -> Array:
        """(N,) seconds of the head's backward pass that wait for the same."""
        hides = exposed(
            self.tensor.head_backward, self.ends.head_weight, self.question.hardware, overlapped=True
        )
        behind = self.question.stack.reduces_behind_weight_products
        return hides if behind else self.tensor.head_backward

    @cached_property
    def forward_window(self) -> Array:
        """(N,) seconds of a block's forward pass behind which data-parallel communication runs."""
        return self.block.forward + self.context.forward

    @cached_property
    def backward_window(self) -> Array:
        """(N,) seconds of its backward pass. What already hides behind compute takes nothing from others, but where the
        pass waits for it, they go on too: so no device is slower for computing faster."""
        return self.block.backward + self.regather + self.summed + self.context.backward


def _links_of(pieces: Pieces) -> Links:
    question, columns, counts = pieces.question, pieces.columns, pieces.counts
    groups, none = axis_groups(question.cluster, columns), no_seconds(len(columns))
    mesh = MeshGroups(tp=groups.tp, cp=groups.cp, pp=groups.pp, ep=groups.ep, etp=groups.etp)
    if not pieces.data_parallel:
        return Links(groups=mesh, block=none, embedding=none, head=none, norms=none.gather)
    head = pieces.head_parameters
    held = counts.block * question.model.num_layers / columns.pp + counts.embedding + head
    matrices = sum(len(one.gemm.outputs) for one in block_operators(question.model) if one.gemm)

    def seconds(module: Array, tensors: float, part: Part) -> DataSeconds:
        owners = owners_of(columns, module, held, tensors)
        return data_seconds(question, columns, groups.data, module, owners, tuned(question, columns, part))

    block = seconds(counts.block, matrices, "block")
    if question.model.moe_share:  # experts have fewer replicas than the rest
        of = tuned(question, columns, "experts")
        block = block + data_seconds(question, columns, groups.experts, counts.experts, of=of)
    return Links(
        groups=mesh,
        block=block,
        embedding=seconds(counts.embedding, 1.0, "embedding") if pieces.whole else none,
        head=seconds(head, 1.0, "head") if pieces.whole else none,
        norms=norms_seconds(question, columns, groups),
    )


def head_parameters(question: Question, columns: LayoutColumns, counts: Parameters) -> Array:
    """Final norm and output matrix of the last stage; a tied matrix on the embedding's own rank is not held twice."""
    shared = question.model.tied_embeddings & (columns.pp == 1)
    return counts.head_vectors + np.where(shared, 0.0, counts.head_matrix)
