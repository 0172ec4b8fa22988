"""Small configs of every family that is read, with what tells its blocks apart."""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]

_SIZES: Config = {
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 128,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_WHOLE_HEADS = _SIZES | {"num_key_value_heads": 4}
_FALCON: Config = {
    "model_type": "falcon",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 128,
}
_NEW_FALCON = _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_EXPERTS: Config = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_TURNS = ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]
_QWEN_MOE = _SIZES | _EXPERTS | {"num_experts": 4}
_DEEPSEEK = (
    _WHOLE_HEADS
    | _EXPERTS
    | {
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    }
)
_GROUPS = {"n_group": 4, "topk_group": 2, "q_lora_rank": 24}


def _of(model_type: str, sizes: Config = _SIZES, **more: Any) -> Config:
    return sizes | {"model_type": model_type} | more


CASES: dict[str, Config] = {
    "llama": _of("llama"),
    "llama, biased, llama3 scaling": _of(
        "llama", attention_bias=True, rope_theta=500.0, rope_scaling=_LLAMA3
    ),
    "mistral": _of("mistral", sliding_window=5),
    "phi3": _of("phi3", sliding_window=7, partial_rotary_factor=0.5),
    "qwen2": _of("qwen2", sliding_window=5, use_sliding_window=True, max_window_layers=2),
    "qwen3": _of("qwen3", head_dim=24),
    "smollm3": _of("smollm3"),
    "smollm3, windows": _of("smollm3", use_sliding_window=True, sliding_window=6),
    "gemma": _of("gemma", num_key_value_heads=1, head_dim=32),
    "gemma2, no caps": _of(
        "gemma2",
        head_dim=32,
        query_pre_attn_scalar=10,
        sliding_window=5,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    ),
    "gemma3": _of(
        "gemma3_text",
        head_dim=32,
        query_pre_attn_scalar=20,
        sliding_window=5,
        sliding_window_pattern=3,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    ),
    "olmo2": _of("olmo2"),
    "olmo3": _of("olmo3", sliding_window=5),
    "glm": _of("glm", head_dim=16),
    "glm4": _of("glm4", head_dim=16, attention_bias=False),
    "gptj": {
        "model_type": "gptj",
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
        "rotary_dim": 8,
        "vocab_size": 128,
    },
    "gpt_neox": _of("gpt_neox", _WHOLE_HEADS, rotary_pct=0.5),
    "gpt_neox, in sequence": _of(
        "gpt_neox", _WHOLE_HEADS, use_parallel_residual=False, rotary_pct=0.25, rotary_emb_base=500
    ),
    "phi": _of("phi"),
    "falcon, 7B": _FALCON,
    "falcon, 40B": _NEW_FALCON | {"bias": True},
    "falcon, 11B": _NEW_FALCON | {"num_ln_in_parallel_attn": 1, "ffn_hidden_size": 96},
    "falcon, in sequence": _FALCON | {"multi_query": False, "parallel_attn": False},
    "cohere": _of("cohere"),
    "cohere2": _of("cohere2", sliding_window=5),
    "stablelm": _of("stablelm", use_qkv_bias=True),
    "stablelm, parallel": _of("stablelm", use_parallel_residual=True),
    "starcoder2": _of("starcoder2", sliding_window=5),
    "bloom": {
        "model_type": "bloom",
        "hidden_size": 64,
        "n_layer": 3,
        "n_head": 4,
        "vocab_size": 128,
        "seq_length": 64,
    },
    "qwen2_moe": _of(
        "qwen2_moe", _QWEN_MOE, shared_expert_intermediate_size=40, norm_topk_prob=False, mlp_only_layers=[2]
    ),
    "qwen3_moe": _of("qwen3_moe", _QWEN_MOE, head_dim=16, norm_topk_prob=True, decoder_sparse_step=2),
    "glm4_moe": _of(
        "glm4_moe",
        _SIZES | _EXPERTS,
        head_dim=16,
        n_routed_experts=4,
        n_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=2.5,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "deepseek_v2, greedy": _of(
        "deepseek_v2", _DEEPSEEK, q_lora_rank=None, topk_method="greedy", n_group=1, topk_group=1
    ),
    "deepseek_v2, groups": _of(
        "deepseek_v2", _DEEPSEEK | _GROUPS, topk_method="group_limited_greedy", routed_scaling_factor=16.0
    ),
    "deepseek_v3": _of("deepseek_v3", _DEEPSEEK | _GROUPS, routed_scaling_factor=2.5, norm_topk_prob=True),
    "granite, plain residuals": _of(
        "granite",
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        logits_scaling=4.0,
        residual_multiplier=1.0,
    ),
    "seed_oss": _of("seed_oss", head_dim=16),
    "ernie4_5": _of("ernie4_5", head_dim=16, use_bias=True),
    "nemotron": _of("nemotron", partial_rotary_factor=0.5),
    "arcee": _of("arcee", mlp_bias=True),
    "helium": _of("helium", head_dim=16),
    "ministral": _of("ministral", head_dim=16, sliding_window=5, layer_types=_TURNS),
    "exaone4": _of("exaone4", sliding_window=5, sliding_window_pattern=4, layer_types=_TURNS[::-1]),
    "vaultgemma, no caps": _of(
        "vaultgemma", head_dim=32, sliding_window=5, attn_logit_softcapping=None, final_logit_softcapping=None
    ),
    "olmoe": _of("olmoe", _SIZES | {"num_experts": 4, "num_experts_per_tok": 2}),
    "flex_olmo": _of("flex_olmo", _SIZES | {"num_experts": 4, "num_experts_per_tok": 2}, norm_topk_prob=True),
    "dots1": _of(
        "dots1",
        _SIZES | _EXPERTS,
        n_routed_experts=4,
        n_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        sliding_window=5,
        max_window_layers=2,
    ),
    "ernie4_5_moe": _of(
        "ernie4_5_moe",
        _SIZES,
        moe_num_experts=4,
        moe_k=2,
        moe_num_shared_experts=2,
        moe_intermediate_size=48,
        moe_layer_start_index=1,
        moe_layer_interval=1,
    ),
}
