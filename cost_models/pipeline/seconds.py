"""Time coefficients of pipeline stages in seconds, by the parts that a user sees (compute, communication by
axis ...): for a block's passes, for one pipeline action, and for a rank's work once a step.

A term is `{part: seconds}`. Parts in `HIDDEN_PARTS` overlap others: they are shown, never added.

**An action** takes `action_host_seconds` of its host. A host that waits for its device before it (for a
blocking hand-over, for a batch whose size it reads from the device, or for both) leaves the device idle for
as long again, until it has launched the next kernels.

**Data-parallel communication during a block's passes**: gathered weights (ZeRO-3) and reduced gradients. Most
trainers gather as far ahead as memory allows, so a pass of compute C and communication M takes max(ΣC, ΣM).
DeepSpeed gathers matrix by matrix, in hooks of each. Until 2022 it fetched one matrix during the one at work
and waited for the device before the next, so the longer of the two counts for each matrix: Σ max(C, M). Its
host divided and copied each gathered tensor into a slice per rank, and only then launched the next kernels.
Hooks of each matrix run in a recomputed pass too: a weight used there is gathered once more for the backward
pass, unless it is kept because few parameters pass in between. A run is a matrix with the compute until the
next one; compute other than products and the attention core is distributed in proportion to weights. Leaves
out copies of weights gathered once more.

**Once a step** a rank reduces the remaining gradients, and updates its parameters. A block's gradients are
complete after the backward pass of its last microbatch. With one chunk a rank they are reduced during the
backward pass of another block. If microbatches pass through several chunks in rounds (interleaved 1F1B), a
chunk is complete a full round before the next one: a stack that reduces chunk by chunk then exposes only the
time beyond a round of passes, and all of the last chunk's (Jiang et al. 2024, section 3.2).

Shape legend: N layouts, P recompute policies, U matrices of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, is_overlapped, is_scheduled, names_overlap, over_distinct
from cost_models.communication.by_axis import (
    ContextSeconds,
    DataSeconds,
    TensorSeconds,
    boundary_seconds,
    context_seconds,
    data_seconds,
    expert_seconds,
    exposed_seconds,
    norms_seconds,
    tensor_seconds,
)
from cost_models.communication.collectives import (
    all_reduce_seconds,
    broadcast_seconds,
    point_to_point_seconds,
)
from cost_models.communication.topology import Groups, MeshGroups, axis_groups
from cost_models.compute.block import BlockSeconds, block_seconds
from cost_models.compute.ends import EndSeconds, end_seconds
from cost_models.compute.gemm import Device, device_of, forward_seconds, local_gemm
from cost_models.memory.activations import ActivationBytes, activation_bytes
from cost_models.memory.states import StateBytes, ends_differ, state_bytes
from cost_models.operators.accumulation import gradient_dtype
from cost_models.operators.block import block_operators
from cost_models.operators.documents import straggler_excess
from cost_models.operators.parameters import (
    ENDS,
    Parameters,
    Part,
    parameters,
    summed_over_tensor_ranks,
    trained_share,
)
from cost_models.operators.record import parameters_on_rank, products_of
from cost_models.question import Question
from cost_models.schedules.actions import round_sizes
from cost_models.schedules.registry import ALWAYS_SPLIT, V_SHAPED
from cost_models.specs.choices import ATTEND_AGAIN, RECOMPUTE_POLICIES
from cost_models.specs.stack import USER_BUFFERS
from cost_models.specs.training import STATE_BYTES

Term = dict[str, Array]
Terms = dict[str, Term]
"""Seconds or bytes, (N,) or, by recompute policy, (N, P), of each part of each coefficient of `StageCosts`."""

LINK_AXES = ("tp", "cp", "ep", "pp", "dp")
"""Names of the parallel axes whose groups of ranks communicate."""
_OF_PASSES = ("compute", "recompute", *(f"{axis}_comm" for axis in LINK_AXES))
_OF_A_STEP = ("offload", "host", "jitter")
TIME_PARTS = (*_OF_PASSES, "optimizer", *_OF_A_STEP)
HIDDEN_PARTS = {f"{axis}_hidden": f"{axis}_comm" for axis in LINK_AXES if axis != "pp"}
HIDDEN_PARTS |= {"offload_hidden": "offload"}
"""Part with the exposed seconds of a communication, by the part with its overlapped (hidden) seconds."""
FRAGMENTATION = "fragmentation"
"""Name of the memory part for bytes that the allocator reserves but no tensor uses."""
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "working", "buffers", FRAGMENTATION)
_SUMMED_PARTS = (*_OF_PASSES, *MEMORY_PARTS, *_OF_A_STEP, "limit")
"""Names of the parts of time and memory in the fixed order in which they are added, and the name of a memory
limit's only part."""


def sum_of_parts(term: Term) -> Array:
    """Sum the parts of a term, in seconds or bytes, without overlapped (hidden) communication."""
    return sum((term[part] for part in _SUMMED_PARTS if part in term), start=np.zeros(1))


def sum_terms(first: Term, *further_terms: Term, times: int = 1) -> Term:
    """Sum of the first term and `times` times each further term, part by part; a missing part counts as
    zero."""
    summed = dict(first)
    for term in further_terms:
        for part, value in term.items():
            summed[part] = summed.get(part, np.zeros(1)) + times * value
    return summed


