"""Tensor parallelism: the degree, and the switch that splits what lies outside it along the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.axis import Axis
from cost_models.axes.rule import Rule, Words, dividing, multiplied, refuses, rule_when
from cost_models.axes.words import Number, Switch
from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec
from cost_models.specs.tuning import NF4_BLOCK

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout

Degree = TypeVar("Degree", int, Ints)


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
    lambda q, x: (
        (x.sp == 1)
        & (
            (np.fmod(q.training.sequence_length, multiplied(x.cp, x.tp)) != 0)
            | (np.fmod(q.training.target_length or 0, x.tp) != 0)
        )
    ),
)
def _sequence_divides(question: Question, layout: Layout) -> Words:
    length = question.training.sequence_length
    if layout.cp == 1:
        return Words(f"`sp` splits a sequence of {length} tokens over tp{layout.tp}")
    return Words(f"`sp` splits a sequence of {length} tokens over cp{layout.cp} x tp{layout.tp}")


@rule_when("tp keeps quantisation blocks whole", lambda q, x: _splits_blocks(q, x.tp, x.etp))
def _blocks_are_whole(question: Question, layout: Layout) -> Words:
    etp = layout.etp or layout.tp
    rows = [(name, width // degree) for name, width, degree in _cut_rows(question, layout.tp, etp)]
    which = " and ".join(f"{cut:,} elements of `{name}`" for name, cut in rows if cut % NF4_BLOCK)
    what = (
        f"`tp{layout.tp}` splits blocks of {NF4_BLOCK} elements that share a scale of nf4: a rank has rows of"
    )
    return Words(f"{what} {which}", "use a smaller tp, or --base-precision int8")


def _cut_rows(question: Question, tp: Degree, etp: Degree) -> list[tuple[str, int, Degree]]:
    """Matrices kept in nf4 whose rows ranks share, the length of a row, and over how many; between rows any cut will
    do."""
    model, tuning = question.model, question.training.tuning
    if tuning is None or tuning.base != "nf4":
        return []
    found = [("o", model.attended_size, tp)]
    if model.recurrence:
        found.append(("out_proj", model.recurrence.value_size, tp))
    if model.dense_share:
        found.append(("down", model.ffn_hidden_size, tp))
    if model.moe_share:
        found.append(("experts", model.moe_ffn_hidden_size, etp))
    if model.shared_expert_ffn_hidden_size:
        found.append(("down", model.shared_expert_ffn_hidden_size, tp))
    return found


def _reaches_over(question: Question) -> bool:
    """Whether blocks of nf4 would reach from one row of a matrix into the next."""
    cut = [width for _, width, _ in _cut_rows(question, 1, 1)]
    return bool(cut) and any(width % NF4_BLOCK for width in (question.model.hidden_size, *cut))


def _splits_blocks(question: Question, tp: Ints, etp: Ints) -> Bools:
    """(N,): whether some block lies on two ranks."""
    split = np.zeros(len(tp), dtype=np.bool_)
    for _, width, degree in _cut_rows(question, tp, etp):
        split |= np.fmod(width, multiplied(degree, np.full(len(tp), NF4_BLOCK))) != 0
    return split


TP = Axis(
    word=Number(),
    text="Ranks that split every matrix of a block.",
    executor="executor.axes.tensor:TensorAxis",
    always_written=True,
    common=True,
    rules=(
        _divides("heads", lambda model: model.num_heads * (model.attention_share > 0), "attention heads"),
        _divides(
            "key/value heads",
            lambda model: model.num_kv_heads * (model.attention_share > 0),
            "key/value heads",
        ),
        _divides(
            "heads of states",
            lambda model: model.recurrence.split_units if model.recurrence else 0,
            "groups of heads with states",
        ),
        _divides("MLP", lambda model: model.ffn_hidden_size * (model.dense_share > 0), "columns of the MLP"),
        _divides(
            "shared experts",
            lambda model: model.shared_expert_ffn_hidden_size,
            "columns of the shared experts",
        ),
        _divides(
            "tower's heads", lambda model: model.tower.num_heads if model.tower else 0, "heads of the tower"
        ),
        _divides(
            "tower's MLP",
            lambda model: model.tower.ffn_hidden_size if model.tower else 0,
            "columns of the tower's MLP",
        ),
        _blocks_are_whole,
    ),
    touches=frozenset({"states", "blocks"}),
    executor_rules=(
        refuses(
            "rows of whole blocks of nf4",
            lambda q, x: (x.tp > 0) & _reaches_over(q),
            "the executor's blocks of 64 elements that share a scale of nf4 lie inside rows, and"
            " `{question.model.name}` has rows of other lengths",
            "plan with --base-precision int8",
        ),
    ),
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
