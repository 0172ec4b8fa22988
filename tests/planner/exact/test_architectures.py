"""Every architecture: the search finds what brute force over all layouts finds, of random small models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreeing import require_brute_force
from effort import first_of, number
from small import every_axis, small_question

from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec

STATES = {"kind": "mamba2", "heads": 8, "head_dim": 64, "groups": 4, "state_dim": 16, "chunk": 32}
DELTA = {"kind": "gated-delta", "heads": 8, "head_dim": 32, "groups": 2, "state_dim": 32}
EXPERTS = {"num_experts": 4, "experts_per_token": 2, "moe_ffn_hidden_size": 256}
CHANNELS = {"kind": "mamba1", "heads": 512, "state_dim": 8, "step_rank": 16}
HYBRIDS: dict[str, dict[str, Any]] = {
    "in turns": {"recurrence": STATES, "mixers": ("recurrence", "attention")},
    "one attends": EXPERTS
    | {"recurrence": DELTA, "mixers": (*["recurrence"] * 3, "attention"), "attention_gate": True},
    "halves": EXPERTS
    | {"num_layers": 5, "recurrence": STATES, "separate_halves": True, "moe_layers": (4,)}
    | {"mixers": ("recurrence", "none", "attention", "recurrence", "none")},
    "side by side": {"recurrence": STATES, "mixers": ("both",), "num_layers": 3},
    "encoder": {"encoder": {"token_types": 2}, "norm_placement": "after-sum", "embedding_norm": True},
    "two stacks": {"stacks": {"encoder_layers": 3}, "num_layers": 5, "norm": "rmsnorm"},
    "states alone": {"recurrence": STATES, "separate_halves": True},
    "channels": EXPERTS
    | {"recurrence": CHANNELS, "moe_layers": (1, 3)}
    | {"mixers": ("recurrence", "recurrence", "attention", "recurrence")},
    "convolutions": {"recurrence": {"kind": "convolution", "heads": 256}}
    | {"mixers": ("recurrence", "attention", "recurrence", "recurrence")},
}


def hybrid(name: str, gpus: int, memory: str, **settings: Any) -> Question:
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
def test_hybrids_are_searched_as_by_brute_force(name: str, memory: str) -> None:
    require_brute_force(hybrid(name, 4, memory))


def denoiser(seed: int) -> Question:
    """Images of 64 or 256 patches, four GPUs, memory from tight to ample."""
    draw = np.random.default_rng(seed)
    latent, stack = int(draw.choice([16, 32])), ("megatron-core", "fsdp")[seed % 2]
    shape = {"num_layers": int(draw.integers(3, 6)), "hidden_size": 512, "num_heads": 8}
    model = TransformerSpec.model_validate(shape | {"diffusion": {"latent": latent}})
    memory = f"{int(draw.choice([300, 600, 1000]))} MiB"
    question = small_question(4, memory, stack=stack, sequence_length=(latent // 2) ** 2)
    return (every_axis if stack == "megatron-core" else lambda one: one)(replace(question, model=model))


def encoder_decoder(seed: int) -> Question:
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


_FROZEN = (
    (), ("tower",), ("language",), ("tower", "language"), ("embedding", "first=1"), ("tower", "projector"),
)  # fmt: skip


def vision_tower(seed: int) -> Question:
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
        own = {
            "layers": tower,
            "hidden_size": int(draw.choice([128, 512])),
            "num_heads": 4,
            "image": 56,
            "patch": 14,
        }
        own |= {name: bool(draw.integers(2)) for name in ("class_token", "norm_after")}
        shape["tower"] = own | {"projector_hidden_size": int(draw.choice([0, 256]))}
    job = question.training.model_copy(update={"images": images, "freeze": freeze})
    question = replace(question, model=TransformerSpec.model_validate(shape), training=job)
    return (every_axis if stack == "megatron-core" else lambda one: one)(question)


SEEDS = {denoiser: (2, 50), encoder_decoder: (3, 100), vision_tower: (4, 100)}


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, at) for kind, few in SEEDS.items() for at in range(number(*few))]
)
def test_search_is_brute_force(kind: Callable[[int], Question], seed: int) -> None:
    require_brute_force(kind(seed))
