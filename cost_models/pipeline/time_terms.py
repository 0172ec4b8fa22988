"""Every time coefficient of `StageCosts`, split into the parts a user sees.

A term is `{part: seconds}`. Parts in `HIDDEN_PARTS` run behind others: they are shown, never added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.distinct import over_distinct
from cost_models.communication.collectives import point_to_point_seconds
from cost_models.communication.context import ContextSeconds, context_seconds
from cost_models.communication.data import DataSeconds, data_seconds, exposed, no_seconds
from cost_models.communication.expert import expert_seconds
from cost_models.communication.pipeline import boundary_seconds
from cost_models.communication.tensor import TensorSeconds, tensor_seconds
from cost_models.communication.topology import Groups, MeshGroups, axis_groups
from cost_models.compute.block import BlockSeconds, block_seconds
from cost_models.compute.device import Device, device_of
from cost_models.compute.ends import EndSeconds, end_seconds
from cost_models.compute.host_update import host_update_seconds
from cost_models.memory.states import state_bytes
from cost_models.operators.accumulation import gradient_dtype
from cost_models.operators.parameters import Parameters, parameters
from cost_models.question import Question
from cost_models.schedules.traits import always_split, v_shaped
from cost_models.specs.training import STATE_BYTES

Array = npt.NDArray[np.float64]
Term = dict[str, Array]

TIME_PARTS = (
    "compute",
    "recompute",
    "tp_comm",
    "cp_comm",
    "ep_comm",
    "pp_comm",
    "dp_comm",
    "optimizer",
    "host",
    "jitter",
)
_END_OF_A_BLOCK = 0.5
"""To drive an end of the model takes this share of a block, on a CPU: both together take as long as one."""
MOST_PASSES = 2.0
"""Of a block that a backward pass launches: its own, and the forward pass that full recompute repeats."""
HIDDEN_PARTS = ("tp_hidden", "cp_hidden", "ep_hidden", "dp_hidden")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTerms:
    """Coefficients named as in `StageCosts`; arrays are (N,), in `layer_backward` (N, P)."""

    layer_forward: Term
    layer_backward: Term
    embedding_forward: Term
    embedding_backward: Term
    head_forward: Term
    head_backward: Term
    stage_forward: Term
    stage_backward: Term
    layer_weight: Term
    head_weight: Term
    stage_weight: Term
    p2p: Term
    layer_sync: Term
    embedding_sync: Term
    head_sync: Term
    rank_sync: Term
    layer_optimizer: Term
    embedding_optimizer: Term
    head_optimizer: Term
    rank_optimizer: Term
    step_overhead: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """Where the ranks sit, and data-parallel seconds of each module."""

    groups: MeshGroups
    block: DataSeconds
    """Its experts over the ranks that hold the same."""
    embedding: DataSeconds
    head: DataSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """What the coefficients are put together from."""

    question: Question
    columns: LayoutColumns
    device: Device
    links: _Links
    block: BlockSeconds
    ends: EndSeconds
    tensor: TensorSeconds
    context: ContextSeconds
    experts: Array
    """Exchange of tokens between experts, one pass of one block."""
    counts: Parameters

    @property
    def none(self) -> Array:
        """(N,) zeros."""
        return np.zeros(len(self.columns))

    @property
    def regather(self) -> Array:
        """(N,) seconds of a block's backward pass that wait for inputs to be gathered again."""
        return exposed(self.tensor.block_regather, self.block.matrices_backward / 2, overlapped=True)

    @property
    def forward_window(self) -> Array:
        """(N,) seconds of a block's forward pass behind which data-parallel communication runs."""
        return self.block.forward + self.context.forward

    @property
    def backward_window(self) -> Array:
        """(N,) seconds of its backward pass. What already hides behind compute takes nothing from others, but where the
        pass waits for it, they go on too: so no device is slower for computing faster."""
        return self.block.backward + self.regather + self.context.backward


