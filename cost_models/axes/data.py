"""Data parallelism: replicas, microbatches, and what ZeRO shards over which ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.axes.axis import Axis, Price, Terms, more
from cost_models.axes.rule import Words, multiplied, refuses, rule_when
from cost_models.axes.words import Number
from cost_models.errors import either
from cost_models.question import Question

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout

ZERO_STAGES = 4
"""ZeRO 0 to 3."""


@rule_when(
    "batch divides into microbatches",
    lambda q, x: np.fmod(float(q.training.global_batch), multiplied(x.dp, x.mbs)) != 0,
)
def _batch_divides(question: Question, layout: Layout) -> Words:
    batch, together = question.training.global_batch, layout.dp * layout.mbs
    below = batch // together * together
    neighbours = f"{below} and {below + together} are" if below else f"{together} is"
    return Words(f"global batch {batch} is not a multiple of dp{layout.dp} x mbs{layout.mbs}", neighbours)


@rule_when(
    "updates in the backward pass have one microbatch",
    lambda q, x: (
        q.training.optimizer_in_backward & ((x.microbatches(q.training.global_batch) != 1) | (x.pp > 1))
    ),
)
def _updates_at_once(question: Question, layout: Layout) -> Words:
    count = layout.microbatches(question.training.global_batch)
    what = "updates in the backward pass (`--optimizer-in-backward`) leave no gradients to add up: a step has one"
    return Words(f"{what} microbatch without stages, and {count} with pp{layout.pp} here", "a smaller batch")


@rule_when("the stack has this ZeRO stage", lambda q, x: ~np.isin(x.zero, q.stack.zero_stages))
def _stack_has_no_zero(question: Question, layout: Layout) -> Words:
    stages = [f"zero{stage}" for stage in question.stack.zero_stages]
    return Words(
        f"software stack `{question.stack.name}` cannot run `zero{layout.zero}`",
        f"it has {either(stages)}; `--stack` names another",
    )


@rule_when("the stack shards in groups", lambda q, x: (x.shard != x.replicas) & (not q.stack.hybrid_shard))
def _stack_lacks_hybrid(question: Question, layout: Layout) -> Words:
    what = f"software stack `{question.stack.name}` shards over all {layout.data_ranks:,} ranks of dp x cp"
    return Words(f"{what}, not over `shard{layout.shard}`", "leave out `shard`; `--stack` names another")


def _buckets(sizes: Any, terms: Terms) -> Terms:
    """Buffers that shards of gradients and weights are collected in."""
    x, size = sizes.columns, sizes.question.stack.collective_buffers or 0.0
    return more(terms, {"static": {"buffers": np.where((x.zero >= 1) & (x.replicas > 1), size, 0.0)}})


DP = Axis(
    word=Number(),
    text="Replicas of the model, each with its share of the batch.",
    executor="executor.axes.data:DataAxis",
    always_written=True,
    common=True,
    implied=lambda given: len(given.get("replicas", ())) or None,
    touches=frozenset({"states"}),
)
MBS = Axis(
    word=Number(),
    text="Sequences of a microbatch.",
    always_written=True,
    common=True,
    rules=(_batch_divides, _updates_at_once),
    touches=frozenset({"blocks"}),
)
ZERO = Axis(
    word=Number(least=0, most=ZERO_STAGES - 1, outside=f"ZeRO has stages 0 to {ZERO_STAGES - 1}"),
    text="What of a parameter's states replicas shard.",
    always_written=True,
    common=True,
    rules=(
        refuses(
            "ZeRO needs replicas",
            lambda q, x: (x.zero > 0) & (x.dp == 1) & (x.cp == 1),
            "`zero{layout.zero}` shards over dp, which is 1 here",
            "write zero0",
        ),
    ),
    stack_rules=(_stack_has_no_zero,),
    touches=frozenset(),
    price=Price(bytes=_buckets),
)
SHARD = Axis(
    word=Number(),
    text="Ranks over which ZeRO shards; the rest are copies.",
    settled=lambda layout: None if layout.shard == layout.data_ranks else layout.shard,
    comes_to=lambda layout: layout.shard_group,
    follows=lambda columns: columns.replicas,
    rules=(
        refuses(
            "hybrid sharding needs ZeRO",
            lambda q, x: (x.zero == 0) & (x.shard != x.replicas),
            "`shard{layout.shard}` says what ZeRO shards over, and zero0 shards nothing",
            "write zero1",
        ),
        refuses(
            "shard groups divide the replicas",
            lambda q, x: np.fmod(multiplied(x.dp, x.cp), x.shard) != 0,
            "`shard{layout.shard}` does not divide the {layout.data_ranks:,} ranks of dp x cp",
        ),
    ),
    stack_rules=(_stack_lacks_hybrid,),
    touches=frozenset(),
)
