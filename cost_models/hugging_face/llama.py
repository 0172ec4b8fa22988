"""Dense families in the manner of Llama: RMS norms, rotary positions, gated MLPs.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.hugging_face.families import (
    LLAMA_FACTS,
    LLAMA_OPTIONAL,
    LLAMA_SIZES,
    Config,
    Family,
    combined,
    norms_by,
    whole_number,
    without,
)
from cost_models.hugging_face.rotary import rotary
from cost_models.hugging_face.windows import Derived, every, last_blocks, windows

_NO_ATTENTION_BIAS = {"attention_bias": ("attention_bias", False)}
_NO_MLP_BIAS = {"mlp_bias": ("mlp_bias", False)}
_BIASED_BY_CONFIG = without(LLAMA_FACTS, "attention_bias", "attention_output_bias")


def _gemma_scale(config: Config) -> Derived:
    """Gemma multiplies embedded tokens by the root of their width."""
    hidden = whole_number(config, "hidden_size", 0)
    return {"embedding_scale": ("hidden_size", hidden**0.5)} if hidden else {}


def _score_scale(config: Config) -> Derived:
    """Scores divided by the root of a number that the config gives."""
    scalar = config.get("query_pre_attn_scalar", 256)
    if scalar == config.get("head_dim", 256) or not isinstance(scalar, int | float) or scalar <= 0:
        return {}
    return {"attention_scale": ("query_pre_attn_scalar", float(scalar) ** -0.5)}


def _capped(config: Config, *, scores: float | None = None, logits: float | None = None) -> tuple[str, ...]:
    """What a Gemma soft-caps; `scores` and `logits` are the caps that the family's class assumes."""
    caps = {
        "soft-capped attention scores": config.get("attn_logit_softcapping", scores),
        "soft-capped logits": config.get("final_logit_softcapping", logits),
    }
    return tuple(what for what, cap in caps.items() if cap)


def _gemma3(config: Config) -> Derived:
    rounds = max(2, whole_number(config, "sliding_window_pattern", 6))
    return combined(
        _gemma_scale,
        _score_scale,
        partial(windows, default=4096, pattern=every(min(rounds, 1000))),
        partial(rotary, base=1e6, windowed_base=("rope_local_base_freq", 10_000.0)),
    )(config)


def _olmo3(config: Config) -> Derived:
    """OLMo 3: blocks with a window have unscaled rotary positions, whatever the scaling in the others."""
    base = config.get("rope_theta", 10_000.0)
    scaled = ("", base) if config.get("rope_scaling") else None
    return combined(partial(windows, default=4096, pattern=every(4)), partial(rotary, windowed_base=scaled))(
        config
    )


def _smollm3(config: Config) -> Derived:
    """SmolLM3: every fourth block has no rotary positions, and may have a window."""
    layers = min(whole_number(config, "num_hidden_layers", 0), MAX_LAYERS)
    interval = max(1, whole_number(config, "no_rope_layer_interval", 4))
    listed = config.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(layers)]
    turned = [bool(one) for one in listed] if isinstance(listed, list) else []
    found = rotary(config, base=2e6, pattern=turned)
    if config.get("use_sliding_window") is True:
        found |= windows(config, pattern=["full" if one else "window" for one in turned])
    return found


_GEMMA_OPTIONAL = (
    LLAMA_OPTIONAL
    | _NO_ATTENTION_BIAS
    | {"head_dim": ("head_dim", 256), "tied_embeddings": ("tie_word_embeddings", True)}
)
_GEMMA2_ACTIVATION = ("hidden_activation", "gelu_pytorch_tanh")
_GLM: dict[str, Any] = {
    "sizes": LLAMA_SIZES,
    "optional": LLAMA_OPTIONAL
    | norms_by("rms_norm_eps", 1.5625e-7)
    | {"attention_bias": ("attention_bias", True), "head_dim": ("head_dim", 128)},
    "derive": partial(rotary, part=("partial_rotary_factor", 0.5)),
}
_GLM_FACTS = without(LLAMA_FACTS, "attention_bias")
_OLMO2_FACTS = _BIASED_BY_CONFIG | {"norm_placement": "after", "qk_norm": True, "qk_norm_over": "all"}
_OLMO2_OPTIONAL = LLAMA_OPTIONAL | _NO_ATTENTION_BIAS | norms_by("rms_norm_eps", 1e-5)

