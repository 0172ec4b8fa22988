"""What our own executor cannot run though the cost model prices it: named rules, beside what its stack file says."""

from __future__ import annotations

import numpy as np

from cost_models.question import MixedQuestion, Question
from cost_models.specs.layout import Layout
from planner.rules import Rule, Words

_PRECISIONS = ("fp32", "bf16")


def _precision(question: Question, layout: Layout) -> Words:
    what = f"the executor trains in fp32 or bf16, not in {question.training.precision}"
    return Words(what, "plan with --precision bf16")


def _one_pool(question: Question, layout: Layout) -> Words:
    return Words(f"the executor trains on one kind of GPU, and `{question.cluster.name}` has several pools")


def _routed_parts(question: Question, layout: Layout) -> Words:
    length = question.training.sequence_length
    what = f"the executor has each of tp{layout.tp} ranks route its part of a sequence"
    over = f"cp{layout.cp} x tp{layout.tp}" if layout.cp > 1 else f"tp{layout.tp}"
    return Words(f"{what}; {over} does not divide {length} tokens")


def _one_after_the_other(question: Question, layout: Layout) -> Words:
    which = "experts" if question.model.has_experts else "latent attention"
    what = f"the executor cannot split {which} over tp{layout.tp} in blocks that run attention and MLP side by side"
    return Words(what, "use tp1")


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
    Rule(
        name="tp divides the tokens it routes",
        broken=lambda q, x: (
            q.model.has_experts
            & (x.sp == 0)
            & (np.fmod(q.training.sequence_length, x.cp.astype(np.float64) * x.tp) != 0)
        ),
        sentence=_routed_parts,
    ),
    Rule(
        name="split experts and latents follow one another",
        broken=lambda q, x: (
            (x.tp > 1)
            & q.model.parallel_block
            & (q.model.has_experts or q.model.latent_attention is not None)
        ),
        sentence=_one_after_the_other,
    ),
)
