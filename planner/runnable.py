"""What our own executor cannot run yet though the cost model prices it: named rules, like those of legality."""

from __future__ import annotations

from cost_models.errors import InputError, Problem
from cost_models.question import MixedQuestion, Question
from cost_models.specs.columns import LayoutColumns
from cost_models.specs.layout import Layout
from planner.legality import Rule, Words

_PRECISIONS = ("fp32", "bf16")


def _precision(question: Question, layout: Layout) -> Words:
    what = f"the executor trains in fp32 or bf16, not in {question.training.precision}"
    return Words(what, "plan with --precision bf16")


def _experts(question: Question, layout: Layout) -> Words:
    return Words(f"the executor cannot train a mixture of experts (`{question.model.name}`) yet")


def _latent(question: Question, layout: Layout) -> Words:
    return Words(f"the executor cannot train latent attention (`{question.model.name}`) yet")


def _one_pool(question: Question, layout: Layout) -> Words:
    return Words(f"the executor trains on one kind of GPU, and `{question.cluster.name}` has several pools")


RUNNABLE: tuple[Rule, ...] = (
    Rule(
        name="one kind of GPU",
        broken=lambda q, x: (x.tp > 0) & isinstance(q, MixedQuestion),
        sentence=_one_pool,
    ),
    Rule(
        name="a precision the executor has",
        broken=lambda q, x: (x.tp > 0) & (q.training.precision not in _PRECISIONS),
        sentence=_precision,
    ),
    Rule(name="dense MLPs", broken=lambda q, x: (x.tp > 0) & q.model.has_experts, sentence=_experts),
    Rule(
        name="plain attention",
        broken=lambda q, x: (x.tp > 0) & (q.model.latent_attention is not None),
        sentence=_latent,
    ),
)


def require_runnable(question: Question, layout: Layout) -> None:
    """Nothing for a layout that the executor can run.

    Raises:
        InputError: with every reason why it cannot, and the hint of the first.
    """
    columns = LayoutColumns.of([layout])
    found = [rule.sentence(question, layout) for rule in RUNNABLE if rule.broken(question, columns)[0]]
    if len(found) == 1:
        raise InputError(found[0].what, hint=found[0].hint)
    if found:
        raise InputError(
            f"the executor cannot run `{layout}`: {len(found)} reasons",
            problems=[Problem("", words.what) for words in found],
            hint=found[0].hint,
        )
