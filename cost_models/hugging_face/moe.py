"""MoE families: what each Hugging Face `model_type` calls its experts and its latents.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from functools import partial

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
from cost_models.hugging_face.mixtures import (
    after_the_first,
    blocks,
    every_block,
    every_so_many,
    groups,
    mixtures,
    routing,
)
from cost_models.hugging_face.rotary import rotary
from cost_models.hugging_face.windows import Derived, every, last_blocks, windows


def _deepseek(config: Config) -> Derived:
    """DeepSeek attention: a head has two parts, and everything comes out of latents."""
    position = whole_number(config, "qk_rope_head_dim", 0)
    third = config.get("model_type") != "deepseek_v2"
    latent = {
        "kv_rank": config.get("kv_lora_rank"),
        "query_rank": config.get("q_lora_rank"),
        "position_dim": config.get("qk_rope_head_dim"),
        "value_dim": config.get("v_head_dim"),
    }
    return {
        "head_dim": ("qk_nope_head_dim", whole_number(config, "qk_nope_head_dim", 0) + position),
        "latent_attention": ("kv_lora_rank", latent),
        "router_scores": ("scoring_func", config.get("scoring_func", "sigmoid" if third else "softmax")),
        **groups(config, scored_by="two best" if third else "best"),
        **routing(config, normalized=third),
    }


def _llama4(config: Config) -> Derived:
    """Llama 4: dense blocks have a width of their own; blocks without a window have no rotary positions."""
    layers, step = blocks(config), max(1, whole_number(config, "interleave_moe_layer_step", 1))
    written, interval = config.get("moe_layers"), max(1, whole_number(config, "no_rope_layer_interval", 4))
    chosen = written if isinstance(written, list) else range(step - 1, layers, step)
    listed = config.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(layers)]
    turned = [bool(one) for one in listed] if isinstance(listed, list) else []
    pattern = ["window" if one else "full" for one in turned]
    return {
        **mixtures("interleave_moe_layer_step", layers, (one for one in chosen if isinstance(one, int))),
        **windows(config, key="attention_chunk_size", default=8192, pattern=pattern),
        **rotary(config, base=500_000.0, pattern=turned),
        "load_balance": ("router_aux_loss_coef", config.get("router_aux_loss_coef", 0.001)),
        "shared_expert_ffn_hidden_size": ("intermediate_size", config.get("intermediate_size")),
    }


def _llama4_left_out(config: Config) -> tuple[str, ...]:
    return (
        "router weights that multiply what experts read",
        *(("norms of queries and keys without gains",) if config.get("use_qk_norm", True) else ()),
        *(("attention temperature",) if config.get("attn_temperature_tuning", True) else ()),
    )


_CHOSEN = {"experts_per_token": "num_experts_per_tok"}
_OF_N_ROUTED = _CHOSEN | {"num_experts": "n_routed_experts", "moe_ffn_hidden_size": "moe_intermediate_size"}
_AS_MANY_LEFT_OUT = (
    "the router's bias, which balances without a loss, and blocks that predict further tokens left out"
)


def _latent_family(epsilon: float) -> Family:
    return Family(
        sizes=LLAMA_SIZES | _OF_N_ROUTED,
        needed=("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        told=("num_key_value_heads", "num_nextn_predict_layers"),
        facts=LLAMA_FACTS,
        optional=without(LLAMA_OPTIONAL, "num_kv_heads", "head_dim") | norms_by("rms_norm_eps", epsilon),
        derive=combined(after_the_first, _deepseek, rotary),
        refuse=lambda config: (
            "its latents have biases (`attention_bias`)" if config.get("attention_bias") else None
        ),
        simplify=lambda config: None if config["model_type"] == "deepseek_v2" else _AS_MANY_LEFT_OUT,
    )


_BIASED_BY_CONFIG = without(LLAMA_FACTS, "attention_bias", "attention_output_bias")

MIXTURE_FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        sizes=LLAMA_SIZES | _CHOSEN | {"num_experts": "num_local_experts"},
        facts=LLAMA_FACTS,
        optional=LLAMA_OPTIONAL | norms_by("rms_norm_eps", 1e-5),
        derive=combined(partial(routing, normalized=True), windows, partial(rotary, base=1e6)),
    ),
    "qwen2_moe": Family(
        sizes=LLAMA_SIZES
        | _CHOSEN
        | {
            "num_experts": "num_experts",
            "moe_ffn_hidden_size": "moe_intermediate_size",
            "shared_expert_ffn_hidden_size": "shared_expert_intermediate_size",
        },
        facts=LLAMA_FACTS | {"attention_bias": True, "shared_expert_gate": True},
        optional=LLAMA_OPTIONAL,
        derive=combined(every_so_many, last_blocks, rotary),
    ),
    "qwen3_moe": Family(
        sizes=LLAMA_SIZES
        | _CHOSEN
        | {"num_experts": "num_experts", "moe_ffn_hidden_size": "moe_intermediate_size"},
        told=("max_window_layers",),
        facts=_BIASED_BY_CONFIG | {"qk_norm": True},
        optional=LLAMA_OPTIONAL
        | {"head_dim": ("head_dim", 128), "attention_bias": ("attention_bias", False)},
        derive=combined(every_so_many, every_block, rotary),
    ),
    "glm4_moe": Family(
        sizes=LLAMA_SIZES | _OF_N_ROUTED,
        told=("num_nextn_predict_layers",),
        facts=without(LLAMA_FACTS, "attention_bias") | {"router_scores": "sigmoid"},
        optional=LLAMA_OPTIONAL
        | norms_by("rms_norm_eps", 1e-5)
        | {"attention_bias": ("attention_bias", False), "qk_norm": ("use_qk_norm", False)},
        derive=combined(
            after_the_first,
            partial(routing, normalized=True),
            partial(groups, scored_by="two best"),
            partial(rotary, part=("partial_rotary_factor", 0.5)),
        ),
        simplify=lambda config: _AS_MANY_LEFT_OUT,
    ),
    "gpt_oss": Family(
        sizes=LLAMA_SIZES
        | _CHOSEN
        | {"num_experts": "num_local_experts", "moe_ffn_hidden_size": "intermediate_size"},
        told=("experts_per_token", "swiglu_limit"),
        facts=_BIASED_BY_CONFIG | {"mlp_bias": True, "router_bias": True, "attention_sinks": True},
        optional=LLAMA_OPTIONAL
        | norms_by("rms_norm_eps", 1e-5)
        | {
            "head_dim": ("head_dim", 64),
            "attention_bias": ("attention_bias", True),
            "load_balance": ("router_aux_loss_coef", 0.9),
        },
        derive=combined(
            partial(windows, default=128, pattern=every(2)),
            partial(rotary, base=150_000.0),
        ),
        left_out=lambda config: ("clamped expert gates",),
    ),
    "llama4_text": Family(
        sizes=without(LLAMA_SIZES, "ffn_hidden_size")
        | _CHOSEN
        | {
            "ffn_hidden_size": "intermediate_size_mlp",
            "moe_ffn_hidden_size": "intermediate_size",
            "num_experts": "num_local_experts",
        },
        told=("attn_scale", "floor_scale"),
        facts=_BIASED_BY_CONFIG | {"router_scores": "sigmoid", "normalized_routing": False},
        optional=LLAMA_OPTIONAL
        | norms_by("rms_norm_eps", 1e-5)
        | {"head_dim": ("head_dim", 128), "attention_bias": ("attention_bias", False)},
        derive=_llama4,
        left_out=_llama4_left_out,
    ),
    "deepseek_v2": _latent_family(1e-6),
    "deepseek_v3": _latent_family(1e-6),
    "kimi_k2": _latent_family(1e-6),
}
"""`model_type` → family."""
