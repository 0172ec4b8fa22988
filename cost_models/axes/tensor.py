"""Tensor parallelism: the degree, and the switch that splits what lies outside it along the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from cost_models.axes.axis import Axis
from cost_models.axes.rule import Rule, Words, dividing, multiplied, refuses, rule_when
from cost_models.axes.words import Number, Switch
from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout


def _divides(what: str, count: Callable[[TransformerSpec], float], noun: str) -> Rule:
    def sentence(question: Question, layout: Layout) -> Words:
        total = int(count(question.model))
        hint = dividing("tp", total, question.cluster.gpus_per_node)
        return Words(f"`tp{layout.tp}` splits {total:,} {noun}", hint)

    return Rule(
        name=f"tp divides the {what}", broken=lambda q, x: count(q.model) % x.tp != 0, sentence=sentence
    )


@rule_when(
    "tp divides the sequence",
    lambda q, x: (x.sp == 1) & (np.fmod(q.training.sequence_length, multiplied(x.cp, x.tp)) != 0),
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
        _divides("heads", lambda model: model.num_heads, "attention heads"),
        _divides("key/value heads", lambda model: model.num_kv_heads, "key/value heads"),
        _divides("MLP", lambda model: model.ffn_hidden_size * (model.moe_share < 1), "columns of the MLP"),
        _divides(
            "shared experts",
            lambda model: model.shared_expert_ffn_hidden_size,
            "columns of the shared experts",
        ),
    ),
    touches=frozenset({"states", "blocks"}),
)
SP = Axis(
    word=Switch(),
    text="What lies outside tensor parallelism is split along the sequence.",
    common=True,
    rules=(
        refuses(
            "sequence parallelism needs tensor parallelism",
            lambda q, x: (x.sp == 1) & (x.tp == 1),
            "`sp` splits the sequence over tp, and tp{layout.tp} has one rank",
            "leave out `sp`, or use tp2 or more",
        ),
        _sequence_divides,
    ),
    touches=frozenset({"blocks"}),
    values=lambda question, mesh: (0, 1) if mesh.tp > 1 else (0,),
)