def jitter_share(question: Question, columns: LayoutColumns) -> Array:
    """Relative slowdown by stragglers and noise, (N,): `jitter_per_doubling * log2(nodes)` for a layout on
    `nodes` nodes.

    On a CPU also by other work on its cores, and by the turns that more processes than cores take. Rates are
    measured in a process's own time, which does not pass while another has its core.
    """
    cluster, profile = question.cluster, question.hardware
    doublings = np.log2(np.maximum(1.0, columns.ranks / cluster.gpus_per_node))
    stragglers = profile.jitter_per_doubling * doublings
    if cluster.gpu.kind != "cpu":
        return stragglers
    slowdown = (1.0 + stragglers) * (1.0 + profile.contention)
    if profile.measured_peak is not None and cluster.host_cores:
        ranks_on_node = np.minimum(columns.ranks, cluster.gpus_per_node)
        slowdown = slowdown * np.maximum(1.0, ranks_on_node / cluster.host_cores)
    return slowdown - 1.0


def with_jitter(term: Term, slowdown: Array) -> Term:
    """Add the part `jitter` to a term, for stragglers and noise: the relative `slowdown` times the term's
    total."""
    seconds = sum_of_parts(term)
    return {**term, "jitter": term.get("jitter", 0.0) + (seconds.T * slowdown).T}


class Links(NamedTuple):
    """Process groups of each parallel axis, and seconds of data-parallel communication per part of the model."""

    groups: MeshGroups
    block: DataSeconds
    """Seconds of data-parallel communication for one block; its experts are reduced over ranks with the same
    experts."""
    embedding: DataSeconds
    head: DataSeconds
    norms: Array
    """Seconds per step of the LAMB optimizer's all-reduce of norms, (N,)."""


@dataclass(frozen=True)
class Pieces:
    """Intermediate results (times, sizes, parameter counts) for the coefficients of N layouts, each computed
    at its first use."""

    question: Question
    columns: LayoutColumns
    data_parallel: bool = True
    """Whether communication between data-parallel replicas is priced; else layouts are priced as if each had
    one replica."""

    @cached_property
    def launches(self) -> Array:
        """Host seconds to launch the kernels of one pass of one block, (N,)."""
        columns, profile = self.columns, self.question.hardware
        model, stack = self.question.model, self.question.stack
        split = np.where(columns.tp > 1, profile.tensor_parallel_host_seconds, 0.0)
        split = split + np.where(columns.sp == 1, profile.sequence_parallel_host_seconds, 0.0)
        sharded = stack.fully_shard & (columns.zero >= 2) & (columns.shard > 1)
        split = split + np.where(sharded, profile.sharded_host_seconds, 0.0)
        halves = (1.0 - model.mixer_share("none") + model.feed_forward_share) / 2
        dense: Array = halves * (profile.host_layer_seconds + split)
        if model.has_experts and stack.experts_in_one_kernel:  # CUDA graphs replay blocks with experts
            return dense - model.moe_share * dense
        if model.has_experts and stack.waits_for_expert_counts:
            experts = _expert_host_seconds(self.question) * model.num_experts / columns.ep
            return dense + model.moe_share * (_ROUTING_HOST_SECONDS + experts)
        return dense + self.zeros

    @cached_property
    def device(self) -> Device:
        """Compute and memory rates of the GPU in the training precision."""
        return device_of(self.question)

    @cached_property
    def links(self) -> Links:
        """Process groups, and seconds of data-parallel communication per part of the model."""
        names = ("tp", "cp", "pp", "dp", "ep", "etp", "shard", "zero", "order")
        return over_distinct(self.columns, names, lambda rows: _links_of(replace(self, columns=rows)))

    @cached_property
    def block(self) -> BlockSeconds:
        """Compute seconds of a block's forward and backward pass of one microbatch."""
        return block_seconds(self.question, self.columns, self.device, data_parallel=self.data_parallel)

    def straggler_wait(self, core: Array) -> Term:
        """Term with a single part `jitter`: seconds of waiting for the rank with most attention work, (N,) or
        (N, P). Empty if all documents have equal length. Attention takes `core` seconds."""
        return {} if self.question.training.lengths is None else {"jitter": (core.T * self._waiting).T}

    @cached_property
    def _waiting(self) -> Array:
        """Seconds of waiting for the rank with most attention work, as a share of attention's seconds, (N,)."""
        return straggler_excess(self.question, self.columns, data_parallel=self.data_parallel)

    @cached_property
    def update_seconds(self) -> Array:
        """Seconds to update one dense parameter of a block on the device, (N,)."""
        return _update_seconds(self, "block")

    @cached_property
    def ends(self) -> EndSeconds:
        """Compute seconds of embedding and output head for one microbatch."""
        return end_seconds(self.question, self.columns, device_of(self.question, uncast=True))

    @cached_property
    def tensor(self) -> TensorSeconds:
        """Seconds of tensor-parallel communication per microbatch in a block, the embedding and the head."""
        return tensor_seconds(self.question, self.columns, self.links.groups.tp)

    @cached_property
    def context(self) -> ContextSeconds:
        """Seconds of context-parallel communication per block and microbatch."""
        kernels = self.block.core_forward, self.block.core_backward
        return context_seconds(self.question, self.columns, self.links.groups.cp, *kernels)

    @cached_property
    def experts(self) -> Array:
        """Seconds of the all-to-all that exchanges tokens with experts in one pass of one block, (N,)."""
        return expert_seconds(self.question, self.columns, self.links.groups)

    @cached_property
    def counts(self) -> Parameters:
        """Number of parameters of each module (block, experts, embedding, head) that a rank holds, before
        ZeRO shards them."""
        return parameters(self.question.model, self.columns.tp, ep=self.columns.ep, etp=self.columns.etp)

    @cached_property
    def head_parameters(self) -> Array:
        """Number of parameters of final norm and output matrix on the rank with the last stage, (N,)."""
        return head_parameters(self.question, self.columns, self.counts)

    @cached_property
    def states(self) -> Mapping[Part, StateBytes]:
        """Bytes of weights, gradients and optimizer states per parameter of each part of the model, as if nothing
        were offloaded."""
        question, columns = self.question, self.columns
        block = state_bytes(question, columns)
        by_end = {end: state_bytes(question, columns, end) for end in ENDS if ends_differ(question)}
        experts = state_bytes(question, columns, "experts") if question.model.has_experts else block
        return dict.fromkeys(ENDS, block) | by_end | {"block": block, "experts": experts}

    @cached_property
    def activations(self) -> ActivationBytes:
        """Bytes of activations that a rank keeps for the backward pass, per block and for embedding and
        head."""
        return activation_bytes(self.question, self.columns)

    @property
    def zeros(self) -> Array:
        """Array of zeros, one for each of the N layouts, (N,)."""
        return np.zeros(len(self.columns))

    @cached_property
    def exposed_experts(self) -> Array:
        """Exposed seconds of the exchange of tokens with experts in one pass of a block, (N,).

        It overlaps the compute of another microbatch, forward with backward and vice versa, so both exchanges
        of a block are hidden by both its passes. Overlap slows compute down as usual.
        """
        window = (self.block.forward + self.block.backward) / 2
        hidden = np.minimum(self.question.stack.overlap_expert_exchange * self.experts, window)
        return self.experts - (1.0 - self.question.hardware.overlap_slowdown) * hidden

    @property
    def hidden_experts(self) -> Array:
        """Overlapped seconds of the exchange of tokens with experts in one pass of a block, (N,)."""
        return np.maximum(0.0, self.experts - self.exposed_experts)

    @cached_property
    def exposed_regather(self) -> Array:
        """Exposed seconds of gathering a block's inputs again in the backward pass, (N,): those that the
        products for input gradients do not hide."""
        half = self.block.matrices_backward / 2
        return exposed_seconds(self.tensor.block_regather, half, self.question.hardware)

    @cached_property
    def exposed_sums(self) -> Array:
        """Exposed seconds of summing a block's input gradients over tensor ranks, (N,): those that the
        products for weight gradients do not hide."""
        return exposed_seconds(self.tensor.block_summed, self.block.column_weight, self.question.hardware)

    @cached_property
    def forward_window(self) -> Array:
        """Seconds of a block's forward pass that can hide data-parallel communication, (N,)."""
        return self.block.forward + self.context.forward

    @cached_property
    def backward_window(self) -> Array:
        """Seconds of a block's backward pass that can hide data-parallel communication, (N,).

        Communication that is already hidden takes nothing from others, but they continue while the pass waits
        for it, so no device is slower for computing faster.
        """
        return self.block.backward + self.exposed_regather + self.exposed_sums + self.context.backward


