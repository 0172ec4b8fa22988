"""Fields of a transformer that a file may leave out, because they follow from others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from cost_models.specs.model.diffusion import Diffusion

DERIVED_FIELDS = ("num_kv_heads", "head_dim", "ffn_hidden_size")
"""Fields that a file may leave out, because they follow from `num_heads` and `hidden_size`."""


def filled_in(data: dict[str, Any]) -> dict[str, Any]:
    """The fields with those that follow; wrong types are left to the checks of fields."""
    heads, hidden = data.get("num_heads"), data.get("hidden_size")
    filled = _of_diffusion(data) | data
    if isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden > 0:
        filled.setdefault("num_kv_heads", heads)
        # a fraction is left for the field check, which says `head_dim: `12.8` is not a whole number`
        filled.setdefault("head_dim", hidden / heads if hidden % heads else hidden // heads)
        filled.setdefault("ffn_hidden_size", 4 * hidden)
        if filled.get("num_experts"):
            filled.setdefault("moe_ffn_hidden_size", filled["ffn_hidden_size"])
            named = filled.get("moe_layers")
            count = len(named) if isinstance(named, list | tuple) else 0
            filled.setdefault("num_moe_layers", count or _decoder_layers(data))
    else:  # those two are refused anyway: stand-ins, so that what follows from them is not reported too
        for name in DERIVED_FIELDS:
            filled.setdefault(name, 1)
    if filled.get("recurrence") is not None:
        filled["mixers"] = filled.get("mixers") or ("recurrence",)
    if "attention_bias" in filled:
        filled.setdefault("attention_output_bias", filled["attention_bias"])
    return filled


def _of_diffusion(data: dict[str, Any]) -> dict[str, Any]:
    """Of a diffusion transformer: 1,000 classes and one for none, noise and its variance for each number of a patch."""
    if data.get("diffusion") is None:
        return {}
    plain = {
        "vocab_size": 1001,
        "outputs": 1,
        "positions": "none",
        "tied_embeddings": False,
        "head_bias": True,
    }
    plain |= {"activation": "gelu-tanh", "norm_epsilon": 1e-6}
    with suppress(ValidationError):  # which the check of the field reports
        plain["outputs"] = 2 * Diffusion.model_validate(data["diffusion"]).pixels
    return plain | {"encoder": {"masked": 1.0, "head_transform": False}}


def _decoder_layers(data: dict[str, Any]) -> Any:
    """Blocks behind a vision tower's."""
    layers, tower = data.get("num_layers"), data.get("tower")
    own = tower.get("layers") if isinstance(tower, dict) else getattr(tower, "layers", 0)
    return layers - own if isinstance(layers, int) and isinstance(own, int) and own < layers else layers
