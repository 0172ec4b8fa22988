"""Bytes and seconds to reshard parameters from one layout to another on the same ranks.

A rank's part of a tensor is a box of the unit cube. Its directions are experts, the dimension that tensor
ranks divide, and the other dimension; ZeRO shards every tensor separately along its first dimension:

    columns, vocabulary   tensor ranks along the second direction, shards inside their parts
    rows                  tensor ranks along the second, shards along the third
    whole                 shards along the second
    experts               expert ranks along the first, tensor ranks of an expert along the second, shards along the
                          third

The boxes of both layouts cut the cube into cells. A cell that a rank needs and lacks comes from its own node,
from all that have it there in equal parts. If none has it, it crosses the network once: each of the node's
ranks that need it gets an equal part from all that have it, and they trade their parts inside the node. Links
carry both ways at once, those of a node in parallel with the network. Trainers that shard a buffer of many
tensors (Megatron-LM) move equally many bytes, except for tensors that a shard boundary divides.

Shape legend: R ranks, C cells, M nodes, W fields of `ReshardBytes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.topology import levels_of
from cost_models.operators.block import (
    block_operators,
    embedding_weights,
    norm_weights,
    patch_weights,
    transform_weights,
)
from cost_models.operators.parameters import further_weights
from cost_models.question import Question
from cost_models.schedules.registry import schedule_named
from cost_models.specs.transformer import TransformerSpec

_ENTRIES = 4_000_000
"""Maximum number of tensor cells × ranks computed at once, which bounds memory."""


class StoredTensor(NamedTuple):
    """Stored tensor (weights, gradients or optimizer states): bytes per parameter, and the first ZeRO stage
    that shards it."""

    bytes_each: float
    from_stage: int
    """First ZeRO stage that shards the tensor."""


class ReshardBytes(NamedTuple):
    """Bytes that each of R ranks holds, needs, receives and sends when the layout changes, (R,) each."""

    there: Array
    """Bytes that the rank holds in the first layout."""
    needed: Array
    """Bytes that the rank must hold in the second layout."""
    received_inside: Array
    """Bytes received from ranks of the same node. `sent_inside` are bytes sent to them; `received` and `sent`
    are from and to other nodes."""
    received: Array
    sent_inside: Array
    sent: Array

    @property
    def received_total(self) -> Array:
        """Bytes that each rank receives from all other ranks, (R,)."""
        return self.received_inside + self.received

    def seconds(self, question: Question) -> tuple[float, float]:
        """Seconds of the busiest rank's transfers: inside its node, and over the network."""
        profile, rates = question.hardware, {True: np.inf, False: np.inf}
        for level in levels_of(question.cluster):
            rates[level.network] = min(rates[level.network], level.bandwidth * level.efficiency(profile))
        inside = max(self.received_inside.max(), self.sent_inside.max())
        return float(inside / rates[False]), float(max(self.received.max(), self.sent.max()) / rates[True])


def reshard(
    question: Question, first: Layout, second: Layout, tensors: Sequence[StoredTensor], per_node: int
) -> ReshardBytes:
    """Bytes that each rank holds, needs, receives and sends when a model's tensors change from layout `first`
    to layout `second`. The layouts are placed on the same ranks, `per_node` to a node."""
    total = np.zeros((len(ReshardBytes._fields), max(first.num_gpus, second.num_gpus)))
    for bytes_each, from_stage in tensors:
        boxes = [_rank_boxes(one, total.shape[1], sharded=one.zero >= from_stage) for one in (first, second)]
        for parts, count, stages in _model_parts(question, first, second):
            pairs = [*zip(boxes, stages, strict=True)]
            for part, elements in parts.items():
                shares = [own[part] * np.isin(stage, some)[:, None, None] for (stage, own), some in pairs]
                total += bytes_each * count * elements * _moved_shares(shares, per_node)
    return ReshardBytes(*total)


Parts = dict[str, float]
"""Number of elements of a tensor by the way in which the ranks of a stage share it ("columns", "rows", "whole",
...)."""


def _model_parts(question: Question, *layouts: Layout) -> Iterator[tuple[Parts, int, list[list[int]]]]:
    """Yield each part of the model (block, embedding ...) as three values: its elements by the way in which
    ranks share them, the number of such parts, and its pipeline ranks in each layout."""
    model, kinds = question.model, question.kinds.of_block
    by_kind = [_block_parts(own.model) for own in question.by_kind]
    stage_of = [schedule_named(one.schedule).rank_of_stage(one.pp, one.vpp) for one in layouts]
    of_blocks = [np.repeat(ranks, one.layers).tolist() for ranks, one in zip(stage_of, layouts, strict=True)]
    for (kind, *ranks), count in Counter(zip(kinds, *of_blocks, strict=True)).items():
        yield by_kind[kind], count, [[rank] for rank in ranks]
    first, last = ([[int(ranks[at])] for ranks in stage_of] for at in (0, -1))
    embeds = first
    if model.tower is not None:  # the token embedding lies with the decoder's first block
        embeds = [[ranks[model.tower.layers]] for ranks in of_blocks]
        yield {"whole": float(patch_weights(model.tower))}, 1, first
    h, norm = model.hidden_size, float(norm_weights(model))
    yield {"whole": float(embedding_weights(model))}, 1, embeds
    inside = norm * model.ends_in_norm + transform_weights(model)
    yield {"whole": inside, "columns": float(model.head_bias * model.vocab_size)}, 1, last
    matrix = {"columns": float(model.vocab_size * h)}
    if model.tied_embeddings:
        yield matrix, 1, [one + two for one, two in zip(embeds, last, strict=True)]
    else:
        yield matrix, 1, embeds
        yield matrix if model.outputs is None else {"whole": float(model.outputs * h)}, 1, last
    if further := model.further_tokens:
        yield by_kind[kinds[-1]], further, last
        yield {"whole": further_weights(model) + 3 * norm}, further, last


