"""MoE families of 2024 and 2025 beside those of Mixtral, Qwen, DeepSeek and Llama.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from functools import partial
from typing import Any

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
from cost_models.hugging_face.mixtures import after_the_first, blocks, groups, mixtures, routing
from cost_models.hugging_face.moe import MIXTURE_FAMILIES
from cost_models.hugging_face.newer import clipped, multiplied, scaled_residuals
from cost_models.hugging_face.rotary import rotary
from cost_models.hugging_face.windows import Derived, last_blocks, windows

_BIASED_BY_CONFIG = without(LLAMA_FACTS, "attention_bias", "attention_output_bias")
_ATTENTION_BIAS = {"attention_bias": ("attention_bias", False)}
_CHOSEN = {"experts_per_token": "num_experts_per_tok"}
_LOCAL = LLAMA_SIZES | _CHOSEN | {"num_experts": "num_local_experts"}
_BALANCED_BY_BIAS = "the router's bias, which balances without a loss, left out"


def _shared_granite(config: Config) -> Derived:
    return {
        "shared_expert_ffn_hidden_size": (
            "shared_intermediate_size",
            config.get("shared_intermediate_size", 0),
        )
    }


def _ernie(config: Config) -> Derived:
    """ERNIE 4.5: experts from one block to another, in turns; shared ones are as wide as routed ones."""
    layers, first = blocks(config), whole_number(config, "moe_layer_start_index", 1)
    last, step = config.get("moe_layer_end_index", -1), max(1, whole_number(config, "moe_layer_interval", 1))
    end = layers - 1 if not isinstance(last, int) or last < 0 else last
    chosen = [index for index in range(first, min(end, layers - 1) + 1) if (index + 1) % step == 0]
    width, shared = (
        whole_number(config, key, 0) for key in ("moe_intermediate_size", "moe_num_shared_experts")
    )
    return {
        **mixtures("moe_layer_start_index", layers, chosen),
        "load_balance": ("router_aux_loss_coef", config.get("router_aux_loss_coef", 0.001)),
        "shared_expert_ffn_hidden_size": ("moe_num_shared_experts", shared * width),
        "head_bias": ("use_bias", config.get("use_bias", False)),
    }


def _hunyuan(config: Config) -> Derived:
    """Hunyuan: one shared expert as wide as the routed ones; counts may be listed block by block."""
    return {
        "num_experts": ("num_experts", _one(config, "num_experts")),
        "experts_per_token": ("moe_topk", _one(config, "moe_topk")),
        "shared_expert_ffn_hidden_size": ("intermediate_size", config.get("intermediate_size")),
    }


def _one(config: Config, key: str) -> Any:
    """A count, or that of every block."""
    written = config.get(key)
    return written[0] if isinstance(written, list) and written else written


def _hunyuan_refusal(config: Config) -> str | None:
    for key in ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"):
        written = config.get(key)
        if isinstance(written, list) and any(one != written[0] for one in written):
            return f"its blocks differ in `{key}`"
    if _one(config, "num_shared_expert") not in (None, 1):
        return "it has several shared experts (`num_shared_expert`)"
    if _one(config, "moe_intermediate_size") not in (None, config.get("intermediate_size")):
        return "its experts are not as wide as `intermediate_size`"
    return None


def _windows_of_dots(config: Config) -> Derived:
    """dots.llm1: windows from `max_window_layers` on, without a switch."""
    return last_blocks({**config, "use_sliding_window": True}) if config.get("sliding_window", 4096) else {}


NEWER_MIXTURES: dict[str, Family] = {
    "granitemoe": Family(
        sizes=_LOCAL,
        facts=_BIASED_BY_CONFIG,
        optional=LLAMA_OPTIONAL | _ATTENTION_BIAS,
        derive=combined(multiplied, partial(routing, normalized=True), rotary),
        left_out=scaled_residuals,
    ),
    "granitemoeshared": Family(
        sizes=_LOCAL,
        facts=_BIASED_BY_CONFIG,
        optional=LLAMA_OPTIONAL | _ATTENTION_BIAS,
        derive=combined(multiplied, partial(routing, normalized=True), _shared_granite, rotary),
        left_out=scaled_residuals,
    ),
    "olmoe": Family(
        sizes=LLAMA_SIZES | _CHOSEN | {"num_experts": "num_experts"},
        facts=_BIASED_BY_CONFIG | {"qk_norm": True, "qk_norm_over": "all"},
        optional=without(LLAMA_OPTIONAL, "head_dim") | _ATTENTION_BIAS | norms_by("rms_norm_eps", 1e-5),
        derive=combined(partial(routing, normalized=False), rotary),
        left_out=clipped,
    ),
    "flex_olmo": Family(
        sizes=LLAMA_SIZES | _CHOSEN | {"num_experts": "num_experts"},
        facts=_BIASED_BY_CONFIG | {"norm_placement": "after", "qk_norm": True, "qk_norm_over": "all"},
        optional=LLAMA_OPTIONAL | _ATTENTION_BIAS,
        derive=combined(partial(routing, normalized=False), partial(rotary, base=500_000.0)),
    ),
    "phimoe": Family(
        sizes=_LOCAL,
        told=("original_max_position_embeddings",),
        facts=_BIASED_BY_CONFIG | {"norm": "layernorm"},
        optional=without(LLAMA_OPTIONAL, "head_dim")
        | _ATTENTION_BIAS
        | norms_by("rms_norm_eps", 1e-5)
        | {"head_bias": ("lm_head_bias", False), "load_balance": ("router_aux_loss_coef", 0.001)},
        derive=combined(windows, partial(rotary, base=1e6)),
        left_out=lambda config: ("routers that choose experts one after the other (SparseMixer)",),
    ),
    "dots1": Family(
        sizes=LLAMA_SIZES
        | _CHOSEN
        | {"num_experts": "n_routed_experts", "moe_ffn_hidden_size": "moe_intermediate_size"},
        told=("max_window_layers",),
        facts=_BIASED_BY_CONFIG | {"qk_norm": True, "router_scores": "sigmoid"},
        optional=LLAMA_OPTIONAL | _ATTENTION_BIAS,
        derive=combined(
            after_the_first,
            partial(routing, normalized=False),
            partial(groups, scored_by="two best"),
            _windows_of_dots,
            rotary,
        ),
        simplify=lambda config: _BALANCED_BY_BIAS,
    ),
    "ernie4_5_moe": Family(
        sizes=LLAMA_SIZES
        | {
            "num_experts": "moe_num_experts",
            "experts_per_token": "moe_k",
            "moe_ffn_hidden_size": "moe_intermediate_size",
        },
        facts=without(LLAMA_FACTS, "attention_bias", "attention_output_bias", "mlp_bias"),
        optional=LLAMA_OPTIONAL
        | norms_by("rms_norm_eps", 1e-5)
        | {
            "attention_bias": ("use_bias", False),
            "mlp_bias": ("use_bias", False),
            "tied_embeddings": ("tie_word_embeddings", True),
        },
        derive=combined(_ernie, partial(rotary, base=500_000.0)),
        simplify=lambda config: _BALANCED_BY_BIAS,
    ),
    "hunyuan_v1_moe": Family(
        sizes=LLAMA_SIZES | {"num_experts": "num_experts", "experts_per_token": "moe_topk"},
        facts=_BIASED_BY_CONFIG | {"qk_norm": True},
        optional=LLAMA_OPTIONAL | _ATTENTION_BIAS | norms_by("rms_norm_eps", 1e-5),
        derive=combined(_hunyuan, rotary),
        refuse=_hunyuan_refusal,
        left_out=lambda config: ("norms of queries and keys behind their rotary positions",),
    ),
    "qwen3_vl_moe_text": MIXTURE_FAMILIES["qwen3_moe"],
    "glm4v_moe_text": MIXTURE_FAMILIES["glm4_moe"],
}
"""`model_type` → family."""
