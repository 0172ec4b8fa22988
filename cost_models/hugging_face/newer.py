"""Dense families that came after Llama 3, each Llama's block with a few changes.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from cost_models.hugging_face.families import (
    LLAMA_FACTS,
    LLAMA_OPTIONAL,
    LLAMA_SIZES,
    Config,
    Family,
    combined,
    norms_by,
    without,
)
from cost_models.hugging_face.llama import LLAMA_FAMILIES
from cost_models.hugging_face.rotary import rotary
from cost_models.hugging_face.windows import Derived, every, windows

_BIASED_BY_CONFIG = without(LLAMA_FACTS, "attention_bias", "attention_output_bias", "mlp_bias")
_QUIET_MLP = _BIASED_BY_CONFIG | {"mlp_bias": False}
_BIASES = {"attention_bias": ("attention_bias", False), "mlp_bias": ("mlp_bias", False)}
_ATTENTION_BIAS = {"attention_bias": ("attention_bias", False)}
_ONE_BIAS = {"attention_bias": ("use_bias", False), "mlp_bias": ("use_bias", False)}
_LATE_NORMS = "norms of queries and keys behind their rotary positions"
_PLAIN_MLP = {"gated_mlp": False}


def multiplied(config: Config) -> Derived:
    """Granite: factors on embedded tokens, scores and logits."""
    logits = config.get("logits_scaling", 1.0)
    inverse = 1 / logits if isinstance(logits, int | float) and logits > 0 else logits
    return {
        "embedding_scale": ("embedding_multiplier", float(config.get("embedding_multiplier", 1.0))),
        "attention_scale": ("attention_multiplier", float(config.get("attention_multiplier", 1.0))),
        "logit_scale": ("logits_scaling", inverse),
    }


def scaled_residuals(config: Config) -> tuple[str, ...]:
    """Granite: a factor on what each half of a block adds."""
    factor = config.get("residual_multiplier", 1.0)
    return () if factor == 1 else (f"what halves of blocks add, scaled by {factor}",)


def clipped(config: Config) -> tuple[str, ...]:
    """OLMo: limits on queries, keys and values."""
    return ("clipped queries, keys and values",) if config.get("clip_qkv") else ()


def _exaone4(config: Config) -> Derived:
    """EXAONE 4: blocks with a window turn, those without do not; where there is no window all turn."""
    interval = config.get("sliding_window_pattern", 4)
    rounds = interval if isinstance(interval, int) and not isinstance(interval, bool) and interval > 1 else 4
    window = config.get("sliding_window", 4096)
    found = windows(config, default=4096, pattern=every(min(rounds, 1000)))
    if window is None or not found:
        return rotary(config)
    _, kinds = found.get("window_pattern", ("", ("window",)))
    return found | rotary(config, pattern=[kind == "window" for kind in kinds])


def _bitnet_left_out(config: Config) -> tuple[str, ...]:
    return ("norms inside attention and MLP", "weights of three values")


NEWER_FAMILIES: Mapping[str, Family] = {
    "granite": Family(
        sizes=LLAMA_SIZES,
        facts=_BIASED_BY_CONFIG,
        optional=LLAMA_OPTIONAL | _BIASES,
        derive=combined(multiplied, rotary),
        left_out=scaled_residuals,
    ),
    "seed_oss": Family(
        sizes=LLAMA_SIZES,
        facts=_BIASED_BY_CONFIG,
        optional=LLAMA_OPTIONAL
        | {
            "head_dim": ("head_dim", 128),
            "attention_bias": ("attention_bias", True),
            "attention_output_bias": ("attention_out_bias", False),
            "mlp_bias": ("mlp_bias", False),
        },
        derive=rotary,
    ),
    "ernie4_5": Family(
        sizes=LLAMA_SIZES,
        facts=_BIASED_BY_CONFIG,
        optional=LLAMA_OPTIONAL
        | _ONE_BIAS
        | norms_by("rms_norm_eps", 1e-5)
        | {"head_dim": ("head_dim", 128), "tied_embeddings": ("tie_word_embeddings", True)},
        derive=partial(rotary, base=500_000.0),
    ),
    "hunyuan_v1_dense": Family(
        sizes=LLAMA_SIZES,
        facts=_QUIET_MLP | {"qk_norm": True},
        optional=LLAMA_OPTIONAL | _ATTENTION_BIAS | norms_by("rms_norm_eps", 1e-5),
        derive=rotary,
        left_out=lambda config: (_LATE_NORMS,),
    ),
    "nemotron": Family(
        sizes=LLAMA_SIZES,
        facts=_BIASED_BY_CONFIG | _PLAIN_MLP | {"norm": "layernorm"},
        optional=LLAMA_OPTIONAL | _BIASES | norms_by("norm_eps", 1e-5),
        activation=("hidden_act", "relu2"),
        derive=partial(rotary, part=("partial_rotary_factor", 0.5)),
    ),
    "arcee": Family(
        sizes=LLAMA_SIZES,
        facts=_BIASED_BY_CONFIG | _PLAIN_MLP,
        optional=LLAMA_OPTIONAL | _BIASES | norms_by("rms_norm_eps", 1e-5),
        activation=("hidden_act", "relu2"),
        derive=rotary,
    ),
    "apertus": Family(
        sizes=LLAMA_SIZES,
        facts=_QUIET_MLP | _PLAIN_MLP | {"qk_norm": True},
        optional=LLAMA_OPTIONAL | _ATTENTION_BIAS | norms_by("rms_norm_eps", 1e-5),
        needed=("rope_scaling",),
        activation=("hidden_act", "xielu"),
        alike={"xielu": "squared-relu"},
        derive=partial(rotary, base=12e6),
        left_out=lambda config: ("xIELU, whose two learned factors a block are not counted",),
    ),
    "helium": Family(
        sizes=LLAMA_SIZES,
        facts=_BIASED_BY_CONFIG | {"attention_output_bias": False},
        optional=LLAMA_OPTIONAL | _BIASES | norms_by("rms_norm_eps", 1e-8) | {"head_dim": ("head_dim", 128)},
        derive=partial(rotary, base=100_000.0),
    ),
    "ministral": Family(
        sizes=LLAMA_SIZES,
        facts=LLAMA_FACTS,
        optional=LLAMA_OPTIONAL,
        derive=combined(partial(windows, default=4096), rotary),
    ),
    "bitnet": Family(
        sizes=LLAMA_SIZES,
        facts=_QUIET_MLP,
        optional=LLAMA_OPTIONAL | _ATTENTION_BIAS | norms_by("rms_norm_eps", 1e-5),
        activation=("hidden_act", "relu2"),
        derive=partial(rotary, base=500_000.0),
        left_out=_bitnet_left_out,
    ),
    "olmo": Family(
        sizes=LLAMA_SIZES,
        facts=_QUIET_MLP | {"norm": "layernorm", "norm_bias": False},
        optional=without(LLAMA_OPTIONAL, "head_dim", "norm_epsilon") | _ATTENTION_BIAS,
        derive=rotary,
        left_out=lambda config: ("norms without gains", *clipped(config)),
    ),
    "exaone4": Family(
        sizes=LLAMA_SIZES,
        facts=LLAMA_FACTS | {"norm_placement": "after", "qk_norm": True},
        optional=LLAMA_OPTIONAL | norms_by("rms_norm_eps", 1e-5),
        derive=_exaone4,
    ),
    "vaultgemma": replace(LLAMA_FAMILIES["gemma2"], facts=_QUIET_MLP),
    "qwen2_5_vl_text": LLAMA_FAMILIES["qwen2"],
    "qwen3_vl_text": LLAMA_FAMILIES["qwen3"],
    "glm4v_text": LLAMA_FAMILIES["glm4"],
}
"""`model_type` → family."""
