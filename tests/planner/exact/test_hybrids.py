"""Models whose blocks mix tokens in several ways: the search finds what brute force over all layouts finds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from brute import EVERY_POLICY, everything
from effort import first_of
from small import every_axis, small_question

from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec
from planner.placement.leaf import TOLERANCE
from planner.search.search import search

STATES = {"kind": "mamba2", "heads": 8, "head_dim": 64, "groups": 4, "state_dim": 16, "chunk": 32}
DELTA = {"kind": "gated-delta", "heads": 8, "head_dim": 32, "groups": 2, "state_dim": 32}
EXPERTS = {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 256}
CHANNELS = {"kind": "mamba1", "heads": 512, "state_dim": 8, "step_rank": 16}
HYBRIDS: dict[str, dict[str, Any]] = {
    "in turns": {"recurrence": STATES, "mixers": ("recurrence", "attention")},
    "one attends": {
        **EXPERTS,
        "recurrence": DELTA,
        "mixers": ("recurrence", "recurrence", "recurrence", "attention"),
        "attention_gate": True,
    },
    "halves": {
        **EXPERTS,
        "num_layers": 5,
        "recurrence": STATES,
        "separate_halves": True,
        "mixers": ("recurrence", "none", "attention", "recurrence", "none"),
        "moe_layers": (4,),
    },
    "side by side": {"recurrence": STATES, "mixers": ("both",), "num_layers": 3},
    "encoder": {"encoder": {"token_types": 2}, "norm_placement": "after-sum", "embedding_norm": True},
    "two stacks": {"stacks": {"encoder_layers": 3}, "num_layers": 5, "norm": "rmsnorm"},
    "states alone": {"recurrence": STATES, "separate_halves": True},
    "channels": {
        **EXPERTS,
        "recurrence": CHANNELS,
        "mixers": ("recurrence", "recurrence", "attention", "recurrence"),
        "moe_layers": (1, 3),
    },
    "convolutions": {
        "recurrence": {"kind": "convolution", "heads": 256},
        "mixers": ("recurrence", "attention", "recurrence", "recurrence"),
    },
}


def asked(name: str, gpus: int, memory: str, **settings: Any) -> Question:
    question = every_axis(small_question(gpus, memory, **settings))
    shape = dict(question.model) | HYBRIDS[name]
    if shape.get("num_experts"):
        shape["num_moe_layers"] = len(shape.get("moe_layers") or ()) or shape["num_layers"]
    job = question.training
    if shape.get("stacks"):
        job = job.model_copy(update={"target_length": job.sequence_length // 2})
    return replace(question, model=TransformerSpec(**shape), training=job)


SIZES = ["150 MiB", "1 GiB", *(f"{size} MiB" for size in range(200, 700, 50))]
MEMORIES = [memory for _, memory in first_of(2, [("", size) for size in SIZES])]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("name", HYBRIDS)
def test_search_is_brute_force(name: str, memory: str) -> None:
    question = asked(name, 4, memory)
    found = everything(question)
    exact = found.best(np.arange(len(found)), EVERY_POLICY, math.inf)[0]
    result = search(question, top=5)
    assert len(exact) > 0
    seconds = [one.step_seconds for one in result.estimates]
    assert seconds == pytest.approx(exact[:5], rel=10 * TOLERANCE)
    assert (result.certificate.gap, result.certificate.undecided) == (0, 0)
