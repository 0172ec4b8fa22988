"""Families of mixtures of experts: what each Hugging Face `model_type` calls its experts and its latents.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from cost_models.specs.config_rotary import rotary
from cost_models.specs.config_windows import Derived, last_blocks, windows
from cost_models.specs.families import (
    LLAMA_FACTS,
    LLAMA_OPTIONAL,
    LLAMA_SIZES,
    Config,
    Family,
    norms_by,
    together,
    whole,
    without,
)


def _routing(config: Config, *, normalized: bool) -> dict[str, tuple[str, Any]]:
    """How routers weigh and balance, where `transformers` reads it; `normalized` is what it assumes."""
    key = "aux_loss_alpha" if "aux_loss_alpha" in config else "router_aux_loss_coef"
    return {
        "normalized_routing": ("norm_topk_prob", config.get("norm_topk_prob", normalized)),
        "load_balance": (key, config.get(key, 0.001)),
    }


def _qwen_mixtures(config: Config) -> Derived:
    """Every `decoder_sparse_step`-th block has experts, but for those named `mlp_only_layers`."""
    step, layers = max(1, whole(config, "decoder_sparse_step", 1)), whole(config, "num_hidden_layers", 0)
    named = config.get("mlp_only_layers")
    dense = set(named) if isinstance(named, list) and all(isinstance(i, int) for i in named) else set()
    count = sum((index + 1) % step == 0 and index not in dense for index in range(min(layers, 100_000)))
    return {"num_moe_layers": ("decoder_sparse_step", count)} | _routing(config, normalized=False)


def _every_block(config: Config) -> Derived:
    """A window in all blocks or none, whatever `max_window_layers` says."""
    return windows(config, default=4096) if config.get("use_sliding_window") is True else {}


def _deepseek(config: Config) -> Derived:
    """The first blocks are dense; shared experts are as wide as routed ones; a head is its two parts together."""
    layers, first = whole(config, "num_hidden_layers", 0), whole(config, "first_k_dense_replace", 0)
    every = max(1, whole(config, "moe_layer_freq", 1))
    width, shared = whole(config, "moe_intermediate_size", 0), whole(config, "n_shared_experts", 0)
    position = whole(config, "qk_rope_head_dim", 0)
    third = config.get("model_type") == "deepseek_v3"
    latent = {
        "kv_rank": config.get("kv_lora_rank"),
        "query_rank": config.get("q_lora_rank"),
        "position_dim": config.get("qk_rope_head_dim"),
        "value_dim": config.get("v_head_dim"),
    }
    count = sum(index >= first and index % every == 0 for index in range(min(layers, 100_000)))
    return {
        "num_moe_layers": ("first_k_dense_replace", count),
        "shared_expert_ffn_hidden_size": ("n_shared_experts", shared * width),
        "head_dim": ("qk_nope_head_dim", whole(config, "qk_nope_head_dim", 0) + position),
        "latent_attention": ("kv_lora_rank", latent),
        "router_scores": ("scoring_func", config.get("scoring_func", "sigmoid" if third else "softmax")),
    } | _routing(config, normalized=third)


_CHOSEN = {"experts_per_token": "num_experts_per_tok"}
_DEEPSEEK = Family(
    sizes=LLAMA_SIZES
    | _CHOSEN
    | {"num_experts": "n_routed_experts", "moe_ffn_hidden_size": "moe_intermediate_size"},
    needed=("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    facts=LLAMA_FACTS,
    optional=without(LLAMA_OPTIONAL, "num_kv_heads", "head_dim"),
    derive=together(_deepseek, rotary),
    simplify=lambda config: (
        "the router's bias, groups and scale and blocks that predict further tokens left out"
    ),
)

MIXTURE_FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        sizes=LLAMA_SIZES | _CHOSEN | {"num_experts": "num_local_experts"},
        facts=LLAMA_FACTS,
        optional=LLAMA_OPTIONAL | norms_by("rms_norm_eps", 1e-5),
        derive=together(partial(_routing, normalized=True), windows, partial(rotary, base=1e6)),
    ),
    "qwen2_moe": Family(
        sizes=LLAMA_SIZES
        | _CHOSEN
        | {
            "num_experts": "num_experts",
            "moe_ffn_hidden_size": "moe_intermediate_size",
            "shared_expert_ffn_hidden_size": "shared_expert_intermediate_size",
        },
        facts=LLAMA_FACTS | {"attention_bias": True},
        optional=LLAMA_OPTIONAL,
        derive=together(_qwen_mixtures, last_blocks, rotary),
        simplify=lambda config: "the gate of the shared expert left out",
    ),
    "qwen3_moe": Family(
        sizes=LLAMA_SIZES
        | _CHOSEN
        | {"num_experts": "num_experts", "moe_ffn_hidden_size": "moe_intermediate_size"},
        facts=without(LLAMA_FACTS, "attention_bias", "attention_output_bias") | {"qk_norm": True},
        optional=LLAMA_OPTIONAL
        | {"head_dim": ("head_dim", 128), "attention_bias": ("attention_bias", False)},
        derive=together(_qwen_mixtures, _every_block, rotary),
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
}
"""`model_type` → family."""
