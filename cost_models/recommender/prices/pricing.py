"""Prices of sharding options, as loads of stages and memory of every option, and costs that do not depend on
the tables.

Seconds in which the host launches the operations of a step one after another: what small batches wait for.

Each takes `kernel_seconds` of the hardware profile, the least that any operation takes, its launch included. Stacks
whose operations were not counted have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.memory.device import is_own_host
from cost_models.recommender.priced import STAGES, PricedOptions
from cost_models.recommender.prices.dense import DenseNetwork, dense_seconds
from cost_models.recommender.prices.exchange import (
    Links,
    copy_seconds,
    index_seconds,
    links_of,
    vectors_seconds,
)
from cost_models.recommender.prices.lookup import copy_sum_seconds, lookup_seconds, update_seconds
from cost_models.recommender.prices.memory import fixed_bytes, option_bytes
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import OptionColumns, Pair, default_options, option_columns
from cost_models.specs.cluster import FULL


def launch_seconds(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """(O, K) launch seconds by stage, first of a shard on each GPU that holds it, then of a table on every GPU.

    What all copies need together is shared out to the tables: the whole of it where all have copied rows.
    """
    operations = question.facts.operations
    zero = np.zeros((len(x), len(STAGES)))
    if operations is None:
        return zero, zero
    of = _Counter(question)
    updated = np.zeros(len(STAGES))
    updated[STAGES.index(STAGES.update)] = operations.states.get(question.training.optimizer, 0.0)
    copy, copies = x.form == "copy", x.hot_rows > 0
    hot = copies & ~copy
    shard = _select_rows(x.ids > 0, of("shard") + updated)
    everywhere = (
        of("table")
        + _select_rows(~copy, of("placed"))
        + _select_rows(x.form == "row", of("spread"))
        + (np.maximum(x.shards, 1) - 1.0)[:, None] * of("further_slice")
        + _select_rows(copy, of("copied"))
        + _select_rows(hot, of("hot"))
        + _select_rows(copies, updated + of("copies") / question.model.num_tables)
    )
    if question.model.interaction.kind == "dot":
        everywhere = everywhere + of("dot_table")
    return shard * of.seconds, everywhere * of.seconds


def fixed_launch_seconds(question: RecommenderQuestion) -> Array:
    """(K,) launch seconds of each stage that do not depend on the sharding."""
    operations, network = question.facts.operations, DenseNetwork(question.model)
    if operations is None:
        return np.zeros(len(STAGES))
    of = _Counter(question)
    total = of("step") + of("layer") * (len(network.bottom) + len(network.top))
    total = total + of("cross") * (len(network.cross) / 2)
    if question.model.interaction.kind == "dot":
        total = total + of("dot")
    return np.asarray(total * of.seconds)


class _Counter:
    """Counts (K,) of the operations that the host launches in each stage, by name, and the seconds of one launch."""

    def __init__(self, question: RecommenderQuestion) -> None:
        facts = question.facts
        self.gpus, self.seconds = question.cluster.num_gpus, question.hardware.kernel_seconds
        casts = question.training.precision not in FULL
        self._sets = [one for one in (facts.operations, facts.cast_operations if casts else None) if one]

    def __call__(self, name: str) -> Array:
        counts = [getattr(one, name).of(self.gpus) for one in self._sets]
        return np.asarray(np.sum(counts, axis=0), dtype=np.float64)


def _select_rows(mask: Bools, values: Array) -> Array:
    return np.where(mask[:, None], values, 0.0)


def priced_options(question: RecommenderQuestion, options: Sequence[Pair] | None = None) -> PricedOptions:
    """Compute seconds and bytes of sharding options, (table class, option) pairs grouped by class; default is
    `default_options`.

    Raises:
        InputError: the GPU has no matrix rate in the training precision.
    """
    pairs = tuple(default_options(question) if options is None else options)
    x, links = option_columns(question, pairs), links_of(question)
    shard_seconds, everywhere_seconds = stage_loads(question, x, links)
    size = option_bytes(question, x)
    cluster = question.cluster
    fixed, hidden = fixed_seconds(question, links)
    return PricedOptions(
        options=tuple(option for _, option in pairs),
        table_class=np.array([which for which, _ in pairs], dtype=np.int64),
        shards=x.shards,
        shard_seconds=shard_seconds,
        everywhere_seconds=everywhere_seconds,
        shard_bytes=size.shard.sum(axis=2).T,
        everywhere_bytes=size.everywhere.sum(axis=2).T,
        shard_host_bytes=size.shard_host.sum(axis=1),
        everywhere_host_bytes=size.everywhere_host.sum(axis=1),
        counts=np.array([one.count for one in question.model.classes], dtype=np.int64),
        fixed=fixed,
        stage_floors=hidden,
        fixed_bytes=np.sum(list(fixed_bytes(question).values()), axis=0),
        device_memory=cluster.gpu.memory * (1 - (cluster.memory_reserve or 0.0)),
        host_memory=cluster.host_memory or 0.0,
        gpus=cluster.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        table_names=question.model.table_names,
    )


def stage_loads(question: RecommenderQuestion, x: OptionColumns, links: Links) -> tuple[Array, Array]:
    """(O, K) seconds of work by stage, first of a shard on each GPU that holds it, then of a table on every GPU."""
    zero = np.zeros(len(x))
    lookup, lookup_copied = lookup_seconds(question, x)
    update, update_copied = update_seconds(question, x)
    copies = copy_sum_seconds(question, x) + copy_seconds(question, x, links)
    ids = index_seconds(question, x, links)
    forward = vectors_seconds(question, x, links, links.reduce_scatter, links.node_scatter)
    backward = vectors_seconds(question, x, links, links.all_gather, links.node_gather)
    shard_loads = np.stack([ids, lookup, forward, zero, backward, update], axis=1)
    copied = np.stack([zero, lookup_copied, zero, zero, copies, update_copied], axis=1)
    launches, launches_everywhere = launch_seconds(question, x)
    shard_loads, has_places = shard_loads + launches, (x.shards > 0)[:, None]
    everywhere = copied + launches_everywhere + np.where(has_places, 0.0, shard_loads)
    return np.where(has_places, shard_loads, 0.0), everywhere


def fixed_seconds(question: RecommenderQuestion, links: Links) -> tuple[Array, Array]:
    """(K,) seconds of each stage that do not depend on the sharding, and (K,) seconds that are hidden behind
    the stage.

    A CPU's cores move the bytes of a reduction themselves, so there it hides behind nothing.
    """
    facts, dense, kernel = question.facts, dense_seconds(question), question.profile.kernel_seconds
    start = links.all_to_all.start
    if facts.hierarchical and question.cluster.nodes > 1:
        start = links.node_scatter.start + links.between_nodes.start
    fixed, hidden = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0)
    waits_for_ids = facts.exchanges_ids and not facts.hides_ids
    fixed[STAGES.index_exchange] = facts.index_collectives * start if waits_for_ids else 0.0
    fixed[STAGES.lookup] = kernel
    fixed[STAGES.forward_exchange] = fixed[STAGES.backward_exchange] = start
    fixed[STAGES.update] = kernel + dense.update
    fixed[STAGES.dense] = dense.interaction + dense.top + host_seconds(question)
    hides_reduction = facts.hides_reduction and not is_own_host(question.cluster)
    for hides, behind, otherwise, seconds in (
        (facts.hides_weight_gradients, STAGES.update, STAGES.dense, dense.weight_gradients),
        (facts.hides_bottom, STAGES.forward_exchange, STAGES.dense, dense.bottom_forward),
        (facts.hides_bottom, STAGES.backward_exchange, STAGES.dense, dense.bottom_backward),
        (hides_reduction, STAGES.update, STAGES.update, reduction_seconds(question, links)),
    ):
        (hidden if hides else fixed)[behind if hides else otherwise] += seconds
    return np.array([*fixed.values()]) + fixed_launch_seconds(question), np.array([*hidden.values()])


def host_seconds(question: RecommenderQuestion) -> float:
    """Seconds a step in which each host hands the samples of a batch over to its GPUs."""
    samples = question.training.global_batch / question.cluster.nodes
    return question.facts.step_seconds + samples * question.facts.sample_seconds


def reduction_seconds(question: RecommenderQuestion, links: Links) -> float:
    """Seconds a step of the all-reduce of the dense network's gradients; 0 for one GPU."""
    if question.cluster.num_gpus == 1:
        return 0.0
    size = DenseNetwork(question.model).parameters * question.training.dense_bytes
    return question.facts.reduction_collectives * links.all_reduce.start + size * links.all_reduce.each_byte