def time_terms(question: Question, columns: LayoutColumns, *, data_parallel: bool = True) -> TimeTerms:
    """All time coefficients for N layouts at once, or as if no other ranks held the same parameters."""
    device = device_of(question)
    links = _links(question, columns, data_parallel)
    groups = links.groups
    block = block_seconds(question, columns, device)
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    pieces = _Pieces(
        question=question,
        columns=columns,
        device=device,
        links=links,
        block=block,
        ends=end_seconds(question, columns, device_of(question, wide=True)),
        tensor=tensor_seconds(question, columns, groups.tp),
        context=context_seconds(question, columns, groups.cp, block.core_forward, block.core_backward),
        experts=expert_seconds(question, columns, groups),
        counts=counts,
    )
    ends, tensor = pieces.ends, pieces.tensor
    layer_backward, layer_weight = _halves(pieces, _layer_backward(pieces))
    hands_on = boundary_seconds(question, columns, groups)
    blocking = not question.stack.overlap_pipeline_sends
    action_host = np.where(columns.pp > 1, question.hardware.action_host_seconds, 0.0)
    on_cpu = question.cluster.gpu.kind == "cpu"
    end = {"host": _END_OF_A_BLOCK * _launches(pieces)} if on_cpu else {}
    stage = {"pp_comm": hands_on if blocking else pieces.none, "host": action_host}
    terms = {
        "layer_forward": _layer_forward(pieces),
        "layer_backward": layer_backward,
        "embedding_forward": {"compute": ends.embedding_forward, "tp_comm": tensor.embedding_forward} | end,
        "embedding_backward": {"compute": ends.embedding_backward, "tp_comm": tensor.embedding_backward}
        | end,
        "head_forward": {"compute": ends.head_forward, "tp_comm": tensor.head_forward} | end,
        "head_backward": {"compute": ends.head_backward, "tp_comm": tensor.head_backward} | end,
        "stage_forward": stage,
        "stage_backward": stage,
        "layer_weight": layer_weight,
        "head_weight": {"compute": ends.head_weight},
        "stage_weight": {"host": np.where(always_split(columns), action_host, 0.0)},
        "p2p": {"pp_comm": pieces.none if blocking else hands_on},
        **_sync(pieces),
        **_optimizer(pieces),
        "step_overhead": {"host": np.full(len(columns), question.hardware.step_seconds)},
    }
    slowdown = jitter(question, columns)
    return TimeTerms(**{name: with_jitter(term, slowdown) for name, term in terms.items()})


def _links(question: Question, columns: LayoutColumns, data_parallel: bool) -> _Links:
    """Everything that does not depend on the size of a microbatch and on what is done with it."""
    names = ("tp", "cp", "pp", "dp", "ep", "etp", "shard", "zero", "order")
    return over_distinct(columns, names, lambda rows: _links_of_each(question, rows, data_parallel))


def _links_of_each(question: Question, columns: LayoutColumns, data_parallel: bool) -> _Links:
    groups = axis_groups(question.cluster, columns)
    mesh = MeshGroups(tp=groups.tp, cp=groups.cp, pp=groups.pp, ep=groups.ep, etp=groups.etp)
    if not data_parallel:
        none = no_seconds(len(columns))
        return _Links(groups=mesh, block=none, embedding=none, head=none)
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    block = data_seconds(question, columns, groups.data, counts.block)
    if question.model.has_experts:  # experts have fewer replicas than the rest
        block = block + data_seconds(question, columns, groups.experts, counts.experts)
    return _Links(
        groups=mesh,
        block=block,
        embedding=data_seconds(question, columns, groups.data, counts.embedding),
        head=data_seconds(question, columns, groups.data, _head_parameters(question, columns, counts)),
    )


def total(term: Term) -> Array:
    """Sum of the parts that take time of their own."""
    return sum((term[part] for part in TIME_PARTS if part in term), start=np.zeros(1))


def _has_streams(pieces: _Pieces) -> bool:
    """A device that gathers weights behind its compute; on a CPU `fully_shard` waits for every gather."""
    return pieces.question.cluster.gpu.kind != "cpu"


def _layer_forward(pieces: _Pieces) -> Term:
    """One block forward: compute, exposed tensor-parallel and gather time, and launches that outlast the device."""
    block, tensor, context = pieces.block, pieces.tensor, pieces.context
    data, experts = pieces.links.block, pieces.experts
    gather = exposed(data.forward_gather, pieces.forward_window, overlapped=_has_streams(pieces))
    shown = 1.0 - pieces.question.stack.overlap_tensor_parallel
    apart = 1.0 - pieces.question.stack.overlap_expert_exchange
    exchanged = context.forward + apart * experts
    device_seconds = block.forward + shown * tensor.block_forward + exchanged + gather
    return {
        "compute": block.forward,
        "tp_comm": shown * tensor.block_forward,
        "cp_comm": context.forward,
        "ep_comm": apart * experts,
        "dp_comm": gather,
        "host": _host(pieces, device_seconds, passes=1.0),
        "tp_hidden": (1 - shown) * tensor.block_forward,
        "cp_hidden": context.forward_hidden,
        "ep_hidden": (1 - apart) * experts,
        "dp_hidden": data.forward_gather - gather,
    }


