"""Diffusion transformers: the search finds what brute force over all layouts finds, of random small ones."""

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
    """Images of 64 or 256 patches, four GPUs, memory from tight to ample."""
    draw = np.random.default_rng(seed)
    latent, stack = int(draw.choice([16, 32])), ("megatron-core", "fsdp")[seed % 2]
    shape = {"num_layers": int(draw.integers(3, 6)), "hidden_size": 512, "num_heads": 8}
    model = TransformerSpec.model_validate(shape | {"diffusion": {"latent": latent}})
    memory = f"{int(draw.choice([300, 600, 1000]))} MiB"
    question = small_question(4, memory, stack=stack, sequence_length=(latent // 2) ** 2)
    return (every_axis if stack == "megatron-core" else lambda one: one)(replace(question, model=model))


@pytest.mark.parametrize("seed", range(number(2, 50)))
def test_search_is_brute_force(seed: int) -> None:
    require_brute_force(asked(seed))
