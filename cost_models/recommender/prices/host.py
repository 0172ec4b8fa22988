"""Seconds in which the host launches the operations of a step one after another: what small batches wait for.

Each takes `kernel_seconds` of the hardware profile, the least that any operation takes, its launch included. Stacks
whose operations were not counted have none.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.recommender.priced import STAGES
from cost_models.recommender.prices.dense import DenseNetwork
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import OptionColumns


def launch_seconds(question: RecommenderQuestion, x: OptionColumns) -> tuple[Array, Array]:
    """(O, K) seconds of a shard on each GPU that holds it, and of a table on every GPU.

    What all copies need together is shared out to the tables: the whole of it where all have copied rows.
    """
    counted = question.facts.operations
    zero = np.zeros((len(x), len(STAGES)))
    if counted is None:
        return zero, zero
    of = _Counter(question)
    updated = np.zeros(len(STAGES))
    updated[STAGES.index(STAGES.update)] = counted.states.get(question.training.optimizer, 0.0)
    copy, copies = x.form == "copy", x.hot_rows > 0
    hot = copies & ~copy
    shard = _where(x.ids > 0, of("shard") + updated)
    everywhere = (
        of("table")
        + _where(~copy, of("placed"))
        + _where(x.form == "row", of("spread"))
        + (np.maximum(x.shards, 1) - 1.0)[:, None] * of("further_slice")
        + _where(copy, of("copied"))
        + _where(hot, of("hot"))
        + _where(copies, updated + of("copies") / question.model.num_tables)
    )
    if question.model.interaction.kind == "dot":
        everywhere = everywhere + of("dot_table")
    return shard * of.seconds, everywhere * of.seconds


def fixed_launch_seconds(question: RecommenderQuestion) -> Array:
    """(K,) launch seconds that do not depend on the sharding."""
    counted, network = question.facts.operations, DenseNetwork(question.model)
    if counted is None:
        return np.zeros(len(STAGES))
    of = _Counter(question)
    total = of("step") + of("layer") * (len(network.bottom) + len(network.top))
    total = total + of("cross") * (len(network.cross) / 2)
    if question.model.interaction.kind == "dot":
        total = total + of("dot")
    return np.asarray(total * of.seconds)


class _Counter:
    """Counts of host operations by stage, (K,), and the seconds of one."""

    def __init__(self, question: RecommenderQuestion) -> None:
        facts = question.facts
        self.gpus, self.seconds = question.cluster.num_gpus, question.hardware.kernel_seconds
        casts = question.training.precision != "fp32"
        self._sets = [one for one in (facts.operations, facts.cast_operations if casts else None) if one]

    def __call__(self, what: str) -> Array:
        counts = [getattr(one, what).of(self.gpus) for one in self._sets]
        return np.asarray(np.sum(counts, axis=0), dtype=np.float64)


def _where(which: Bools, each: Array) -> Array:
    return np.where(which[:, None], each, 0.0)
