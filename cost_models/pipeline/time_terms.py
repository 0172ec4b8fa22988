"""Every time coefficient of `StageCosts`, split into the parts a user sees."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np

from cost_models.axes.axis import Terms
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import prices
from cost_models.operators.documents import timed
from cost_models.pipeline.further_tokens import further_seconds
from cost_models.pipeline.terms.block_terms import (
    action_terms,
    halves,
    launch_seconds,
    layer_backward,
    layer_forward,
)
from cost_models.pipeline.terms.update_terms import optimizer, sync
from cost_models.pipeline.time_pieces import Pieces, Term, jitter, with_jitter
from cost_models.question import Question

_END_OF_A_BLOCK = 0.5
"""To drive an end of the model takes this share of a block, on a CPU: both together take as long as one."""


V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class TimeCoefficients(Generic[V]):
    """Seconds of `stage_costs`; arrays are (N,) unless it says (N, P)."""

    layer_forward: V
    layer_backward: V
    """(N, P): includes what the policy recomputes and the communication that is not hidden."""
    embedding_forward: V
    embedding_backward: V
    head_forward: V
    head_backward: V
    stage_forward: V
    stage_backward: V
    layer_weight: V
    """The part of `layer_backward` towards the weights, without recompute."""
    head_weight: V
    stage_weight: V
    """What a pass takes longer in two actions than in one."""
    p2p: V
    """Delay between the end of an action and the start of its successor on another rank."""
    layer_sync: V
    embedding_sync: V
    head_sync: V
    rank_sync: V
    layer_optimizer: V
    embedding_optimizer: V
    head_optimizer: V
    rank_optimizer: V
    step_overhead: V


@dataclass(frozen=True, kw_only=True)
class TimeTerms(TimeCoefficients[Term]):
    """Each in the parts that a user sees."""


def time_terms(
    question: Question, columns: LayoutColumns, *, data_parallel: bool = True, whole: bool = True
) -> TimeTerms:
    """All time coefficients for N layouts at once, or as if no other ranks held the same parameters; without the
    `whole` model's ends those of blocks, and of what a rank does once a step, the others without parts."""
    question = timed(question)
    pieces = Pieces(question, columns, data_parallel, whole)
    terms: Terms = {
        "layer_forward": layer_forward(pieces),
        "layer_backward": layer_backward(pieces),
        **sync(pieces),
        **optimizer(pieces),
        **(_of_passes(pieces) if whole else {}),
    }
    for price in prices():
        terms |= price.seconds(pieces, terms) if price.seconds else {}
    terms["layer_backward"], terms["layer_weight"] = halves(pieces, terms["layer_backward"])
    if whole:
        terms |= further_seconds(question, columns, pieces.device, terms)
    if (
        question.training.reference == "resident"
    ):  # runs before every forward pass, with its gathers and collectives
        passes = ("layer_forward", "embedding_forward", "head_forward", "stage_forward")
        twice = {name: terms[name] for name in passes if name in terms}
        terms |= {name: {part: 2 * value for part, value in term.items()} for name, term in twice.items()}
    slowdown, none = jitter(question, columns), {field.name: Term() for field in fields(TimeTerms)}
    return TimeTerms(**none | {name: with_jitter(term, slowdown) for name, term in terms.items()})


def _of_passes(pieces: Pieces) -> Terms:
    """Passes through embedding and head, and what an action of a pipeline and a step take besides."""
    ends, tensor = pieces.ends, pieces.tensor
    on_cpu = pieces.question.cluster.gpu.kind == "cpu"
    end = {"host": _END_OF_A_BLOCK * launch_seconds(pieces)} if on_cpu else {}
    return {
        "embedding_forward": {"compute": ends.embedding_forward, "tp_comm": tensor.embedding_forward} | end,
        "embedding_backward": {"compute": ends.embedding_backward, "tp_comm": tensor.embedding_backward}
        | end,
        "head_forward": {"compute": ends.head_forward, "tp_comm": tensor.head_forward} | end,
        "head_backward": {
            "compute": ends.head_backward,
            "tp_comm": pieces.head_summed,
            "tp_hidden": tensor.head_backward - pieces.head_summed,
        }
        | end,
        "head_weight": {"compute": ends.head_weight},
        **action_terms(pieces),
        "step_overhead": {"host": np.full(len(pieces.columns), pieces.question.hardware.step_seconds)},
    }