def _links_of(pieces: Pieces) -> Links:
    """Process groups of the parallel axes, and seconds of data-parallel communication per part of the model."""
    question, columns, counts = pieces.question, pieces.columns, pieces.counts
    groups = axis_groups(question.cluster, columns)
    mesh = MeshGroups(tp=groups.tp, cp=groups.cp, pp=groups.pp, ep=groups.ep, etp=groups.etp)
    if not pieces.data_parallel:
        zeros = np.broadcast_to(np.float64(0.0), (len(columns),))
        none = DataSeconds(zeros, zeros, zeros, zeros)
        return Links(groups=mesh, block=none, embedding=none, head=none, norms=zeros)
    head = pieces.head_parameters
    rank_parameters = counts.block * question.model.num_layers / columns.pp + counts.embedding + head
    matrices = sum(len(one.gemm.outputs) for one in block_operators(question.model) if one.gemm)

    def seconds(module: Array, tensors: float, part: Part) -> DataSeconds:
        """Data-parallel seconds of a module with `module` parameters (N,) in `tensors` tensors."""
        # ranks that own tensors of it: as many as its share of the parameters, at most one a tensor
        owners = np.minimum(tensors, columns.shard * module / rank_parameters)
        of = trained_share(question, columns, part)
        return data_seconds(question, columns, groups.data, module, owners, of)

    block = seconds(counts.block, matrices, "block")
    if question.model.moe_share:  # experts have fewer replicas than the rest
        of = trained_share(question, columns, "experts")
        routed = data_seconds(question, columns, groups.experts, counts.experts, trained=of)
        block = DataSeconds(*map(np.add, block, routed))
    ends = seconds(counts.embedding, 1.0, "embedding"), seconds(head, 1.0, "head")
    return Links(mesh, block, *ends, norms_seconds(question, columns, groups))


def head_parameters(question: Question, columns: LayoutColumns, counts: Parameters) -> Array:
    """Number of parameters of final norm and output matrix on the last stage, (N,); an output matrix tied to
    an embedding on the same rank is not counted again."""
    shared = question.model.tied_embeddings & (columns.pp == 1)
    return counts.head_vectors + np.where(shared, 0.0, counts.head_matrix)