def _layer_backward(pieces: _Pieces) -> Term:
    """One block backward under each policy; what is recomputed repeats its communication too."""
    question, block, tensor, context = pieces.question, pieces.block, pieces.tensor, pieces.context
    none, n = pieces.none, len(pieces.columns)
    data = pieces.links.block
    recompute = block.recomputed
    repeated = np.stack([none, none, tensor.block_forward], axis=-1)
    shown = 1.0 - question.stack.overlap_tensor_parallel
    regather = pieces.regather
    communicated = data.backward_gather + data.backward_reduce
    data_exposed = exposed(communicated, pieces.backward_window, overlapped=_has_streams(pieces))
    tensor_exposed = shown * (tensor.block_backward[:, None] + repeated) + regather[:, None]
    attends_again = np.array([0.0, 1.0, 1.0])  # both policies run the attention core once more
    context_exposed = context.backward[:, None] + context.forward[:, None] * attends_again
    apart = 1.0 - question.stack.overlap_expert_exchange
    exchanged = pieces.experts[:, None] * np.array([1.0, 1.0, 2.0])  # with the block its exchange is repeated
    device_seconds = (block.backward + data_exposed)[:, None] + recompute + tensor_exposed
    device_seconds = device_seconds + context_exposed + apart * exchanged
    hidden = tensor.block_backward[:, None] + repeated + tensor.block_regather[:, None] - tensor_exposed
    # backward launches about as much as forward; full recompute adds a forward
    passes = np.array([1.0, 1.0, MOST_PASSES])
    every = np.ones((n, recompute.shape[-1]))
    return {
        "compute": block.backward[:, None] * every,
        "recompute": recompute,
        "tp_comm": tensor_exposed,
        "cp_comm": context_exposed,
        "ep_comm": apart * exchanged,
        "dp_comm": data_exposed[:, None] * every,
        "host": _host(pieces, device_seconds, passes=passes),
        "tp_hidden": hidden,
        "cp_hidden": context.backward_hidden[:, None] + context.forward_hidden[:, None] * attends_again,
        "ep_hidden": (1 - apart) * exchanged,
        "dp_hidden": (communicated - data_exposed)[:, None] * every,
    }


def _halves(pieces: _Pieces, backward: Term) -> tuple[Term, Term]:
    """One block backward as its schedule runs it, and the part of that which a split runs apart, towards the weights.

    Communication stays with the other half. Where every pass is split each half is launched by itself; where few are,
    launches are shared out as the device's work is, so that the halves add up to the whole pass.
    """
    weight, launches = pieces.block.weight, _launches(pieces)
    device_seconds = total({part: value for part, value in backward.items() if part != "host"})
    of_input, of_weight = pieces.question.stack.split_backward_launches
    first = _outlasting(pieces, of_input * launches[:, None], device_seconds - weight[:, None])
    second = _outlasting(pieces, of_weight * launches, weight)
    shared = backward["host"][:, 0] * weight / device_seconds[:, 0]
    always = always_split(pieces.columns)
    host = np.where(always[:, None], first + second[:, None], backward["host"])
    return {**backward, "host": host}, {"compute": weight, "host": np.where(always, second, shared)}


def _host(pieces: _Pieces, device_seconds: Array, *, passes: float | Array) -> Array:
    """Time the host needs to launch a block: in full on a CPU, what outlasts the device's work on a GPU."""
    per_pass = _launches(pieces)
    launches: Array = per_pass * passes if isinstance(passes, float) else per_pass[:, None] * passes
    return _outlasting(pieces, launches, device_seconds)


def _launches(pieces: _Pieces) -> Array:
    """(N,) seconds to launch a block once."""
    profile = pieces.question.hardware
    split = np.where(pieces.columns.tp > 1, profile.tensor_parallel_host_seconds, 0.0)
    split = split + np.where(pieces.columns.sp == 1, profile.sequence_parallel_host_seconds, 0.0)
    sharded = pieces.question.stack.fully_shard & (pieces.columns.zero >= 2) & (pieces.columns.shard > 1)
    split = split + np.where(sharded, profile.sharded_host_seconds, 0.0)
    seconds: Array = profile.host_layer_seconds + split
    return seconds


def _outlasting(pieces: _Pieces, launches: Array, device_seconds: Array) -> Array:
    return np.maximum(0.0, launches - device_seconds) if pieces.device.launches_ahead else launches


def _or_launches(pieces: _Pieces, window: Array, *, passes: float) -> Array:
    """(N,) seconds of a pass behind which communication runs, those included in which the device waits for its host.

    Stages differ in what they recompute, so of backward passes those count that launch most: behind a shorter window
    a device that is faster than its host would show more the faster it is.
    """
    return np.maximum(window, passes * _launches(pieces)) if pieces.device.launches_ahead else window