def _block_parts(model: TransformerSpec) -> Parts:
    """Number of elements of a block's tensors by the way in which ranks share them, such as "rows" or
    "columns"."""
    elements: Parts = {}
    for operator in block_operators(model):
        split = "rows" if operator.gemm and operator.gemm.split == "rows" else "columns"
        for sharing, count in operator.weights.items():
            part = split if sharing == "split" else sharing
            elements[part] = elements.get(part, 0.0) + operator.share * count
    return elements


def _rank_boxes(layout: Layout, ranks: int, *, sharded: bool) -> tuple[Ints, dict[str, Array]]:
    """Pipeline rank of each of R ranks, (R,), and the part of a tensor that each stores, (R, 3, 2), by way of
    sharing. The pipeline rank is −1 for ranks that the layout does not use. A part is a box with a begin and
    an end along three directions, as shares of the tensor."""
    rank, stride = np.arange(ranks), layout.stride("pp")
    seat = rank // (stride * layout.pp) * stride + rank % stride  # in the stage, in order of rank
    shards = layout.shard_group if sharded else 1
    tensor_rank, shard = seat % layout.tp, seat // layout.tp % layout.shard_group % shards
    ep, etp = layout.ep, layout.expert_tp
    copies = int(LayoutColumns.of([layout]).expert_shard[0]) if sharded else 1

    def side(place: Ints, number: int) -> Array:
        """Begin and end of each rank's slice, (R, 2), if one direction is cut into `number` equal slices and
        the rank has slice `place`, counted from 0."""
        return np.stack([place / number, (place + 1) / number], axis=-1)

    expert, cut = side(seat // etp % ep, ep), side(seat // (etp * ep) % copies, copies)
    full, tensor, across = side(0 * rank, 1), side(tensor_rank, layout.tp), side(shard, shards)
    parts = {
        "columns": (full, side(tensor_rank * shards + shard, layout.tp * shards), full),
        "rows": (full, tensor, across),
        "whole": (full, across, full),
        "expert": (expert, side(seat % etp, etp), cut),
        "each expert": (expert, full, cut),
    }
    boxes = {part: np.stack(sides, axis=1) for part, sides in parts.items()}
    return np.where(rank < layout.num_gpus, rank // stride % layout.pp, -1), boxes


def _moved_shares(boxes: Sequence[Array], per_node: int) -> Array:
    """Shares of a tensor that each rank holds, needs, receives and sends, (6, R), with the fields of
    `ReshardBytes` as rows. `boxes` are the ranks' parts before and after, (R, 3, 2) each."""
    ranks = len(boxes[0])
    cuts = [np.unique(np.concatenate([box[:, at] for box in boxes]).round(12)) for at in range(3)]
    sides = [(one[1:] + one[:-1]) / 2 for one in cuts], [np.diff(one) for one in cuts]
    middle_C3, size_C3 = (np.stack(np.meshgrid(*along, indexing="ij"), -1).reshape(-1, 3) for along in sides)
    total, step = np.zeros((len(ReshardBytes._fields), ranks)), max(1, _ENTRIES // ranks)
    for start in range(0, len(middle_C3), step):
        cells, size_C = middle_C3[start : start + step, None], size_C3[start : start + step].prod(axis=1)
        have_CR, want_CR = (np.all((cells > box[..., 0]) & (cells < box[..., 1]), axis=-1) for box in boxes)
        total += np.stack([size_C @ share_CR for share_CR in _cell_shares(have_CR, want_CR, per_node)])
    return total


def _cell_shares(have_CR: Bools, want_CR: Bools, per_node: int) -> Iterator[Array]:
    """Yield one array (C, R) for each field of `ReshardBytes`: the share of each of C cells of a tensor that
    each rank holds, needs, receives or sends."""
    need_CR, ranks = want_CR & ~have_CR, have_CR.shape[1]
    node_R = np.arange(ranks) // per_node
    sums = partial(np.add.reduceat, indices=np.arange(0, ranks, per_node), axis=1, dtype=np.float64)
    holders_CM, needers_CM = sums(have_CR), sums(need_CR)
    far_CM = (holders_CM == 0) & (needers_CM > 0)
    part_CR = need_CR * (far_CM / np.maximum(needers_CM, 1))[:, node_R]
    traded_CR = need_CR * far_CM[:, node_R] - part_CR
    yield have_CR.astype(np.float64)
    yield want_CR.astype(np.float64)
    yield need_CR * ~far_CM[:, node_R] + traded_CR
    yield part_CR
    yield have_CR * (needers_CM / np.maximum(holders_CM, 1))[:, node_R] + traded_CR
    yield have_CR * far_CM.sum(axis=1, keepdims=True) / np.maximum(have_CR.sum(axis=1, keepdims=True), 1)
