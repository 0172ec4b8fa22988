"""Context parallelism: the ranks that share a sequence, and how they get one another's keys and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.axis import Axis, Mesh
from cost_models.axes.rule import Words, multiplied, refuses, rule_when
from cost_models.axes.words import UNSAID, Choice, Number
from cost_models.errors import either
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS

if TYPE_CHECKING:
    from cost_models.axes.columns import LayoutColumns
    from cost_models.axes.layout import Layout

USUAL_CONTEXT = UNSAID
"""In the column `context`: as the software stack does it."""


def context_ways(question: Question, columns: LayoutColumns) -> Ints:
    """(N,) indices into `CONTEXTS`: what the layout says, or else what the stack usually does."""
    usual = CONTEXTS.index(question.stack.context_parallel)
    return np.where(columns.context == USUAL_CONTEXT, usual, columns.context)


def _trades_heads(question: Question, x: LayoutColumns) -> Bools:
    trades: Bools = context_ways(question, x) == CONTEXTS.index("all-to-all")
    return trades


def _pieces(question: Question, x: LayoutColumns) -> Ints:
    """(N,) pieces of a sequence that each context rank has: two, one from either end, give causal attention equal work;
    one where heads are traded."""
    return np.where(_trades_heads(question, x), 1, 2)


@rule_when(
    "cp divides the sequence",
    lambda q, x: (x.cp > 1) & (q.training.sequence_length % (_pieces(q, x) * x.cp) != 0),
)
def _sequence_divides(question: Question, layout: Layout) -> Words:
    length, way = question.training.sequence_length, layout.context or question.stack.context_parallel
    pieces = layout.cp * (1 if way == "all-to-all" else 2)
    return Words(f"`cp{layout.cp}` deals a sequence of {length} tokens in {pieces:,} pieces")


@rule_when(
    "cp divides the heads it trades",
    lambda q, x: (
        (x.cp > 1) & _trades_heads(q, x) & (np.fmod(q.model.num_kv_heads, multiplied(x.cp, x.tp)) != 0)
    ),
)
def _heads_divide(question: Question, layout: Layout) -> Words:
    heads = question.model.num_kv_heads
    who = "`context=all-to-all`" if layout.context else f"software stack `{question.stack.name}`"
    what = f"{who} trades tokens for heads: tp{layout.tp} x cp{layout.cp}"
    return Words(f"{what} ranks share {heads} key/value heads")


_picks_from_all = refuses(
    "an indexer picks from all keys",
    lambda q, x: (x.cp > 1) & q.model.picks & (context_ways(q, x) == CONTEXTS.index("ring")),
    "`cp{layout.cp}` passes keys round a ring, and an indexer of `{question.model.name}` picks from all of them",
    "`context=all-gather` has them together",
)


@rule_when(
    "cp divides the heads of states",
    lambda q, x: (
        (x.cp > 1)
        & (np.fmod(q.model.recurrence.heads if q.model.recurrence else 0, multiplied(x.cp, x.tp)) != 0)
    ),
)
def _states_divide(question: Question, layout: Layout) -> Words:
    mixer = question.model.recurrence
    assert mixer is not None
    what = (
        f"a scan's tokens are traded for heads: tp{layout.tp} x cp{layout.cp} ranks share {mixer.heads} heads"
    )
    return Words(f"{what} of its {mixer.called}")


def _not_offered(question: Question, x: LayoutColumns) -> Bools:
    """The usual way is always there; a stack without any has a rule of its own."""
    stack = question.stack
    offered = [CONTEXTS.index(way) for way in (*stack.context_kinds, stack.context_parallel)]
    return (x.cp > 1) & bool(stack.context_kinds) & ~np.isin(context_ways(question, x), offered)


@rule_when("the stack has this way of context parallelism", _not_offered)
def _stack_lacks_context(question: Question, layout: Layout) -> Words:
    ways = [f"context={way}" for way in question.stack.context_kinds]
    return Words(
        f"software stack `{question.stack.name}` has no `context={layout.context}`",
        f"it has {either(ways)}; `--stack` names another",
    )


CP = Axis(
    word=Number(),
    text="Ranks that share one sequence.",
    executor="executor.axes.context.attention:ContextAxis",
    rules=(
        _sequence_divides,
        _states_divide,
        refuses(
            "cp splits one sequence",
            lambda q, x: (x.cp > 1) & bool(q.model.stacks or q.model.tower or q.model.diffusion),
            "`cp{layout.cp}` splits one sequence, and `{question.model.name}` is priced for whole ones alone",
            "use cp1",
        ),
    ),
    stack_rules=(
        refuses(
            "the stack splits scans over ranks",
            lambda q, x: (x.cp > 1) & (q.model.recurrence is not None) & q.stack.torch_context_parallel,
            "software stack `{question.stack.name}` splits attention alone over ranks (`cp{layout.cp}`): no state"
            " passes from one rank's tokens to the next's",
            "use cp1; `--stack` names another",
        ),
        refuses(
            "the stack has context parallelism",
            lambda q, x: (x.cp > 1) & (not q.stack.context_kinds),
            "software stack `{question.stack.name}` cannot split a sequence over ranks (`cp{layout.cp}`)",
            "use cp1; `--stack` names another",
        ),
    ),
    touches=frozenset({"states", "blocks"}),
)


def _ways(question: Question, mesh: Mesh) -> list[int]:
    """Those of the software stack, its usual way without its name."""
    if mesh.cp == 1:
        return [USUAL_CONTEXT]
    others = [way for way in question.stack.context_kinds if way != question.stack.context_parallel]
    return [USUAL_CONTEXT, *(CONTEXTS.index(way) for way in others)]


CONTEXT = Axis(
    word=Choice(CONTEXTS),
    text="How context ranks get one another's keys and values.",
    settled=lambda layout: None if layout.cp == 1 else layout.context,
    must_be_chosen=True,
    within="cp",
    rules=(_heads_divide, _picks_from_all),
    stack_rules=(_stack_lacks_context,),
    touches=frozenset({"blocks"}),
    values=_ways,
)