def _sync(pieces: _Pieces) -> dict[str, Term]:
    """Gradients still to be reduced after the last backward of a rank."""
    overlapped = pieces.question.stack.overlap_gradient_reduce
    columns, links = pieces.columns, pieces.links
    layer = links.block.step_reduce
    backward = _or_launches(pieces, pieces.backward_window, passes=MOST_PASSES)
    layer_shown = exposed(layer, backward, overlapped=overlapped)
    embedding, head = links.embedding.step_reduce, links.head.step_reduce
    head_shown = exposed(head, pieces.ends.head_backward, overlapped=overlapped)
    tied = tied_reduce_seconds(pieces.question, pieces.columns, links.groups.pp)
    return {
        "layer_sync": {"dp_comm": layer_shown, "dp_hidden": layer - layer_shown},
        "embedding_sync": {"dp_comm": embedding, "pp_comm": tied},
        "head_sync": {"dp_comm": head_shown, "dp_hidden": head - head_shown, "pp_comm": tied},
        "rank_sync": {
            "dp_comm": np.where(columns.replicas > 1, pieces.question.hardware.collective_seconds, 0.0)
        },
    }


def _optimizer(pieces: _Pieces) -> dict[str, Term]:
    """Update of the rank's share of the states, then the gather of updated weights (ZeRO-1/2).

    On the device it is bound by memory: per parameter it reads gradient, moments and (master) weight and writes all but
    the gradient. The gradient norm reads the gradients once more, averaging over replicas reads and writes them, a
    buffer that stays is zeroed. Offloaded states are the CPU's to update.
    """
    columns, counts, links = pieces.columns, pieces.counts, pieces.links
    each = _update_seconds(pieces.question, columns, pieces.device, experts=False)
    head = _head_parameters(pieces.question, columns, counts)
    block = _block_update(pieces.question, columns, pieces.device, counts, each)
    forward = _or_launches(pieces, pieces.forward_window, passes=1.0)

    def term(update: Array, gather: Array, window: Array) -> Term:
        shown = exposed(gather, window, overlapped=pieces.question.stack.overlap_parameter_gather)
        return {
            "optimizer": update,
            "dp_comm": shown,
            "dp_hidden": gather - shown,
        }

    return {
        "layer_optimizer": term(block, links.block.step_gather, forward),
        "embedding_optimizer": term(counts.embedding * each, links.embedding.step_gather, pieces.none),
        "head_optimizer": term(head * each, links.head.step_gather, pieces.ends.head_forward),
        "rank_optimizer": {"optimizer": np.full(len(columns), pieces.device.profile.kernel_seconds)},
    }


def block_update_seconds(question: Question, columns: LayoutColumns) -> Array:
    """(N,) seconds to update the parameters of a block, jitter included."""
    device = device_of(question)
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    each = _update_seconds(question, columns, device, experts=False)
    return _block_update(question, columns, device, counts, each) * (1 + jitter(question, columns))


def _block_update(
    question: Question, columns: LayoutColumns, device: Device, counts: Parameters, each: Array
) -> Array:
    """(N,) the same without jitter, with the seconds of `each` parameter that is no expert's."""
    block = counts.block * each
    if question.model.has_experts:
        block = block + counts.experts * _update_seconds(question, columns, device, experts=True)
    return block


def _update_seconds(question: Question, columns: LayoutColumns, device: Device, *, experts: bool) -> Array:
    """(N,) seconds to update one parameter of the rank."""
    if question.stack.offloads != "none":
        return host_update_seconds(question, columns, experts=experts)
    return _touched_bytes(question, columns, experts=experts) / device.optimizer_rate


def _touched_bytes(question: Question, columns: LayoutColumns, *, experts: bool) -> Array:
    """(N,) bytes that a step reads and writes for each parameter of the rank."""
    states = state_bytes(question, columns, experts=experts)
    shard, copies = columns.shard, columns.replicas
    if experts:
        shard, copies = columns.expert_shard, columns.expert_replicas
    sharded = np.where(columns.zero >= 1, shard, 1)
    gradient = STATE_BYTES[gradient_dtype(question)]
    buffered = question.stack.gradient_buffer & (columns.zero <= 1)
    passes = 2 + np.where(copies > 1, 2, 0) + np.where(buffered, sharded, 0)
    touched: Array = passes * gradient / sharded + 2 * states.optimizer + 2 * states.updated
    return touched


def _head_parameters(question: Question, columns: LayoutColumns, counts: Parameters) -> Array:
    """Final norm and output matrix of the last stage; a tied matrix on the embedding's own rank is not held twice."""
    shared = question.model.tied_embeddings & (columns.pp == 1)
    return counts.head_vectors + np.where(shared, 0.0, counts.head_matrix)


def tied_reduce_seconds(question: Question, columns: LayoutColumns, boundary: Groups) -> Array:
    """First and last stage add the gradients of a tied matrix: one transfer over the stage boundary's links.

    In a V both are on one rank.
    """
    matrix = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp).head_matrix
    message = matrix * STATE_BYTES[gradient_dtype(question)]
    seconds = point_to_point_seconds(message, boundary, question.hardware)
    apart = (columns.pp > 1) & ~v_shaped(columns)
    return np.where(question.model.tied_embeddings & apart, seconds, 0.0)


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
    return {**term, "jitter": (seconds.T * slowdown).T}