LLAMA_FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        sizes=LLAMA_SIZES,
        facts=without(_BIASED_BY_CONFIG, "mlp_bias"),
        optional=LLAMA_OPTIONAL | _NO_ATTENTION_BIAS | _NO_MLP_BIAS,
        derive=rotary,
    ),
    "mistral": Family(
        sizes=LLAMA_SIZES,
        facts=LLAMA_FACTS,
        optional=LLAMA_OPTIONAL,
        derive=combined(partial(windows, default=4096), rotary),
    ),
    "phi3": Family(
        sizes=LLAMA_SIZES,
        told=("original_max_position_embeddings",),
        facts=LLAMA_FACTS,
        optional=LLAMA_OPTIONAL | norms_by("rms_norm_eps", 1e-5),
        derive=combined(windows, partial(rotary, part=("partial_rotary_factor", 1.0))),
    ),
    "qwen2": Family(
        sizes=LLAMA_SIZES,
        facts=LLAMA_FACTS | {"attention_bias": True},
        optional=LLAMA_OPTIONAL,
        derive=combined(last_blocks, rotary),
    ),
    "qwen3": Family(
        sizes=LLAMA_SIZES,
        facts=_BIASED_BY_CONFIG | {"qk_norm": True},
        optional=LLAMA_OPTIONAL | _NO_ATTENTION_BIAS | {"head_dim": ("head_dim", 128)},
        derive=combined(last_blocks, rotary),
    ),
    "smollm3": Family(
        sizes=LLAMA_SIZES,
        told=("max_window_layers",),
        facts=without(_BIASED_BY_CONFIG, "mlp_bias"),
        optional=LLAMA_OPTIONAL
        | _NO_ATTENTION_BIAS
        | _NO_MLP_BIAS
        | {"tied_embeddings": ("tie_word_embeddings", True)},
        derive=_smollm3,
    ),
    "gemma": Family(
        sizes=LLAMA_SIZES,
        facts=_BIASED_BY_CONFIG,
        optional=_GEMMA_OPTIONAL,
        activation=("hidden_act", "gelu_pytorch_tanh"),
        derive=combined(_gemma_scale, rotary),
    ),
    "gemma2": Family(
        sizes=LLAMA_SIZES,
        told=("hidden_act", "sliding_window_pattern"),
        facts=_BIASED_BY_CONFIG | {"norm_placement": "around"},
        optional=_GEMMA_OPTIONAL,
        activation=_GEMMA2_ACTIVATION,
        derive=combined(_gemma_scale, _score_scale, partial(windows, default=4096, pattern=every(2)), rotary),
        left_out=partial(_capped, scores=50.0, logits=30.0),
    ),
    "gemma3_text": Family(
        sizes=LLAMA_SIZES,
        told=("hidden_act", "sliding_window_pattern"),
        facts=_BIASED_BY_CONFIG | {"norm_placement": "around", "qk_norm": True},
        optional=_GEMMA_OPTIONAL,
        absent={"num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208}
        | {"max_position_embeddings": 131_072},
        activation=_GEMMA2_ACTIVATION,
        derive=_gemma3,
        left_out=_capped,
    ),
    "olmo2": Family(sizes=LLAMA_SIZES, facts=_OLMO2_FACTS, optional=_OLMO2_OPTIONAL, derive=rotary),
    "olmo3": Family(sizes=LLAMA_SIZES, facts=_OLMO2_FACTS, optional=_OLMO2_OPTIONAL, derive=_olmo3),
    "glm": Family(facts=_GLM_FACTS, **_GLM),
    "glm4": Family(facts=_GLM_FACTS | {"norm_placement": "around"}, **_GLM),
}
"""`model_type` → family."""
