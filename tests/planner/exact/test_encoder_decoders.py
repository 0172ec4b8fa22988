"""Encoder-decoders on one pipeline: the search finds what brute force over all layouts finds, of random small ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from agreeing import require_brute_force
from effort import number
from small import every_axis, small_question

from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec


def asked(seed: int) -> Question:
    """Stacks of unlike depth, sequences of unlike length, memory from tight to ample."""
    draw = np.random.default_rng(seed)
    gpus, memory = int(draw.choice([2, 4])), f"{int(draw.choice([120, 200, 400, 1000]))} MiB"
    stack = str(draw.choice(["megatron-core", "fsdp", "megatron-2022"]))
    source, target = (int(draw.choice([64, 128, 256])) for _ in range(2))
    question = small_question(gpus, memory, stack=stack, sequence_length=source, target_length=target)
    encoder, decoder = (int(draw.integers(1, 4)) for _ in range(2))
    shape = dict(question.model) | {
        "num_layers": encoder + decoder,
        "stacks": {"encoder_layers": encoder, "position_buckets": 32},
        "gated_mlp": bool(draw.integers(2)),
    }
    model = TransformerSpec.model_validate(shape)
    return (every_axis if stack == "megatron-core" else lambda one: one)(replace(question, model=model))


@pytest.mark.parametrize("seed", range(number(3, 100)))
def test_search_is_brute_force(seed: int) -> None:
    require_brute_force(asked(seed))
