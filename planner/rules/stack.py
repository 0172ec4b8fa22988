"""What a software stack cannot run though the model and the cluster would allow it: rules of `planner.rules.legality`.

The executor is the stacks of `OWN_STACKS`; what their file does not say is in `planner.rules.runnable`. It refuses what
breaks one of these rules, and nothing that breaks one is planned for it (`require_runnable`).
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, Layout
from cost_models.axes.rule import Rule, Words, in_order
from cost_models.defaults import OWN_COMPILED, OWN_STACK, OWN_STACKS
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.question import Question
from planner.rules.runnable import RUNNABLE


def _of_the_executor(rule: Rule) -> Rule:
    """The rule for those who plan for the executor; other stacks may do it."""
    return replace(rule, broken=lambda q, x: (q.stack.name in OWN_STACKS) & rule.broken(q, x))


_FIRST_TOLD = (
    "the stack has this ZeRO stage",
    "the stack has this schedule",
    "a split backward pass finds its weights",
    "the stack has context parallelism",
    "the stack has this way of context parallelism",
    "the stack has this order",
    "the stack splits experts otherwise",
    "the stack shards in groups",
)
"""The order in which the rules of the axes are told; others, of new axes, follow."""
STACK_RULES: tuple[Rule, ...] = (
    *in_order(_FIRST_TOLD, (rule for axis in AXES.values() for rule in axis.stack_rules)),
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
    ours = replace(question, stack=own)
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
