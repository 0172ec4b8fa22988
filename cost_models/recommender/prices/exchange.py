"""Seconds of the exchanges between GPUs of ids (to the GPUs that hold their rows), vectors (back) and
gradients (the other way).

Of W GPUs, with B samples, P vectors a sample of D elements of e bytes:

    whole, column    all-to-all: the holder sends (W−1)/W · B·P·D/k·e           the same of gradients comes back
    row K            the same of B·P·D·e from each holder
    row              reduce-scatter of B·P·D·e, all-gather back: W times that over all tables of a GPU
    node-row         reduce-scatter of it in the node, then all-to-all of B/L·P·D·e between nodes; and back
    copy, hot rows   nothing forward; backward an all-reduce of all copied rows, or an all-gather of touched ones
    ids              all-to-all: the holder gets (W−1)/W of its ids, and the lengths of bags that vary

A holder's bytes share its links; a shard alone on one GPU is sent at that GPU's rate while the others wait. Start-up
and hops come once a stage (`Rate.start`): tables of a stage travel together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cost_models.arrays import Array
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import Groups, group_of
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import OptionColumns


@dataclass(frozen=True, slots=True)
class Rate:
    """Linear cost of a collective as start-up seconds plus seconds per byte of one rank, fitted near a usual
    message size."""

    start: float
    each_byte: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Linear costs of the collectives between the GPUs of a cluster."""

    all_to_all: Rate
    """Cost of an all-to-all over all GPUs per byte that one rank sends to all, itself included."""
    reduce_scatter: Rate
    """Cost of a reduce-scatter over all GPUs per byte of the entire tensor."""
    all_gather: Rate
    all_reduce: Rate
    node_scatter: Rate
    """Cost of a reduce-scatter inside a node per byte of the entire tensor."""
    node_gather: Rate
    between_nodes: Rate
    """Cost of an all-to-all of the GPUs at the same place of every node, per byte that one rank sends to
    all."""


def links_of(question: RecommenderQuestion) -> Links:
    """Linear costs of the collectives between the question's GPUs: the straight line through their seconds at two
    message sizes, the mean bytes of embedding vectors per GPU and step, and twice as many. Formulas are straight lines;
    measured curves have a start-up that large messages do not show."""
    cluster, profile = question.cluster, question.profile
    everyone = group_of(cluster, cluster.num_gpus)
    node = group_of(cluster, cluster.gpus_per_node)
    peers = group_of(cluster, cluster.nodes, cluster.gpus_per_node)
    vectors = sum(one.count * one.outputs * one.width for one in question.model.classes)
    message_bytes = question.samples * vectors * question.training.exchange_bytes

    def rate(collective: Callable[..., Any], group: Groups, ranks: float = 1.0) -> Rate:
        sizes = (message_bytes, 2 * message_bytes)
        near, far = (float(collective(size * ranks, group, profile)[0]) for size in sizes)
        seconds_per_byte = max(0.0, (far - near) / message_bytes)
        return Rate(start=max(0.0, near - seconds_per_byte * message_bytes), each_byte=seconds_per_byte)

    return Links(
        all_to_all=rate(all_to_all_seconds, everyone, cluster.num_gpus),
        reduce_scatter=rate(reduce_scatter_seconds, everyone),
        all_gather=rate(all_gather_seconds, everyone),
        all_reduce=rate(all_reduce_seconds, everyone),
        node_scatter=rate(reduce_scatter_seconds, node),
        node_gather=rate(all_gather_seconds, node),
        between_nodes=rate(all_to_all_seconds, peers, cluster.nodes),
    )


def index_seconds(question: RecommenderQuestion, x: OptionColumns, links: Links) -> Array:
    """(O,) seconds a step, by sharding option, in which ids and lengths arrive by all-to-all at a GPU that
    holds a shard; 0 if the exchange is hidden."""
    facts = question.facts
    if not facts.exchanges_ids or facts.hides_ids:
        return np.zeros(len(x))
    arriving = x.exchanged / x.sharers * facts.id_bytes + x.lengths * facts.length_bytes
    return np.where(x.ids > 0, arriving * links.all_to_all.each_byte, 0.0)


def copy_seconds(question: RecommenderQuestion, x: OptionColumns, links: Links) -> Array:
    """(O,) seconds a step on every GPU to reduce the gradients of copied rows; all tables share one start-up."""
    element = question.training.exchange_bytes
    all_rows = x.hot_rows * x.whole_width * element * links.all_reduce.each_byte
    gpus = question.cluster.num_gpus
    touched = gpus * x.local_hot_distinct * (x.whole_width * element + question.facts.id_bytes)
    gathered = touched * links.all_gather.each_byte
    of = {"all": all_rows, "touched": gathered, "least": np.minimum(all_rows, gathered)}
    starts = question.facts.copy_collectives / question.model.num_tables * links.all_gather.start
    return of[question.facts.copies_reduce] + np.where(x.hot_rows > 0, starts, 0.0)


def vectors_seconds(
    question: RecommenderQuestion, x: OptionColumns, links: Links, scatter: Rate, node_scatter: Rate
) -> Array:
    """(O,) seconds a step in which a GPU that holds (part of) a shard sends embedding vectors or, with the rates of
    all-gathers, receives their gradients."""
    element = question.training.exchange_bytes
    exchanged = x.bags * x.width * element * links.all_to_all.each_byte
    sums = x.outputs * x.whole_width * element
    rows = sums * scatter.each_byte
    if question.facts.rows_send == "vectors":
        vectors = x.exchanged / x.sharers * x.whole_width * element * links.all_to_all.each_byte
        rows = np.minimum(rows, vectors)
    between_nodes = sums / question.cluster.gpus_per_node * links.between_nodes.each_byte
    in_node = sums * node_scatter.each_byte + between_nodes
    conditions = [(x.form == "row") & (x.shards == 0), x.form == "node-row", x.form == "copy"]
    seconds: Array = np.select(conditions, [rows, in_node, np.zeros(len(x))], default=exchanged)
    return np.where(x.ids > 0, seconds, 0.0)
