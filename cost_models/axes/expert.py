"""Expert parallelism: the ranks that share the experts of a mixture, and those that split one expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.axes.axis import Axis, Mesh, divisors
from cost_models.axes.rule import Words, dividing, multiplied, rule_when
from cost_models.axes.words import Number
from cost_models.question import Question
from cost_models.units import counted

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout


@rule_when("ep divides the experts", lambda q, x: q.model.has_experts & (q.model.num_experts % x.ep != 0))
def _experts_split(question: Question, layout: Layout) -> Words:
    count = question.model.num_experts
    return Words(f"`ep{layout.ep}` shares {counted(count, 'expert')}", dividing("ep", count, count))


@rule_when(
    "expert groups divide the ranks of a stage",
    lambda q, x: q.model.has_experts & (np.fmod(multiplied(x.tp, x.cp, x.dp), multiplied(x.ep, x.etp)) != 0),
)
def _groups_divide(question: Question, layout: Layout) -> Words:
    ranks, together = layout.tp * layout.data_ranks, layout.ep * layout.expert_tp
    what = f"ep{layout.ep} x etp{layout.expert_tp} = {together:,} ranks hold the experts of a block"
    return Words(f"{what}; tp x cp x dp has {ranks:,}", "they must divide it")


@rule_when(
    "experts are for a mixture", lambda q, x: (not q.model.has_experts) & ((x.ep > 1) | (x.etp != x.tp))
)
def _no_experts(question: Question, layout: Layout) -> Words:
    what = f"`ep{layout.ep}`" if layout.ep > 1 else f"`etp{layout.etp}`"
    return Words(f"{what} shares experts, and model `{question.model.name}` has none", "leave it out")


@rule_when(
    "etp divides an expert", lambda q, x: q.model.has_experts & (q.model.moe_ffn_hidden_size % x.etp != 0)
)
def _expert_splits(question: Question, layout: Layout) -> Words:
    width = question.model.moe_ffn_hidden_size
    return Words(
        f"`etp{layout.expert_tp}` splits {width:,} columns of an expert", "`etp1` leaves experts whole"
    )


@rule_when(
    "the stack splits experts otherwise",
    lambda q, x: q.model.has_experts & (not q.stack.expert_tensor_parallel) & (x.etp != x.tp),
)
def _stack_lacks_expert_tensor(question: Question, layout: Layout) -> Words:
    what = f"software stack `{question.stack.name}` splits experts as the rest of the model"
    return Words(
        f"{what}: `etp{layout.etp}` is not tp{layout.tp}", "leave out `etp`; `--stack` names another"
    )


EP = Axis(
    word=Number(),
    text="Ranks that share the experts of a mixture.",
    executor="executor.axes.expert:ExpertAxis",
    rules=(
        _experts_split,
        _groups_divide,
        _no_experts,
    ),
    touches=frozenset({"states", "blocks"}),
    values=lambda question, mesh: (
        divisors(question.model.num_experts) if question.model.has_experts else (1,)
    ),
)


def _expert_degrees(question: Question, mesh: Mesh) -> list[int]:
    shares = question.model.has_experts and question.stack.expert_tensor_parallel
    return divisors(mesh.tp) if shares else [mesh.tp]


ETP = Axis(
    word=Number(),
    text="Ranks that split one expert.",
    settled=lambda layout: None if layout.etp == layout.tp else layout.etp,
    comes_to=lambda layout: layout.expert_tp,
    follows=lambda columns: columns.tp,
    rules=(_expert_splits,),
    stack_rules=(_stack_lacks_expert_tensor,),
    touches=frozenset({"states", "blocks"}),
    values=_expert_degrees,
)
