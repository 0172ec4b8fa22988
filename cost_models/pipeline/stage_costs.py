"""Costs of a pipeline stage as affine functions of its number of blocks, in columns for N layouts at once.

Everything downstream (estimate, bounds, ILP, timeline) reads these columns and nothing else, so no second
model can diverge from the first. Shape legend: N layouts (rows), P recompute policies in the order of
`RECOMPUTE_POLICIES`, K kinds, T = K·P sorts, kind by kind.

A virtual stage with `n` blocks under policy `q` takes, for one microbatch,

    forward  = stage_forward  + n · layer_forward         + embedding_forward  [first] + head_forward  [last]
    backward = stage_backward + n · layer_backward[q]     + embedding_backward [first] + head_backward [last]

A schedule that splits the backward pass runs its weight gradients as a separate action,

    weight = stage_weight + n · layer_weight + head_weight [last]          input = backward + stage_weight − weight

except on the first stage, whose input needs no gradient: all of backward runs in the weight half, and its
input half takes `stage_backward`. A pass that such a schedule does not split takes input + weight.
(`stage_weight` is zero if few passes are split.)

A stage hands its result on after a delay of `p2p` (none inside one rank). Sends that block the sender are
already inside `stage_forward` / `stage_backward`. `first` is virtual stage 0, `last` is virtual stage pp·vpp
− 1.

After its last backward a rank with N_r blocks in all still needs, before and for the optimizer step,

    sync      = rank_sync + N_r · layer_sync + embedding_sync [holds first] + head_sync [holds last]
    optimizer = rank_optimizer + N_r · layer_optimizer + embedding_optimizer [first] + head_optimizer [last]

    step = max over ranks (end of its last action + sync) + max over ranks (optimizer) + step_overhead

Memory of a rank, for each maximal set of live (forwarded, not yet backwarded) microbatches w_c of its chunks
c, u_c of which are between the halves of their backward pass, must stay below `memory_limit`:

    training  = static + Σ_c n_c (layer_static + w_c · layer_activation[q_c] + u_c · layer_pending [not first stage])
                + [holds first] (embedding_static + w_0 · embedding_activation)
                + [holds last]  (head_static + w_last · head_activation + u_last · head_pending)
                + max(max_c working[q_c] over its chunks, [holds last] head_moment)
    optimizer = static + rank_update + Σ_c n_c (layer_static + layer_update)
                + [first] (embedding_static + embedding_update) + [last] (head_static + head_update)

Every coefficient, of time (seconds) and of memory (bytes), is first split into the parts a user sees, `{part:
value}` (terms); only `stage_costs` adds them up.

**Kinds.** Models with several kinds of blocks have coefficients of each kind, of the mean block, and by sort:
a kind of block under a recompute policy. Then `n · layer` is a sum over sorts; coefficients by sort price
placements, those of the mean block serve sums over the full model and clouds of points. Coefficients that
belong to no block are those of the last block's kind (predicted further tokens have such blocks), and the
rank's remaining ones are the mean. If blocks are offloaded by number, which blocks is not specified, so all
blocks are priced as their mean.

**Further tokens.** If a model predicts some, each has an additional block behind the last one, and the head
once more. The block reads the head's input and the embedding of the next token, both normalised, side by side
through a matrix (2h, h), and ends in the same output matrix and a separate loss (DeepSeek-V3, arXiv
2412.19437, section 2.2). All are on the head's rank; in a pipeline that rank holds the token embedding a
second time, and its gradients are added to the first stage's (Megatron Core, `multi_token_prediction.py`).
Being part of the head, these blocks recompute nothing. Leaves out activations and states of the joining
matrix itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import COLUMNS as AXIS_COLUMNS
from cost_models.axes.columns import LayoutColumns, is_overlapped, is_scheduled, over_distinct, take_rows
from cost_models.axes.offload.price import offload_bytes, offload_seconds
from cost_models.axes.offload.residency import named_blocks
from cost_models.communication.by_axis import exposed_seconds
from cost_models.compute.gemm import gemm_seconds
from cost_models.memory.activations import boundary_bytes, pending_bytes
from cost_models.memory.device import fragmentation, memory_limit, workspace_bytes
from cost_models.operators.accumulation import chunks_loss
from cost_models.operators.documents import with_bucket_lengths
from cost_models.operators.parameters import trained_share
from cost_models.operators.record import tokens_on_rank
from cost_models.pipeline.seconds import (
    FRAGMENTATION,
    Pieces,
    Term,
    Terms,
    action_terms,
    jitter_share,
    layer_backward,
    layer_forward,
    optimizer_terms,
    split_backward,
    sum_of_parts,
    sum_terms,
    sync_terms,
    with_jitter,
)
from cost_models.pipeline.sizes import (
    held_back_bytes,
    persistent_block,
    persistent_end,
    update_of,
    update_of_block,
    working_bytes,
)
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT, KEEPS_ALL_LOGITS, REGISTRY
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.kinds import Kinds

_FORWARD_PASSES, _BACKWARD_PASSES = 8.0, 10.0
"""Number of reads and writes of the residual stream in a forward and backward pass of multi-token prediction,
for two norms and joining their outputs."""


def _further_seconds(pieces: Pieces, terms: Terms) -> Terms:
    """Time coefficients that multi-token prediction changes, with their new values in seconds."""
    question, columns, device = pieces.question, pieces.columns, pieces.device
    rows, h = columns.tokens(question.training.sequence_length), question.model.hidden_size
    width, joined = h / columns.tp, np.asarray(2.0 * h)
    passes = device.element_bytes * tokens_on_rank(question, columns, "stream") * h / device.memory_rate
    weight = gemm_seconds(joined, width, rows, device, over_rows=True)
    forward = gemm_seconds(rows, width, joined, device) + _FORWARD_PASSES * passes
    backward = gemm_seconds(rows, joined, width, device) + weight + _BACKWARD_PASSES * passes
    added_terms = {
        way: (_unrecomputed(terms[f"layer_{way}"]), terms[f"head_{way}"], {"compute": seconds})
        for way, seconds in (("forward", forward), ("backward", backward), ("weight", weight))
    }
    return _heads(pieces, terms, added_terms, ("sync", "optimizer"))


def _further_bytes(pieces: Pieces, terms: Terms) -> Terms:
    """Memory coefficients that multi-token prediction changes, with their new values in bytes."""
    kinds = ("activation", "pending")
    added = {kind: (terms[f"head_{kind}"], _unrecomputed(terms[f"layer_{kind}"])) for kind in kinds}
    return _heads(pieces, terms, added | {"moment": (terms["head_moment"],)}, ("static", "update"))


def _heads(pieces: Pieces, terms: Terms, gain: Mapping[str, Sequence[Term]], of_rank: Sequence[str]) -> Terms:
    """Coefficients of the output head under multi-token prediction. For each further token the head gains the
    terms in `gain` and, for each name in `of_rank`, a block, and the embedding if that is on another rank."""
    times, pipelined = pieces.question.model.further_tokens, pieces.columns.pp > 1
    heads = {f"head_{key}": sum_terms(terms[f"head_{key}"], *each, times=times) for key, each in gain.items()}
    for kind in of_rank:
        head = sum_terms(terms[f"head_{kind}"], terms[f"layer_{kind}"], times=times)
        embedding = terms[f"embedding_{kind}"].items()
        copy = {part: np.where(pipelined, value, 0.0) for part, value in embedding if part != "buffers"}
        heads[f"head_{kind}"] = sum_terms(head, copy)
    return heads


def _unrecomputed(block: Term) -> Term:
    """Term (N,) of a block under the policy without recomputation, from its term (N, P) under all policies."""
    return {part: value[:, 0] if value.ndim > 1 else value for part, value in block.items()}


_END_HOST_SHARE = 0.5
"""Host time for embedding or head on a CPU, relative to the host time for a block."""


def time_terms(question: Question, columns: LayoutColumns, *, data_parallel: bool = True) -> Terms:
    """All time coefficients of N layouts, in seconds by part; `data_parallel=False` prices each layout as if
    it had one replica."""
    question = with_bucket_lengths(question)
    pieces = Pieces(question, columns, data_parallel)
    ends, tensor, summed = pieces.ends, pieces.tensor, pieces.tensor.head_backward
    host = {"host": _END_HOST_SHARE * pieces.launches} if question.cluster.gpu.kind == "cpu" else {}
    if question.stack.reduces_behind_weight_products:
        summed = exposed_seconds(summed, ends.head_weight, question.hardware)
    hidden = {"tp_comm": summed, "tp_hidden": tensor.head_backward - summed}
    terms: Terms = {
        "layer_forward": layer_forward(pieces),
        "layer_backward": layer_backward(pieces),
        **sync_terms(pieces),
        **optimizer_terms(pieces),
        "embedding_forward": {"compute": ends.embedding_forward, "tp_comm": tensor.embedding_forward, **host},
        "embedding_backward": {"compute": ends.embedding_backward, "tp_comm": tensor.embedding_backward}
        | host,
        "head_forward": {"compute": ends.head_forward, "tp_comm": tensor.head_forward, **host},
        "head_backward": {"compute": ends.head_backward, **hidden, **host},
        "head_weight": {"compute": ends.head_weight},
        **action_terms(pieces),
        "step_overhead": {"host": np.full(len(columns), question.hardware.step_seconds)},
    }
    terms |= offload_seconds(pieces, terms)
    terms["layer_backward"], terms["layer_weight"] = split_backward(pieces, terms["layer_backward"])
    if question.model.further_tokens:
        terms |= _further_seconds(pieces, terms)
    if question.training.reference in ("resident", "host"):
        # a reference model runs before each forward pass, with its gathers and collectives; what one that lies on the
        # host waits for is its own
        once = ("offload", "offload_hidden")
        for name in ("layer_forward", "embedding_forward", "head_forward", "stage_forward"):
            terms[name] = {part: (2 - (part in once)) * value for part, value in terms[name].items()}
    slowdown = jitter_share(question, columns)
    return {name: with_jitter(term, slowdown) for name, term in terms.items()}


def memory_terms(question: Question, columns: LayoutColumns) -> Terms:
    """All memory coefficients of N layouts, in bytes by part."""
    pieces = Pieces(question, columns)
    states, counts, activations, head = (
        pieces.states,
        pieces.counts,
        pieces.activations,
        pieces.head_parameters,
    )
    of_block = states["block"], states["experts"]
    pending, head_pending = pending_bytes(question, columns)
    boundary, of_first, of_last = boundary_bytes(question, columns)
    # schedules that run backward at once have one microbatch in the head, which belongs to the loss's moment; GPipe
    # keeps them all, and DualPipeV runs another between; if backward is always split, the output product's kept
    # tensors wait for its weight half
    collects, waits = is_scheduled(columns, KEEPS_ALL_LOGITS), is_scheduled(columns, ALWAYS_SPLIT)
    live = activations.head + activations.log_probabilities
    kept_head = np.where(collects, 0.0, np.where(waits, activations.log_probabilities, live))
    head_moment = activations.loss_gradients + kept_head
    if question.training.optimizer_in_backward:  # the output matrix has its gradient beside those of logits
        gradient = question.training.element_bytes * counts.head_matrix
        head_moment = head_moment + np.where(chunks_loss(question, columns), 0.0, gradient)
    shards = (columns.zero >= 1) & (columns.replicas > 1)  # of gradients and weights
    buckets = np.where(shards, question.stack.collective_buffers or 0.0, 0.0)
    terms: Terms = {
        "static": {"buffers": boundary + workspace_bytes(question) + buckets},
        "layer_static": persistent_block(pieces, *of_block),
        "layer_activation": {"activations": activations.block},
        "layer_pending": {"activations": pending},
        "layer_update": update_of_block(pieces, *of_block),
        "rank_update": {"optimizer": np.zeros(len(columns))},
        "embedding_static": persistent_end(pieces, states["embedding"], counts.embedding)
        | {"buffers": of_first},
        "embedding_activation": {"activations": activations.embedding},
        "embedding_update": update_of(states["embedding"], counts.embedding),
        "head_static": persistent_end(pieces, states["head"], head) | {"buffers": of_last},
        "head_activation": {"activations": np.where(collects, live, np.where(waits, activations.head, 0.0))},
        "head_pending": {"activations": head_pending},
        "head_update": update_of(states["head"], head),
        "working": {"working": working_bytes(pieces)},
        "head_moment": {"working": head_moment},
    }
    terms |= offload_bytes(pieces, terms)
    if question.model.further_tokens:
        terms |= _further_bytes(pieces, terms)
    share, fragments = fragmentation(question), _stream_pools(pieces, terms)
    fragments["static"] = fragments.get("static", 0.0) + held_back_bytes(question, columns)
    # tensors that are made and freed within a step, of whose bytes the allocator wastes a share; the optimizer's step
    # reuses the memory of activations
    moving = [name for name in BYTES if name.endswith(("_activation", "_pending", "_moment", "working"))]
    fragments |= {name: share * sum_of_parts(terms[name]) for name in moving}
    if share:
        fragments["head_moment"] = fragments["head_moment"] + activations.released_logits
    terms |= {name: terms[name] | {FRAGMENTATION: size} for name, size in fragments.items()}
    return terms | {"head_moment": _with_freed_ends(pieces, terms["head_moment"])}


def _with_freed_ends(pieces: Pieces, moment: Term) -> Term:
    """Memory term `moment` of the peak during the loss, minus the weights of embedding and head if the stack
    frees them then. Their backward pass gathers them again, through a buffer (counted once if it is a
    stream's own), in addition to the gradients of logits in the weights' type."""
    question, columns = pieces.question, pieces.columns
    frees = question.stack.loss_frees_ends and not question.training.optimizer_in_backward
    applies = frees & (columns.pp == 1) & ~chunks_loss(question, columns)
    of_ends = pieces.counts.embedding + pieces.head_parameters
    freed = np.where(applies, pieces.states["embedding"].gathered * of_ends, 0.0)
    copies = 1 if fragmentation(question) else 2
    gathered = np.where(applies, copies * freed + pieces.activations.logits, 0.0)
    return moment | {"weights": -freed, "working": np.maximum(moment["working"], gathered)}


def _stream_pools(pieces: Pieces, terms: Terms) -> dict[str, Array]:
    """Bytes that `fully_shard` allocates in the allocator's separate pools of single CUDA streams, by cost
    coefficient.

    Collectives gather into a buffer of the copy-in stream, for two blocks or for embedding and head, from
    which weights are copied out. The reduction's stream makes the shards of gradients: from the second step
    on their memory blocks exist before the gradients do (torch,
    distributed/fsdp/_fully_shard/_fsdp_collectives.py).
    """
    question, states, counts, head = pieces.question, pieces.states, pieces.counts, pieces.head_parameters
    if not (question.stack.fully_shard and fragmentation(question)):
        return {}
    element, of_block = question.training.element_bytes, trained_share(question, pieces.columns, "block")
    gathers = np.where(states["block"].scattering > 0, element, 0.0)
    block_bytes = np.where(states["block"].scattering > 0, element * of_block.share + of_block.frozen, 0.0)
    blocks = 2 * block_bytes * counts.block
    single_rank = pieces.columns.pp == 1
    first = gathers * (counts.embedding + np.where(single_rank, head, 0.0))
    last = np.where(single_rank, 0.0, gathers * head)
    updates = ("layer_update", "embedding_update", "head_update")
    pooled = {name: -terms[name]["gradients"] for name in updates}  # in memory blocks of the pool
    return pooled | {
        "static": blocks,
        "layer_static": states["block"].reduced * counts.block + states["experts"].reduced * counts.experts,
        "embedding_static": states["embedding"].reduced * counts.embedding + np.maximum(0.0, first - blocks),
        "head_static": states["head"].reduced * head + np.maximum(0.0, last - blocks),
    }


Price = Callable[[Question, LayoutColumns], Terms]


def stage_terms(question: Question, columns: LayoutColumns) -> Terms:
    """All time and memory coefficients of N layouts, in seconds and bytes by part, and a device's
    `memory_limit`."""
    limit = {"memory_limit": {"limit": memory_limit(question, columns)}}
    return time_terms(question, columns) | memory_terms(question, columns) | limit


def terms_by_kind(question: Question, columns: LayoutColumns, price: Price = stage_terms) -> list[Terms]:
    """Cost coefficients for each kind of block (such as attention or recurrent). `price` computes those of a
    kind as if all blocks were of that kind. Only coefficients of blocks differ between kinds."""
    if question.kinds.number == 1:
        return [_zero_frozen_terms(kind, price(kind, columns)) for kind in question.by_kind]
    # a block without experts does not depend on their degrees, but for updates by shares of the whole model
    independent = question.stack.update_group is None
    without = replace(columns, ep=np.ones_like(columns.ep), etp=columns.tp) if independent else columns
    kinds, has_blocks, by_kind = question.kinds, named_blocks(columns) > 0, list[Terms]()
    for kind in question.by_kind:
        rows = _tower_batch_columns(question, kind, columns if kind.model.moe_share else without)
        by_kind.append(_zero_frozen_terms(kind, over_distinct(rows, AXIS_COLUMNS, partial(price, kind))))

    def mean(name: str) -> Term:
        """Coefficient `name` as the mean over blocks of all kinds."""
        return join_terms([terms[name] for terms in by_kind], kinds.mean)

    common = by_kind[kinds.of_block[-1]]
    common = common | {name: mean(name) for name in common if name.startswith("rank_")}
    if "memory_limit" in common:  # of all axes, those of experts too
        common = common | {"memory_limit": {"limit": memory_limit(question, columns)}}
    if question.model.tower is not None:
        begins = {name: term for name, term in by_kind[0].items() if name.startswith("embedding_")}
        for name in begins.keys() & {"embedding_static"}:
            begins[name] = begins[name] | {"buffers": common[name]["buffers"]}
        common = common | begins

    def select_rows(pair: list[Array]) -> Array:
        """Combine two terms: the second's values for layouts that offload the states of a stated number of
        blocks, else the first's."""
        return np.where(has_blocks if pair[0].ndim == 1 else has_blocks[:, None], pair[1], pair[0])

    own_names = [name for name in OF_BLOCKS if name in common]
    means = {name: mean(name) for name in own_names if has_blocks.any()}
    for terms in by_kind:
        terms |= {name: join_terms([terms[name], means[name]], select_rows) for name in means}
    return [common | {name: terms[name] for name in own_names} for terms in by_kind]


def _tower_batch_columns(question: Question, kind: Question, columns: LayoutColumns) -> LayoutColumns:
    """Copy of the layout columns in which a microbatch has one sequence per image, for blocks of a vision
    tower; unchanged for other blocks. In a vision tower every image is a sequence, which no rank splits, so
    microbatches have as many sequences as images."""
    if kind.model.tower is None or kind.model.tower.part != "tower":
        return columns
    return replace(columns, mbs=columns.mbs * (question.training.images or 1), sp=np.zeros_like(columns.sp))


def _zero_frozen_terms(kind: Question, terms: Terms) -> Terms:
    """Set to zero the coefficients of backward passes that training skips, for blocks of one kind. Blocks run
    forward only if nothing before them is trained; a decoder's first block behind a tower includes the token
    embedding, which is on its rank."""
    terms = dict(terms)
    if kind.training.runs_forward_only:
        for name in terms.keys() & {"layer_backward", "layer_weight", "layer_activation", "layer_pending"}:
            terms[name] = {part: np.zeros_like(value) for part, value in terms[name].items()}
        for name in terms.keys() & {"working"}:
            terms[name] = {part: value[:, :1] + np.zeros_like(value) for part, value in terms[name].items()}
    if kind.model.tower is not None and kind.model.tower.part == "joint":
        for name in [name for name in terms if name.startswith("embedding_")]:
            block = dict(terms[name.replace("embedding", "layer")])
            policies = max(value.ndim for value in block.values()) > 1
            for part, value in terms[name].items():
                if part != "buffers":
                    block[part] = block.get(part, 0.0) + (value[:, None] if policies else value)
            terms[name.replace("embedding", "layer")] = block
    return terms


def terms_by_sort(by_kind: Sequence[Terms]) -> Terms:
    """Combine the cost coefficients of each kind of block into those of all blocks. With several kinds, the
    coefficients of blocks are by sort (pair of kind and recompute policy), with an axis T in place of P."""
    if len(by_kind) == 1:
        return by_kind[0]
    return by_kind[0] | {name: join_terms([terms[name] for terms in by_kind], by_sort) for name in OF_BLOCKS}


def by_sort(values: Sequence[Array]) -> Array:
    """Values by sort (pair of kind and recompute policy), (N, T), from the values of each kind of block, (N,
    P), or (N,) if no policy changes them."""
    policies = len(RECOMPUTE_POLICIES)
    by_kind = [np.repeat(value[:, None], policies, axis=1) if value.ndim == 1 else value for value in values]
    return np.concatenate(by_kind, axis=-1)


def join_terms(terms: Sequence[Term], join: Callable[[list[Array]], Array]) -> Term:
    """Combine several terms into one by applying `join` to the values of each part; a missing part counts as
    zero."""
    parts = {part: value for term in terms for part, value in term.items()}
    return {part: join([term.get(part, np.zeros_like(own)) for term in terms]) for part, own in parts.items()}


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """Cost coefficients of N layouts: seconds and bytes of blocks, stages, embedding and head, from which
    step and peak of any placement are computed. Each is (N,) unless marked (N, P), by recompute policy; first
    seconds, then bytes."""

    layer_forward: Array
    layer_backward: Array
    """Seconds of a block's backward pass, with recomputation and exposed communication, (N, P)."""
    embedding_forward: Array
    embedding_backward: Array
    head_forward: Array
    head_backward: Array
    stage_forward: Array
    stage_backward: Array
    layer_weight: Array
    """Seconds of `layer_backward` for weight gradients, without recomputation."""
    head_weight: Array
    stage_weight: Array
    """Additional seconds of a backward pass that runs as two actions, outside its blocks."""
    p2p: Array
    """Seconds between the end of an action and the start of its successor on another rank."""
    layer_sync: Array
    embedding_sync: Array
    head_sync: Array
    rank_sync: Array
    layer_optimizer: Array
    embedding_optimizer: Array
    head_optimizer: Array
    rank_optimizer: Array
    step_overhead: Array

    static: Array
    layer_static: Array
    layer_activation: Array
    """Bytes kept for the backward pass for each block and live microbatch, (N, P)."""
    layer_pending: Array
    """Bytes of gradients kept for weight products, for each block and microbatch between the halves of its
    backward pass."""
    layer_update: Array
    rank_update: Array
    """Bytes of a rank's temporary memory in the optimizer step, without regard to its blocks."""
    embedding_static: Array
    embedding_activation: Array
    embedding_update: Array
    head_static: Array
    head_activation: Array
    head_pending: Array
    head_update: Array
    working: Array
    """Bytes of the largest temporary set of one block (recomputed activations, gathered weights, gradients),
    (N, P)."""
    head_moment: Array
    """Bytes held at once while the loss of a microbatch runs forward and backward, when no block runs."""
    memory_limit: Array
    kinds: tuple[dict[str, Array], ...] = ()
    """Coefficients of each kind of block by name, if there are several kinds. The other fields then describe
    the mean block."""

    def __len__(self) -> int:
        return len(self.layer_forward)

    def rows(self, index: Ints | slice) -> StageCosts:
        """Select the costs of the layouts in the rows `index`."""
        rows: StageCosts = take_rows(self, index)
        return rows

    def within(self, limit: float | None) -> StageCosts:
        """Copy of the costs with the memory limit of each device lowered to at most `limit` bytes; unchanged
        if `limit` is None."""
        return self if limit is None else replace(self, memory_limit=np.minimum(self.memory_limit, limit))

    @property
    def each_kind(self) -> tuple[StageCosts, ...]:
        """Costs for each kind of block, as if all blocks were of that kind."""
        return tuple(replace(self, kinds=(), **own) for own in self.kinds) or (self,)

    @property
    def in_sorts(self) -> StageCosts:
        """Costs whose block columns are by sort (kind and recompute policy), (N, K·P), for pricing
        placements; unchanged with a single kind of block."""
        return self._join_kinds(by_sort)

    @cached_property
    def lightest(self) -> StageCosts:
        """Costs whose block columns are the minimum over the kinds of blocks, a lower bound for every
        block."""
        return self._join_kinds(lambda values: np.min(values, axis=0))

    def _join_kinds(self, join: Callable[[list[Array]], Array]) -> StageCosts:
        """Copy of the costs without kinds of blocks: each block column is what `join` makes of that column of
        all kinds; unchanged with a single kind."""
        if not self.kinds:
            return self
        joined = {name: join([own[name] for own in self.kinds]) for name in OF_BLOCKS}
        return replace(self, kinds=(), **joined)


COLUMNS = tuple(field.name for field in fields(StageCosts) if field.name != "kinds")
SECONDS = COLUMNS[: COLUMNS.index("static")]
"""Names of the columns of `StageCosts` in seconds."""
BYTES = COLUMNS[len(SECONDS) : COLUMNS.index("memory_limit")]
"""Names of the columns of `StageCosts` in bytes."""
OF_BLOCKS = tuple(name for name in COLUMNS if name.startswith("layer_") or name == "working")
"""Names of the columns whose values may differ between kinds of blocks."""


def stage_costs(question: Question, columns: LayoutColumns, price: Price = stage_terms) -> StageCosts:
    """Stage costs of N layouts by the function `price`, computed once for layouts with equal costs; columns
    that `price` does not return are zero.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    assert not question.has_pools, "ranks in several pools have no one price: see `pool_terms`"
    return over_distinct(as_priced(question, columns), AXIS_COLUMNS, partial(_costs, question, price))


def time_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Stage costs of N layouts with only the columns in seconds; bytes are zero. Hardware constants of the
    question may be arrays (N,).

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    return _costs(question, time_terms, columns)


def _costs(question: Question, price: Price, columns: LayoutColumns) -> StageCosts:
    """Stage costs of N layouts by the function `price`."""
    by_kind = [add_up(terms) for terms in terms_by_kind(question, columns, price)]
    return costs_by_kind(by_kind, question.kinds, len(columns))


def costs_by_kind(by_kind: Sequence[dict[str, Array]], kinds: Kinds, rows: int) -> StageCosts:
    """Stage costs of `rows` layouts from the columns of each kind of block; missing columns are zero. Columns
    of blocks are the mean over kinds, the others are those of the last kind."""
    zeros = dict.fromkeys(COLUMNS, np.zeros(rows))
    if kinds.number == 1:
        return StageCosts(**zeros | by_kind[-1], kinds=())
    block_columns = tuple({name: one.get(name, zeros[name]) for name in OF_BLOCKS} for one in by_kind)
    mean = {name: kinds.mean([one[name] for one in block_columns]) for name in OF_BLOCKS}
    return StageCosts(**zeros | by_kind[-1] | mean, kinds=block_columns)


def add_up(terms: Terms) -> dict[str, Array]:
    """Sum the parts of each coefficient: coefficient name → seconds or bytes."""
    return {name: sum_of_parts(term) for name, term in terms.items()}


def costs_of(terms: Terms) -> StageCosts:
    """Create stage costs from cost coefficients by part, by summing the parts of each coefficient."""
    return StageCosts(**add_up(terms), kinds=())


def as_priced(question: Question, columns: LayoutColumns) -> LayoutColumns:
    """Replace schedule and number of chunks by canonical values where they do not change the stage costs, so
    that fewer distinct layouts must be priced.

    Chunks and schedules shape the pipeline, but few coefficients of one stage depend on them: a chunk is the
    part that data parallelism cannot hide.
    """
    stack, vpp = question.stack, columns.vpp
    if not stack.torch_pipelining:
        always = stack.reduces_chunks_in_turn and stack.overlap_gradient_reduce
        vpp = np.where(is_overlapped(columns, "dp", default=always), vpp, 1)
    return replace(columns, vpp=vpp, schedule=_PRICED_AS[columns.schedule])


_TRAITS = [(own.splits == "always", own.v_shaped, own.keeps_all_logits) for own in REGISTRY.values()]
_PRICED_AS = np.array([_TRAITS.index(traits) for traits in _TRAITS])
"""Index of the first schedule with the same stage costs as each schedule, by index of the schedule."""
