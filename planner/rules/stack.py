"""What a software stack cannot run though the model and the cluster would allow it: rules of `planner.rules.legality`.

The executor is the stacks of `OWN_STACKS`; what their file does not say is in `planner.rules.runnable`. It refuses what
breaks one of these rules, and nothing that breaks one is planned for it (`require_runnable`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.context import CONTEXTS
from cost_models.axes.layout import Layout
from cost_models.axes.order import ORDERS, same_seats_of
from cost_models.communication.context import context_ways
from cost_models.defaults import OWN_COMPILED, OWN_STACK, OWN_STACKS
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.question import Question
from cost_models.schedules import SPLIT_BACKWARD, is_scheduled
from planner.rule import Bools, Rule, Words, either
from planner.rules.runnable import RUNNABLE


def _stack_has_no_zero(question: Question, layout: Layout) -> Words:
    stages = [f"zero{stage}" for stage in question.stack.zero_stages]
    return Words(
        f"software stack `{question.stack.name}` cannot run `zero{layout.zero}`",
        f"it has {either(stages)}; `--stack` names another",
    )


def _stack_has_no_schedule(question: Question, layout: Layout) -> Words:
    return Words(
        f"software stack `{question.stack.name}` cannot run `schedule={layout.schedule}`",
        f"it has {either(list(question.stack.schedules))}; `--stack` names another",
    )


def _split_needs_weights(question: Question, layout: Layout) -> Words:
    what = (
        f"`zero{layout.zero}` gathers weights again for each backward pass, and `schedule={layout.schedule}`"
    )
    return Words(
        f"{what} splits that pass: PyTorch trains wrong without a word", "use zero2, or another schedule"
    )


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


def _of_the_executor(rule: Rule) -> Rule:
    """The rule for those who plan for the executor; other stacks may do it."""
    return replace(rule, broken=lambda q, x: (q.stack.name in OWN_STACKS) & rule.broken(q, x))


STACK_RULES: tuple[Rule, ...] = (
    Rule(
        name="the stack has this ZeRO stage",
        broken=lambda q, x: ~np.isin(x.zero, q.stack.zero_stages),
        sentence=_stack_has_no_zero,
    ),
    Rule(
        name="the stack has this schedule",
        broken=lambda q, x: ~is_scheduled(x, q.stack.schedules),
        sentence=_stack_has_no_schedule,
    ),
    Rule(
        name="a split backward pass finds its weights",
        broken=lambda q, x: (
            (x.zero == 3) & q.stack.zero3_gathers_every_microbatch & is_scheduled(x, SPLIT_BACKWARD)
        ),
        sentence=_split_needs_weights,
    ),
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
    *(_of_the_executor(rule) for rule in RUNNABLE),
)


def question_objections(question: Question) -> list[Words]:
    """What the executor cannot do of a question planned for it, whatever the layout."""
    if question.stack.name not in OWN_STACKS:
        return []
    smallest = Layout()
    columns = LayoutColumns.of([smallest])
    return [rule.sentence(question, smallest) for rule in RUNNABLE if rule.broken(question, columns)[0]]


def require_runnable(question: Question, layout: Layout) -> None:
    """Nothing for a layout that the executor can run, whatever stack it was planned for.

    Raises:
        InputError: with every reason why it cannot, and the hint of the first.
    """
    own = load_stack(OWN_COMPILED if question.stack.compiled else OWN_STACK)
    ours = replace(question, stack=own.model_copy(update={"offloads": question.stack.offloads}))
    columns = LayoutColumns.of([layout])
    found = [rule.sentence(ours, layout) for rule in STACK_RULES if rule.broken(ours, columns)[0]]
    if len(found) == 1:
        raise InputError(found[0].what, hint=found[0].hint)
    if found:
        raise InputError(
            f"the executor cannot run `{layout}`: {len(found)} reasons",
            problems=[Problem("", words.what) for words in found],
            hint=found[0].hint,
        )
