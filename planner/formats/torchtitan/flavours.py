"""Models of torchtitan: which of them a transformer is, and where it differs.

Source: torchtitan 0.3.0: torchtitan/models/{llama3,qwen3,deepseek_v3}/__init__.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from cost_models.files.catalog import load_model
from cost_models.specs.transformer import TransformerSpec
from planner.formats.exporter import NOTHING, Job, Translate, Word, lacks, nothing, only, otherwise, says


class Flavour(NamedTuple):
    """A model of torchtitan."""

    family: str
    """Module of `torchtitan.models`."""
    name: str
    """As its `model_registry` calls it."""


_SAME = {
    "llama3.2-1b": Flavour("llama3", "1B"),
    "llama3.2-3b": Flavour("llama3", "3B"),
    "llama3.1-8b": Flavour("llama3", "8B"),
    "llama3.1-70b": Flavour("llama3", "70B"),
    "llama3.1-405b": Flavour("llama3", "405B"),
    "qwen3-0.6b": Flavour("qwen3", "0.6B"),
    "qwen3-1.7b": Flavour("qwen3", "1.7B"),
    "qwen3-4b": Flavour("qwen3", "4B"),
    "qwen3-8b": Flavour("qwen3", "8B"),
    "qwen3-14b": Flavour("qwen3", "14B"),
    "qwen3-32b": Flavour("qwen3", "32B"),
    "qwen3-30b-a3b": Flavour("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": Flavour("qwen3", "235B-A22B"),
    "deepseek-v2-lite": Flavour("deepseek_v3", "16B"),
    "deepseek-v2": Flavour("deepseek_v3", "236B"),
    "deepseek-v3": Flavour("deepseek_v3", "671B"),
}
"""Name in our catalogue → torchtitan's model of the same shape."""
_KERNEL = re.compile(r"_(?:flex|varlen|fused_qkv|non_fused_qkv)(?:_attn)?$")
"""Ends of names that choose a kernel, not a shape."""
_SHAPE = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "num_kv_heads",
    "ffn_hidden_size",
    "vocab_size",
    "num_experts",
    "moe_ffn_hidden_size",
    "tied_embeddings",
)
"""Fields that identify a model."""
_ELSEWHERE = frozenset(
    {"kind", "name", "source", "changed", "max_positions", "left_out", "load_balance", "vocab_multiple"}
)


@cache
def _models() -> dict[Flavour, TransformerSpec]:
    known = {flavour: load_model(name) for name, flavour in _SAME.items()}
    small = {
        "name": "llama3-debugmodel",
        "num_layers": 6,
        "hidden_size": 256,
        "num_heads": 16,
        "num_kv_heads": 16,
        "head_dim": 16,
    }
    debug = known[Flavour("llama3", "8B")].model_copy(
        update={**small, "ffn_hidden_size": 768, "vocab_size": 2048}
    )
    return {**known, Flavour("llama3", "debugmodel"): debug}


def model_of(flavour: Flavour) -> TransformerSpec | None:
    """Our model for one of torchtitan's, whatever kernel its name chooses, or None."""
    plain = _KERNEL.sub("", flavour.name)
    return next((known for one, known in _models().items() if one == (flavour.family, plain)), None)


def flavours() -> tuple[Flavour, ...]:
    """Models of torchtitan that are known here."""
    return tuple(_models())


def flavour_of(model: TransformerSpec) -> tuple[Flavour, TransformerSpec] | None:
    """torchtitan's model of the same shape, and our model for it; None where there is none."""
    for flavour, known in _models().items():
        if all(getattr(model, name) == getattr(known, name) for name in _SHAPE):
            return flavour, known
    return None


def _shape(name: str) -> Translate:
    def word(job: Job) -> Word:
        if flavour_of(job.model) is not None:
            return NOTHING
        if name != "num_layers":
            return NOTHING  # once is enough
        return lacks("it has no model of this shape; its module `llama3` can be given one by hand")

    return word


def _detail(name: str) -> Translate:
    def word(job: Job) -> Word:
        found = flavour_of(job.model)
        if found is None or getattr(job.model, name) == getattr(found[1], name):
            return NOTHING
        return lacks(f"its {found[0].family} {found[0].name} has `{getattr(found[1], name)}`")

    return word


def _rotary(job: Job) -> Word:
    found = flavour_of(job.model)
    if found is None or found[0].family != "llama3":
        return _detail("rotary")(job)
    ours, theirs = job.model.rotary, found[1].rotary
    if ours == theirs:
        return NOTHING
    if (
        ours is not None
        and theirs is not None
        and ours.model_copy(update={"scaling": theirs.scaling}) == theirs
    ):
        return otherwise("its llama3 scales positions as Llama 3.1 does")
    return _detail("rotary")(job)


def _name(job: Job) -> Word:
    found = flavour_of(job.model)
    return NOTHING if found is None else says(model=tuple(found[0]))


def _left_out(job: Job) -> Word:
    found = flavour_of(job.model)
    if not job.model.left_out or (found is not None and found[1].left_out == job.model.left_out):
        return NOTHING
    return lacks(f"nobody read how: {', '.join(job.model.left_out)}")


MODEL: Mapping[str, Translate] = {
    f"model.{name}": _shape(name) if name in _SHAPE else _detail(name)
    for name in TransformerSpec.model_fields
    if name not in _ELSEWHERE
} | {
    "model.name": _name,
    "model.max_positions": nothing,  # its caches are as long as the sequence
    "model.rotary": _rotary,
    "model.left_out": _left_out,
    "model.load_balance": lambda job: (
        otherwise("its routers have a bias for each expert, moved towards even loads")
        if job.model.has_experts and job.model.load_balance
        else NOTHING
    ),
    "model.vocab_multiple": only("model.vocab_multiple", "its vocabulary is not padded", 1),
}
