"""Tensor parallelism: the degree, and the switch that splits what lies outside it along the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cost_models.axes.axis import Axis
from cost_models.axes.rule import Rule, Words, dividing, multiplied
from cost_models.axes.words import Number, Switch
from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import counted

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout


def _group_in_node(question: Question, layout: Layout) -> Words:
    size = question.cluster.gpus_per_node
    return Words(
        f"`tp{layout.tp}` does not divide a node of {counted(size, 'GPU')}", dividing("tp", size, size)
    )


def _splits(count: Callable[[TransformerSpec], int], noun: str) -> Callable[[Question, Layout], Words]:
    def sentence(question: Question, layout: Layout) -> Words:
        total = count(question.model)
        hint = dividing("tp", total, question.cluster.gpus_per_node)
        return Words(f"`tp{layout.tp}` splits {total:,} {noun}", hint)

    return sentence


def _sequence_needs_tensor(question: Question, layout: Layout) -> Words:
    return Words(
        f"`sp` splits the sequence over tp, and tp{layout.tp} has one rank",
        "leave out `sp`, or use tp2 or more",
    )


def _sequence_divides(question: Question, layout: Layout) -> Words:
    length = question.training.sequence_length
    if layout.cp == 1:
        return Words(f"`sp` splits a sequence of {length} tokens over tp{layout.tp}")
    return Words(f"`sp` splits a sequence of {length} tokens over cp{layout.cp} x tp{layout.tp}")


TP = Axis(
    word=Number(),
    text="Ranks that split every matrix of a block.",
    executor="executor.axes.tensor:TensorAxis",
    always_written=True,
    common=True,
    rules=(
        Rule(
            name="tensor group lies in one node",
            broken=lambda q, x: q.cluster.gpus_per_node % x.tp != 0,
            sentence=_group_in_node,
        ),
        Rule(
            name="tp divides the heads",
            broken=lambda q, x: q.model.num_heads % x.tp != 0,
            sentence=_splits(lambda model: model.num_heads, "attention heads"),
        ),
        Rule(
            name="tp divides the key/value heads",
            broken=lambda q, x: q.model.num_kv_heads % x.tp != 0,
            sentence=_splits(lambda model: model.num_kv_heads, "key/value heads"),
        ),
        Rule(
            name="tp divides the MLP",
            broken=lambda q, x: (q.model.moe_share < 1) & (q.model.ffn_hidden_size % x.tp != 0),
            sentence=_splits(lambda model: model.ffn_hidden_size, "columns of the MLP"),
        ),
        Rule(
            name="tp divides the shared experts",
            broken=lambda q, x: q.model.shared_expert_ffn_hidden_size % x.tp != 0,
            sentence=_splits(
                lambda model: model.shared_expert_ffn_hidden_size, "columns of the shared experts"
            ),
        ),
    ),
    touches=frozenset({"states", "blocks"}),
)
SP = Axis(
    word=Switch(),
    text="What lies outside tensor parallelism is split along the sequence.",
    common=True,
    rules=(
        Rule(
            name="sequence parallelism needs tensor parallelism",
            broken=lambda q, x: (x.sp == 1) & (x.tp == 1),
            sentence=_sequence_needs_tensor,
        ),
        Rule(
            name="tp divides the sequence",
            broken=lambda q, x: (
                (x.sp == 1) & (np.fmod(q.training.sequence_length, multiplied(x.cp, x.tp)) != 0)
            ),
            sentence=_sequence_divides,
        ),
    ),
    touches=frozenset({"blocks"}),
    values=lambda question, mesh: (0, 1) if mesh.tp > 1 else (0,),
)
