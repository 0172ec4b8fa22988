"""Vision towers before a decoder, and frozen parts: the search finds what brute force over all layouts finds, of random
small ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreeing import require_brute_force
from effort import number
from small import every_axis, small_question

from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec

_FROZEN = (
    (),
    ("tower",),
    ("language",),
    ("tower", "language"),
    ("embedding", "first=1"),
    ("tower", "projector"),
)


def asked(seed: int) -> Question:
    """Towers wider and narrower than their decoder, one image or several, memory from tight to ample; every fourth
    model has no tower."""
    draw = np.random.default_rng(seed)
    gpus, memory = int(draw.choice([2, 4])), f"{int(draw.choice([120, 200, 400, 1000]))} MiB"
    stack = str(draw.choice(["megatron-core", "fsdp", "megatron-2022"]))
    images, tower, decoder = (int(draw.integers(1, most)) for most in (4, 4, 4))
    freeze = _FROZEN[int(draw.integers(len(_FROZEN)))]
    question = small_question(gpus, memory, stack=stack, sequence_length=int(draw.choice([64, 128])))
    shape: dict[str, Any] = dict(question.model) | {
        "gated_mlp": bool(draw.integers(2)),
        "num_layers": tower + decoder,
    }
    if seed % 4 == 3:
        freeze, images = ("embedding", f"first={int(draw.integers(1, tower + decoder))}"), None  # type: ignore[assignment]
    else:
        shape["tower"] = {
            "layers": tower,
            "hidden_size": int(draw.choice([128, 512])),
            "num_heads": 4,
            "image": 56,
            "patch": 14,
            "class_token": bool(draw.integers(2)),
            "norm_after": bool(draw.integers(2)),
            "projector_hidden_size": int(draw.choice([0, 256])),
        }
    job = question.training.model_copy(update={"images": images, "freeze": freeze})
    question = replace(question, model=TransformerSpec.model_validate(shape), training=job)
    return (every_axis if stack == "megatron-core" else lambda one: one)(question)


@pytest.mark.parametrize("seed", range(number(4, 100)))
def test_search_is_brute_force(seed: int) -> None:
    require_brute_force(asked(seed))
