"""What a software stack cannot run though the model and the cluster would allow it: rules of `planner.legality`."""

from __future__ import annotations

import numpy as np

from cost_models.communication.context import context_ways
from cost_models.question import Question
from cost_models.specs.axis_orders import ORDERS, same_seats_of
from cost_models.specs.columns import LayoutColumns
from cost_models.specs.layout import CONTEXTS, Layout
from planner.rules import Bools, Rule, Words, either


def _stack_has_no_context(question: Question, layout: Layout) -> Words:
    what = f"software stack `{question.stack.name}` cannot split a sequence over ranks (`cp{layout.cp}`)"
    return Words(what, "use cp1; `--stack` names another")


def _stack_lacks_context(question: Question, layout: Layout) -> Words:
    ways = [f"context={way}" for way in question.stack.context_kinds]
    return Words(
        f"software stack `{question.stack.name}` has no `context={layout.context}`",
        f"it has {either(ways)}; `--stack` names another",
    )


def _context_not_offered(question: Question, x: LayoutColumns) -> Bools:
    """The usual way is always there; a stack without any has a rule of its own."""
    stack = question.stack
    offered = [CONTEXTS.index(way) for way in (*stack.context_kinds, stack.context_parallel)]
    return (x.cp > 1) & bool(stack.context_kinds) & ~np.isin(context_ways(question, x), offered)


def _stack_lacks_order(question: Question, layout: Layout) -> Words:
    orders = [f"order={order}" for order in question.stack.axis_orders]
    return Words(
        f"software stack `{question.stack.name}` cannot seat its ranks in `order={layout.order}`",
        f"it has {either(orders)}; `--stack` names another",
    )


def _order_not_offered(question: Question, x: LayoutColumns) -> Bools:
    """Whether no order of the stack seats the ranks as the layout's does."""
    if (x.order == 0).all() and question.stack.axis_orders[:1] == ORDERS[:1]:
        return np.zeros(len(x), dtype=np.bool_)
    seats = same_seats_of(x.cp, x.dp, x.pp)
    own = np.take_along_axis(seats, x.order[:, None], axis=1)
    offered = seats[:, [ORDERS.index(order) for order in question.stack.axis_orders]]
    missing: Bools = (offered != own).all(axis=1)
    return missing


def _stack_lacks_expert_tensor(question: Question, layout: Layout) -> Words:
    what = f"software stack `{question.stack.name}` splits experts as the rest of the model"
    return Words(
        f"{what}: `etp{layout.etp}` is not tp{layout.tp}", "leave out `etp`; `--stack` names another"
    )


def _stack_lacks_hybrid(question: Question, layout: Layout) -> Words:
    what = f"software stack `{question.stack.name}` shards over all {layout.replicas:,} ranks of dp x cp"
    return Words(f"{what}, not over `shard{layout.shard}`", "leave out `shard`; `--stack` names another")


STACK_RULES: tuple[Rule, ...] = (
    Rule(
        name="the stack has context parallelism",
        broken=lambda q, x: (x.cp > 1) & (not q.stack.context_kinds),
        sentence=_stack_has_no_context,
    ),
    Rule(
        name="the stack has this way of context parallelism",
        broken=_context_not_offered,
        sentence=_stack_lacks_context,
    ),
    Rule(name="the stack has this order", broken=_order_not_offered, sentence=_stack_lacks_order),
    Rule(
        name="the stack splits experts otherwise",
        broken=lambda q, x: q.model.has_experts & (not q.stack.expert_tensor_parallel) & (x.etp != x.tp),
        sentence=_stack_lacks_expert_tensor,
    ),
    Rule(
        name="the stack shards in groups",
        broken=lambda q, x: (x.shard != x.replicas) & (not q.stack.hybrid_shard),
        sentence=_stack_lacks_hybrid,
    ),
)