_SPLIT_LAUNCHES = (1.1, 2.0)
"""Launch time of input and of weight gradients in PyTorch's split backward pass, relative to an unsplit
backward pass, as Python walks the graph and calls each weight's product separately."""
_ROUTING_HOST_SECONDS = 1.0e-3
"""Additional host seconds to launch router, permutations and exchange of a block with experts in one pass, if
Megatron Core's host loops over the experts: some 32 kernels (moe/router.py, token_dispatcher.py) at 30 us
each, as a dense block's 13 take 0.4 ms."""
_EXPERT_HOST_SECONDS = 3.0e-5
"""Host seconds per local expert, mean over forward and backward: each of its two weights has a hook (Megatron
Core, distributed_data_parallel.py)."""
_EXPERT_CAST_HOST_SECONDS = 1.1e-4
"""Additional host seconds per local expert in fp8, to look up cast copies of its weights and create tensors
for two cast operands."""
SLICE_SECONDS = 7.8e-6
"""Host seconds per rank's slice of a matrix that is gathered or reduced as a list of slices (DeepSpeed v0.5,
zero/partition_parameters.py, _allgather_param and _reduce_scatter_gradient): a loop over ranks cuts a slice,
2.8 us (timed with torch 2.11 on a CPU), and c10d copies it by a separate kernel, 5 us (profile
`datasheet-gpu`)."""
MOST_PASSES = 2.0
"""Maximum number of passes over a block that a backward pass launches: its own, and the forward pass repeated
by full recompute."""


def _exposed_tensor_seconds(pieces: Pieces, comm: Array, window: Array) -> Array:
    """Exposed seconds of tensor-parallel communication that lasts `comm` seconds and may overlap matrix
    products of `window` seconds. The result has the shape of `comm`.

    Kernels send while they multiply only within one node, as user buffers and symmetric memory reach no further.
    Without `overlap=` it is the stack's share. A layout with `overlap=tp` hides it behind products in as many
    chunks as there are ranks, of which one is never hidden: the first gather precedes its product, the last
    scatter follows it.
    """
    question, columns, stack = pieces.question, pieces.columns, pieces.question.stack

    def like_sent(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Reshape an array (N,) so that it has as many axes as the communication seconds `comm`."""
        return values.reshape(-1, *[1] * (comm.ndim - 1))

    supported = question.training.precision in USER_BUFFERS or not stack.transformer_engine
    hides = like_sent(supported & (pieces.links.groups.tp.nodes == 1))
    always = np.where(hides, 1.0 - stack.overlap_tensor_parallel, 1.0) * comm
    explicit = names_overlap(columns)
    if not explicit.any():
        return always
    chunked = np.maximum(exposed_seconds(comm, window, question.hardware), comm / like_sent(columns.tp))
    requested = np.where(like_sent(columns.overlap_tp == 1) & hides, chunked, comm)
    return np.where(like_sent(explicit), requested, always)


def layer_forward(pieces: Pieces) -> Term:
    """Seconds of one block's forward pass by part: compute, exposed communication, and host time beyond the
    device's work."""
    block, tensor, context = pieces.block, pieces.tensor, pieces.context
    experts_shown = pieces.exposed_experts
    gather, gather_hidden = exposed_gathers_forward(pieces)
    tensor_shown = _exposed_tensor_seconds(pieces, tensor.block_forward, block.matrices_forward)
    exchanged = context.forward + experts_shown
    device_seconds = block.forward + tensor_shown + exchanged + gather
    host = _host_outlasting_device(pieces, pieces.launches, device_seconds)
    return {
        "compute": block.forward,
        "tp_comm": tensor_shown,
        "cp_comm": context.forward,
        "ep_comm": experts_shown,
        "dp_comm": gather,
        "host": np.maximum(host, _expert_count_wait(pieces)),
        "tp_hidden": tensor.block_forward - tensor_shown,
        "cp_hidden": context.forward_hidden,
        "ep_hidden": pieces.hidden_experts,
        "dp_hidden": gather_hidden,
        **pieces.straggler_wait(block.core_forward),
    }


def layer_backward(pieces: Pieces) -> Term:
    """Seconds of one block's backward pass by part, under each recompute policy, including communication that
    recomputation repeats."""
    question, block, tensor, context = pieces.question, pieces.block, pieces.tensor, pieces.context
    recompute, repeated = block.recomputed, tensor.block_recomputed
    data_shown, data_hidden = exposed_gathers_backward(pieces)
    waited_for = tensor.block_backward + pieces.exposed_sums
    products = np.maximum(0.0, block.matrices_backward - tensor.block_regather - tensor.block_summed)
    window = products[:, None] + np.where(repeated > 0, block.matrices_forward[:, None], 0.0)
    tensor_exposed = _exposed_tensor_seconds(pieces, waited_for[:, None] + repeated, window)
    tensor_exposed = tensor_exposed + pieces.exposed_regather[:, None]
    drops = question.stack.drops
    attends_again = np.array([0.0, float(bool(drops & ATTEND_AGAIN)), 1.0])
    context_exposed = context.backward[:, None] + context.forward[:, None] * attends_again
    exchanges = np.array([1.0, 1.0 + ("experts" in drops), 2.0])  # repeated with experts or the block
    exchanged = pieces.exposed_experts[:, None] * exchanges
    device_seconds = block.backward[:, None] + data_shown + recompute + tensor_exposed
    device_seconds = device_seconds + context_exposed + exchanged
    tensor_comm = tensor.block_backward + tensor.block_regather + tensor.block_summed
    hidden = tensor_comm[:, None] + repeated - tensor_exposed
    # backward launches about as much as forward; full recompute adds a forward
    passes = np.array([1.0, 1.0, MOST_PASSES])
    attended = block.core_backward[:, None] + block.core_forward[:, None] * attends_again
    return {
        "compute": block.backward[:, None] * np.ones(recompute.shape[-1]),
        "recompute": recompute,
        "tp_comm": tensor_exposed,
        "cp_comm": context_exposed,
        "ep_comm": exchanged,
        "dp_comm": data_shown,
        "host": _host_outlasting_device(pieces, pieces.launches[:, None] * passes, device_seconds),
        "tp_hidden": hidden,
        "cp_hidden": context.backward_hidden[:, None] + context.forward_hidden[:, None] * attends_again,
        "ep_hidden": pieces.hidden_experts[:, None] * exchanges,
        "dp_hidden": data_hidden,
        **pieces.straggler_wait(attended),
    }


def split_backward(pieces: Pieces, backward: Term) -> tuple[Term, Term]:
    """Seconds by part of one block's complete backward pass and, separately, of its half for weight
    gradients. Schedules that split the pass may run this half later.

    Communication stays with the other half. If every pass is split each half has separate launches; if few
    are, launches are divided like the device's work, so that the halves add up to the complete pass.
    """
    weight, launches = pieces.block.weight, pieces.launches
    device_seconds = sum_of_parts({part: value for part, value in backward.items() if part != "host"})
    of_input, of_weight = _SPLIT_LAUNCHES if pieces.question.stack.torch_pipelining else (1.0, 1.0)
    first = _host_outlasting_device(pieces, of_input * launches[:, None], device_seconds - weight[:, None])
    second = _host_outlasting_device(pieces, of_weight * launches, weight)
    shared = backward["host"][:, 0] * weight / device_seconds[:, 0]
    always = is_scheduled(pieces.columns, ALWAYS_SPLIT)
    host = np.where(always[:, None], first + second[:, None], backward["host"])
    return {**backward, "host": host}, {"compute": weight, "host": np.where(always, second, shared)}


def _expert_count_wait(pieces: Pieces) -> Array:
    """Seconds that the device idles before the experts' first product, (N,), while the host reads the number
    of tokens of each expert.

    If no token is dropped the host reads the counts before it can launch the experts' kernels, by when the
    device has finished all earlier ones. It loops over the experts of the first of their two products (half
    of what they add to a pass) before it launches one. Another microbatch fills the gap; CUDA graphs need no
    counts.
    """
    question, stack = pieces.question, pieces.question.stack
    if not (question.model.has_experts and stack.waits_for_expert_counts and pieces.device.launches_ahead):
        return pieces.zeros
    eager = (1.0 - stack.experts_in_one_kernel) * (1.0 - stack.overlap_expert_exchange)
    first = question.model.num_experts / pieces.columns.ep * _expert_host_seconds(question) / 2
    return question.model.moe_share * eager * first


def _expert_host_seconds(question: Question) -> float:
    """Host seconds to launch the kernels of one expert in one pass."""
    narrow = question.training.operand_bytes < question.training.element_bytes
    return _EXPERT_HOST_SECONDS + _EXPERT_CAST_HOST_SECONDS * narrow


def _host_outlasting_device(pieces: Pieces, launches: Array, device_seconds: Array) -> Array:
    """Exposed host seconds for launching a block's kernels: all `launches` on a CPU, on a GPU only the excess
    over the device's work."""
    return np.maximum(0.0, launches - device_seconds) if pieces.device.launches_ahead else launches


def window_with_launches(pieces: Pieces, window: Array, *, passes: float) -> Array:
    """Seconds of compute that can hide communication, (N,): `window` or, if longer, the host seconds for
    launching the kernels of `passes` passes.

    Stages differ in what they recompute, so of backward passes the one with most launches counts: with a
    shorter window a device that outpaces its host would expose more the faster it is.
    """
    return np.maximum(window, passes * pieces.launches) if pieces.device.launches_ahead else window


_TOKEN_BYTES, _SIZE_BYTES = 8, 40
"""Bytes of a token id, and of the five sizes that Megatron-LM broadcasts before a batch
(core/tensor_parallel/data.py)."""
_MASK_BYTES = 17
"""Bytes read and written per pair of positions to build a causal mask. A matrix of ones and its lower
triangle are in fp32 and compared (megatron/utils.py)."""
_MASK_KERNELS = 3


def action_terms(pieces: Pieces) -> dict[str, Term]:
    """Seconds by part of each pipeline action outside its blocks: blocking sends, host work, and broadcast of
    the batch. Sends that do not block are the coefficient `p2p`."""
    question, columns = pieces.question, pieces.columns
    action_seconds, ahead = question.hardware.action_host_seconds, pieces.device.launches_ahead
    hands_on = boundary_seconds(question, columns, pieces.links.groups)
    sends_on = is_overlapped(columns, "pp", default=question.stack.overlap_pipeline_sends)
    blocked, overlapped_send = np.where(sends_on, 0.0, hands_on), np.where(sends_on, hands_on, 0.0)
    host = np.where(columns.pp > 1, action_seconds, 0.0)
    waits = ~sends_on & (columns.pp > 1) & ahead
    gets = question.stack.broadcasts_every_batch
    batch: Term = {}
    if gets:  # a batch is sent and masked on every stage
        length, profile = question.training.sequence_length, question.hardware
        tokens, tensor_ranks = columns.tokens(length) * _TOKEN_BYTES, pieces.links.groups.tp
        seconds = broadcast_seconds(tokens, tensor_ranks, profile)
        seconds = seconds + broadcast_seconds(np.full(len(columns), _SIZE_BYTES), tensor_ranks, profile)
        mask = _MASK_BYTES * length**2 / pieces.device.memory_rate + _MASK_KERNELS * profile.kernel_seconds
        batch = {"compute": pieces.zeros + mask, "tp_comm": seconds}
    return {
        "stage_forward": {"pp_comm": blocked, "host": host + action_seconds * (waits | gets)} | batch,
        "stage_backward": {"pp_comm": blocked, "host": host + action_seconds * waits},
        "stage_weight": {"host": np.where(is_scheduled(columns, ALWAYS_SPLIT), host, 0.0)},
        "p2p": {"pp_comm": overlapped_send},
    }


_Exposed = tuple[Array, Array]
"""Exposed seconds and hidden (overlapped) seconds of the same communication."""


def exposed_gathers_forward(pieces: Pieces) -> _Exposed:
    """Exposed and hidden seconds of gathering a block's ZeRO-3 weights in a forward pass, (N,) each."""
    if pieces.question.stack.zero3_waits_for_device:
        return _MatrixGathers(pieces).forward()
    return _exposed_behind(pieces, pieces.links.block.gather, pieces.forward_window)


def exposed_gathers_backward(pieces: Pieces) -> _Exposed:
    """Exposed and hidden seconds of gathering a block's ZeRO-3 weights and reducing its gradients in a
    backward pass, (N, P) each."""
    data, policies = pieces.links.block, len(RECOMPUTE_POLICIES)
    if pieces.question.stack.zero3_reuse_elements is None:
        every_policy = _exposed_behind(pieces, data.gather + data.backward_reduce, pieces.backward_window)
        by_policy = [every_policy] * policies
    else:
        by_policy = list(map(_MatrixGathers(pieces).backward, range(policies)))
    exposed, hidden = (np.stack(some, axis=-1) for some in zip(*by_policy, strict=True))
    return exposed, hidden


class _MatrixGathers:
    """Seconds of gathering a block's ZeRO-3 weights one matrix after another, for stacks with a hook on each
    matrix (DeepSpeed)."""

    def __init__(self, pieces: Pieces) -> None:
        columns, self._pieces, question = pieces.columns, pieces, pieces.question
        products = products_of(block_operators(question.model))
        self._matrices = [one for one, _ in products]
        runs = [(one.share, local_gemm(question, columns, gemm)) for one, gemm in products]
        seconds = [share * forward_seconds(local, pieces.device) for share, local in runs]
        self._product_UN = np.stack(np.broadcast_arrays(*seconds))
        degrees = columns.tp, columns.ep, columns.etp
        shares = [one.share * sum(parameters_on_rank(one.weights, *degrees)) for one in self._matrices]
        self._share_UN = np.stack(shares) / _ordered_sum(np.stack(shares))
        # the host cuts and copies a tensor, a slice a rank
        self._slice_N = np.where(pieces.links.block.gather > 0, SLICE_SECONDS * columns.shard, 0.0)

    def forward(self) -> _Exposed:
        """Exposed and hidden gather seconds of a forward pass, (N,) each. While a matrix computes, the next
        one is gathered."""
        gather_UN = self._pieces.links.block.gather * np.roll(self._share_UN, -1, axis=0)
        return self._run_by_run(list(zip(gather_UN, gather_UN, self._seconds(backward=False), strict=True)))

    def backward(self, policy: int) -> _Exposed:
        """Exposed and hidden seconds of gathering weights and reducing gradients in a backward pass under
        recompute policy `policy`, (N,) each. Matrices run from last to first; recomputed matrices run forward
        just before they are needed."""
        pieces, name, stack = self._pieces, RECOMPUTE_POLICIES[policy], self._pieces.question.stack
        data, recomputed = pieces.links.block, pieces.block.recomputed[:, policy]
        drops = stack.drops if name == "selective" else frozenset()
        redone = [at for at, one in enumerate(self._matrices) if name == "full" or drops & one.redone_by]
        runs: list[tuple[int, bool]] = []  # number of a matrix, and whether it is at work backward
        for matrix in reversed(range(len(self._matrices))):
            if matrix in redone and all(backward for _, backward in runs):
                runs += [(number, False) for number in redone]
            runs.append((matrix, True))
        gathers = []  # of what was used forward again only where too much passed in between for it to be kept
        for at, (matrix, backward) in enumerate(runs):
            share = self._share_UN[matrix]
            if backward and (matrix, False) in runs:
                shares = [self._share_UN[one] for one, _ in runs[runs.index((matrix, False)) + 1 : at]]
                passed = _ordered_sum(shares) * (pieces.counts.block + pieces.counts.experts)
                share = np.where(passed < (stack.zero3_reuse_elements or 0), 0.0, share)
            gathers.append(data.gather * share)
        if not stack.zero3_waits_for_device:
            traffic = _ordered_sum(gathers) + data.backward_reduce
            return _exposed_behind(pieces, traffic, pieces.backward_window + recomputed)
        forward_UN, backward_UN = self._seconds(backward=False), self._seconds(backward=True)
        redone_seconds = sum(forward_UN[number] for number in redone)
        behind = []
        for at, (matrix, backward) in enumerate(runs):
            # runs forward take what is recomputed; where there are none, what reads the core does
            reads_core = self._matrices[matrix].reads_core and not redone
            seconds = backward_UN[matrix] + reads_core * recomputed
            if not backward:
                seconds = recomputed * forward_UN[matrix] / redone_seconds
            (previous, reduces), gather = runs[at - 1], gathers[(at + 1) % len(runs)]
            reduced = (data.backward_reduce * self._share_UN[previous] + self._slice_N) * reduces
            behind.append((gather, gather + reduced, seconds))
        return self._run_by_run(behind)

    def _run_by_run(self, runs: Sequence[tuple[Array, Array, Array]]) -> _Exposed:
        """Exposed and hidden communication seconds of a pass over several matrices in order, (N,) each.
        `runs` has each matrix's seconds of its gather, of all its communication, and of its compute. Only
        under ZeRO-3 does each matrix wait for its own communication."""
        gathers, communication, seconds = (np.stack(some) for some in zip(*runs, strict=True))
        late = self._slice_N * (gathers > 0).sum(axis=0)
        waited = [_exposed_behind(self._pieces, *run) for run in zip(communication, seconds, strict=True)]
        exposed, hidden = (_ordered_sum(some) for some in zip(*waited, strict=True))
        totals = _ordered_sum(communication), _ordered_sum(seconds)
        shown_once, hidden_once = _exposed_behind(self._pieces, *totals)
        zero3 = self._pieces.columns.zero == 3
        return np.where(zero3, late + exposed, shown_once), np.where(zero3, hidden, hidden_once)

    def _seconds(self, *, backward: bool) -> Array:
        """Compute seconds of each of U matrices in a forward or backward pass, (U, N). The attention core
        counts with the matrix next to it, and work other than products in proportion to parameters."""
        pieces, block, product_UN = self._pieces, self._pieces.block, self._product_UN
        products = block.matrices_backward if backward else block.matrices_forward
        core = block.core_backward if backward else block.core_forward
        window = pieces.backward_window if backward else pieces.forward_window
        readers = [number for number, one in enumerate(self._matrices) if one.reads_core]
        remainder = window - products - (core if readers else 0.0 * core)
        run_UN: Array = product_UN / _ordered_sum(product_UN) * products + self._share_UN * remainder
        for reader in readers[:1]:
            run_UN[reader if backward else reader - 1] += core
        return run_UN


def _ordered_sum(arrays: Iterable[Array]) -> Array:
    """Sum arrays in a fixed order, so that floating-point results do not depend on which layouts are computed
    together."""
    total: Array = reduce(np.add, arrays, np.zeros(1))
    return total


def _exposed_behind(pieces: Pieces, communication: Array, window: Array) -> _Exposed:
    """Split `communication` seconds that overlap `window` seconds of compute into exposed and hidden seconds,
    (N,) each."""
    streams = pieces.question.cluster.gpu.kind != "cpu"  # there `fully_shard` waits for every gather
    exposed = exposed_seconds(communication, window, pieces.question.hardware, overlapped=streams)
    return exposed, communication - exposed


def sync_terms(pieces: Pieces) -> dict[str, Term]:
    """Exposed seconds of gradient reduction after a rank's last backward pass, by part of the model."""
    links, layer, question = pieces.links, pieces.links.block.step_reduce, pieces.question
    window = window_with_launches(pieces, pieces.backward_window, passes=MOST_PASSES)
    layer_shown = _exposed_reduce(pieces, layer, window)
    once = np.where(pieces.columns.replicas > 1, question.hardware.collective_seconds, 0.0)
    never = _unhideable_seconds(pieces, layer_shown)
    layer_sync = {"dp_comm": layer_shown + never, "dp_hidden": layer - layer_shown - never}
    if question.training.tuning is not None:  # of gradients that each tensor rank has a part of
        message = summed_over_tensor_ranks(question, pieces.columns) * STATE_BYTES[gradient_dtype(question)]
        seconds = all_reduce_seconds(message, links.groups.tp, question.hardware)
        layer_sync["tp_comm"] = np.where(message > 0, seconds, 0.0)
    head = links.head.step_reduce
    head_shown = _exposed_reduce(pieces, head, pieces.ends.head_backward)
    tied = tied_reduce_seconds(question, pieces.columns, links.groups.pp)
    return {
        "layer_sync": layer_sync,
        "rank_sync": {"dp_comm": once},
        "embedding_sync": {"dp_comm": links.embedding.step_reduce, "pp_comm": tied},
        "head_sync": {"dp_comm": head_shown, "dp_hidden": head - head_shown, "pp_comm": tied},
    }


def _unhideable_seconds(pieces: Pieces, reduce_shown: Array) -> Array:
    """Data-parallel communication seconds per block that `overlap=dp` cannot hide, (N,), less those already
    counted as exposed. 0 in layouts without `overlap=dp`.

    No compute remains that could hide the last block's reduction, and none has begun that could hide the
    first gather.
    """
    columns, block = pieces.columns, pieces.links.block
    overlaps_dp = columns.overlap_dp == 1
    if not overlaps_dp.any():
        return pieces.zeros
    share = np.minimum(1.0, columns.pp / pieces.question.model.num_layers)
    exposed = reduce_shown + exposed_update_gather(pieces, block.step_gather, forward_window(pieces))
    unhidden = np.maximum(0.0, share * (block.step_reduce + block.step_gather) - exposed)
    return np.where(overlaps_dp, unhidden, 0.0)


def _exposed_reduce(pieces: Pieces, reduce: Array, window: Array) -> Array:
    """Exposed seconds of reducing a module's gradients at the end of a step, (N,), as a mean over the rank's
    chunks. The reduction takes `reduce` seconds, the module's backward pass `window` seconds."""
    question, columns, stack = pieces.question, pieces.columns, pieces.question.stack
    at_once = np.isin(columns.zero, stack.overlaps_gradient_reduce_at)
    overlapped = at_once & is_overlapped(columns, "dp", default=stack.overlap_gradient_reduce)
    exposed = exposed_seconds(reduce, window, question.hardware, overlapped=overlapped)
    turns = overlapped & (columns.vpp > 1) & ~is_scheduled(columns, V_SHAPED)
    if not (stack.reduces_chunks_in_turn and turns.any()):
        return exposed
    a_round = round_sizes(columns.pp, columns.microbatches(question.training.global_batch))
    earlier_chunks = exposed_seconds(reduce, a_round * window, question.hardware, overlapped=overlapped)
    return np.where(turns, (reduce + (columns.vpp - 1) * earlier_chunks) / columns.vpp, exposed)


def exposed_update_gather(pieces: Pieces, gather: Array, window: Array) -> Array:
    """Exposed seconds of gathering updated weights (ZeRO-1/2), (N,), if the gather takes `gather` seconds and
    `window` seconds of compute may hide it."""
    hides = is_overlapped(pieces.columns, "dp", default=pieces.question.stack.overlap_parameter_gather)
    return exposed_seconds(gather, window, pieces.question.hardware, overlapped=hides)


def forward_window(pieces: Pieces) -> Array:
    """Seconds of a block's forward pass, with kernel launches, that can hide the gather of updated weights,
    (N,)."""
    return window_with_launches(pieces, pieces.forward_window, passes=1.0)


def optimizer_terms(pieces: Pieces) -> dict[str, Term]:
    """Seconds by part of the model of updating the rank's share of the optimizer states and gathering updated
    weights (ZeRO-1/2).

    On the device it is bound by memory: per parameter it reads gradient, moments and (master) weight and
    writes all but the gradient. The gradient norm reads the gradients once more, averaging over replicas
    reads and writes them, a persistent buffer is zeroed.
    """
    links, ends = pieces.links, ENDS if ends_differ(pieces.question) else ()
    update_seconds = dict.fromkeys(ENDS, pieces.update_seconds) | {
        end: _update_seconds(pieces, end) for end in ends
    }
    once = {"optimizer": pieces.zeros + pieces.device.profile.kernel_seconds}
    if links.norms.any():  # LAMB's, over tensor ranks alone where nothing else splits a parameter
        tensor_only = (pieces.columns.zero == 0) & (not pieces.question.model.has_experts)
        once["tp_comm"] = np.where(tensor_only, links.norms, 0.0)
        once["dp_comm"] = np.where(tensor_only, 0.0, links.norms)
    terms = {"rank_optimizer": once}
    for name, update, data, window in (
        ("layer", block_update(pieces), links.block, forward_window(pieces)),
        ("embedding", pieces.counts.embedding * update_seconds["embedding"], links.embedding, pieces.zeros),
        ("head", pieces.head_parameters * update_seconds["head"], links.head, pieces.ends.head_forward),
    ):
        gather = data.step_gather
        exposed = exposed_update_gather(pieces, gather, window)
        terms[f"{name}_optimizer"] = {"optimizer": update, "dp_comm": exposed, "dp_hidden": gather - exposed}
    return terms


def block_update(pieces: Pieces) -> Array:
    """Seconds to update a block's parameters on the device, without jitter, (N,)."""
    block = pieces.counts.block * pieces.update_seconds
    if pieces.question.model.has_experts:
        block = block + pieces.counts.experts * _update_seconds(pieces, "experts")
    return block


def block_update_seconds(question: Question, columns: LayoutColumns) -> Array:
    """Seconds to update a block's parameters on the device, jitter included, (N,)."""
    return block_update(Pieces(question, columns)) * (1 + jitter_share(question, columns))


def _update_seconds(pieces: Pieces, part: Part) -> Array:
    """Seconds to update one parameter of a `part` of the model on the device, (N,): bytes read and written
    over memory bandwidth."""
    question, columns = pieces.question, pieces.columns
    experts, states = part == "experts", pieces.states[part]
    share = trained_share(question, columns, part).share
    sharded = columns.shards(part, zero=1)
    copies = columns.expert_replicas if experts else columns.replicas
    buffered = question.stack.gradient_buffer & (columns.zero <= 1)
    passes = 2 + np.where(copies > 1, 2, 0) + np.where(buffered, sharded, 0)
    gradients = passes * STATE_BYTES[gradient_dtype(question)] / sharded
    besides = question.stack.unfused_update_bytes
    if question.training.optimizer == "lamb":
        besides += question.stack.lamb_update_bytes
    unfused = besides / sharded
    touched = share * gradients + 2 * states.optimizer + 2 * states.updated + share * unfused
    return touched / pieces.device.optimizer_rate


def tied_reduce_seconds(question: Question, columns: LayoutColumns, boundary: Groups) -> Array:
    """Seconds to add the gradients of tied embedding and output matrix on first and last stage, (N,), by one
    transfer over links of the groups `boundary`.

    In a V both are on one rank.
    """
    matrix = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp).head_matrix
    message = matrix * STATE_BYTES[gradient_dtype(question)]
    seconds = point_to_point_seconds(message, boundary, question.hardware)
    separate = (columns.pp > 1) & ~is_scheduled(columns, V_SHAPED)
    trains = question.training.trains("head matrix")
    return np.where(question.model.tied_embeddings & separate & trains, seconds, 0.0)
