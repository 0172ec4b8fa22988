"""Megatron Core's words for the shape of a transformer: every field of the model, or why it has none.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/transformer/transformer_config.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cost_models.specs.blocks import Rotary
from planner.formats.words import NOTHING, Asked, Translate, Word, lacks, otherwise, says


def nothing(asked: Asked) -> Word:
    """For fields that say nothing of a run, or that another field says."""
    return NOTHING


def _only(name: str, value: Any, why: str) -> Translate:
    """For a field that must have one value."""
    return lambda asked: NOTHING if getattr(asked.model, name) == value else lacks(why)


def _of_experts(word: Callable[[Asked], Word]) -> Translate:
    """For a field that only mixtures have."""
    return lambda asked: word(asked) if asked.model.has_experts else NOTHING


def _kv_heads(asked: Asked) -> Word:
    model = asked.model
    if model.num_kv_heads == model.num_heads or model.latent_attention is not None:
        return NOTHING
    return says(group_query_attention=True, num_query_groups=model.num_kv_heads)


def _head_dim(asked: Asked) -> Word:
    return NOTHING if asked.model.latent_attention is not None else says(kv_channels=asked.model.head_dim)


def _activation(asked: Asked) -> Word:
    match asked.model.gated_mlp, asked.model.activation:
        case True, "silu":
            return says(swiglu=True)
        case False, "squared-relu":
            return says(squared_relu=True)
        case False, "gelu":
            return NOTHING
        case False, "gelu-tanh":
            return otherwise("its fused GELU is the one by tanh", bias_gelu_fusion=True)
        case gated, name:
            return lacks(f"it has no setting for {'a gated ' if gated else ''}{name}")


def _norm(asked: Asked) -> Word:
    return says(normalization={"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[asked.model.norm])


def _norm_bias(asked: Asked) -> Word:
    plain = asked.model.norm == "rmsnorm" or asked.model.norm_bias
    return NOTHING if plain else lacks("its layer norms have biases")


def _positions(asked: Asked) -> Word:
    words = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}
    if asked.model.positions not in words:
        return lacks("it has no such positions")
    return says(position_embedding_type=words[asked.model.positions])


def _max_positions(asked: Asked) -> Word:
    longest = max(asked.model.max_positions, asked.training.sequence_length)
    return says(max_position_embeddings=longest)


def _tied(asked: Asked) -> Word:
    return NOTHING if asked.model.tied_embeddings else says(untie_embeddings_and_output_weights=True)


def _attention_bias(asked: Asked) -> Word:
    if asked.model.attention_bias or not asked.model.mlp_bias:
        return says(add_qkv_bias=True) if asked.model.attention_bias else NOTHING
    return lacks("biases of the MLP come with those of queries, keys and values")


def _output_bias(asked: Asked) -> Word:
    if asked.model.attention_output_bias == asked.model.mlp_bias:
        return NOTHING
    return lacks("attention's output has a bias where the MLP has")


def _mlp_bias(asked: Asked) -> Word:
    return NOTHING if asked.model.mlp_bias else says(add_bias_linear=False)


def _qk_norm(asked: Asked) -> Word:
    return says(qk_layernorm=True) if asked.model.qk_norm else NOTHING


def _qk_norm_over(asked: Asked) -> Word:
    plain = not asked.model.qk_norm or asked.model.qk_norm_over == "head"
    return NOTHING if plain else lacks("its norm is over each head")


def _sinks(asked: Asked) -> Word:
    return says(softmax_type="learnable") if asked.model.attention_sinks else NOTHING


def _rotary(asked: Asked) -> Word:
    if asked.model.positions != "rotary":
        return NOTHING
    rotary = asked.model.rotary or Rotary()
    if rotary.windowed_base not in (None, rotary.base):
        return lacks("it has one rotary base for all blocks")
    settings: dict[str, Any] = {"rotary_base": int(rotary.base)}
    if rotary.dim is not None and asked.model.latent_attention is None:
        settings["rotary_percent"] = rotary.dim / asked.model.head_dim
    if rotary.pattern and not all(rotary.pattern):
        layers = range(asked.model.num_layers)
        settings["no_rope_freq"] = [int(not rotary.pattern[at % len(rotary.pattern)]) for at in layers]
    if rotary.scaling is None:
        return says(**settings)
    if rotary.scaling.kind == "llama3":
        return says(**settings, use_rope_scaling=True, rope_scaling_factor=rotary.scaling.factor)
    if rotary.scaling.factor != int(rotary.scaling.factor):
        return lacks("it divides frequencies by whole numbers")
    return says(**settings, rotary_seq_len_interpolation_factor=int(rotary.scaling.factor))


def _window(asked: Asked) -> Word:
    window = asked.model.attention_window
    return NOTHING if window is None else says(window_size=(window - 1, 0))


def _window_pattern(asked: Asked) -> Word:
    model = asked.model
    if model.attention_window is None or not model.window_pattern:
        return NOTHING
    layers = range(model.num_layers)
    return says(window_attn_skip_freq=[int(model.window_of(layer) is not None) for layer in layers])


def _moe_layers(asked: Asked) -> Word:
    model = asked.model
    if model.num_moe_layers == model.num_layers:
        return NOTHING
    of = set(model.moe_layers) or set(range(model.num_layers - model.num_moe_layers, model.num_layers))
    return says(moe_layer_freq=[int(layer in of) for layer in range(model.num_layers)])


def _groups(asked: Asked) -> Word:
    groups = asked.model.expert_groups
    if groups is None:
        return NOTHING
    if groups.scored_by != "two best":
        return lacks("it scores a group by its two best experts")
    return says(moe_router_num_groups=groups.count, moe_router_group_topk=groups.per_token)


def _routing_scale(asked: Asked) -> Word:
    scale = asked.model.routing_scale
    return NOTHING if scale == 1 else says(moe_router_topk_scaling_factor=scale)


def _shared(asked: Asked) -> Word:
    width = asked.model.shared_expert_ffn_hidden_size
    return says(moe_shared_expert_intermediate_size=width) if width else NOTHING


def _shared_gate(asked: Asked) -> Word:
    return says(moe_shared_expert_gate=True) if asked.model.shared_expert_gate else NOTHING


def _balance(asked: Asked) -> Word:
    if not asked.model.load_balance:
        return says(moe_router_load_balancing_type="none")
    return says(moe_router_load_balancing_type="aux_loss", moe_aux_loss_coeff=asked.model.load_balance)


def _latent(asked: Asked) -> Word:
    latent = asked.model.latent_attention
    if latent is None:
        return NOTHING
    settings: dict[str, Any] = {} if latent.query_rank is None else {"q_lora_rank": latent.query_rank}
    return says(
        multi_latent_attention=True,
        kv_lora_rank=latent.kv_rank,
        qk_head_dim=asked.model.head_dim - latent.position_dim,
        qk_pos_emb_head_dim=latent.position_dim,
        v_head_dim=latent.value_dim,
        **settings,
    )


def _further(asked: Asked) -> Word:
    return says(mtp_num_layers=asked.model.further_tokens) if asked.model.further_tokens else NOTHING


def _left_out(asked: Asked) -> Word:
    what = asked.model.left_out
    return lacks(f"nobody read how: {', '.join(what)}") if what else NOTHING


MODEL: Mapping[str, Translate] = {
    "kind": nothing,
    "name": nothing,
    "source": nothing,
    "changed": nothing,  # the other fields say what
    "num_layers": lambda asked: says(num_layers=asked.model.num_layers),
    "hidden_size": lambda asked: says(hidden_size=asked.model.hidden_size),
    "num_heads": lambda asked: says(num_attention_heads=asked.model.num_heads),
    "num_kv_heads": _kv_heads,
    "head_dim": _head_dim,
    "ffn_hidden_size": lambda asked: says(ffn_hidden_size=asked.model.ffn_hidden_size),
    "vocab_size": lambda asked: says(vocab_size=asked.model.vocab_size),
    "gated_mlp": nothing,  # said with `activation`
    "activation": _activation,
    "norm": _norm,
    "norm_placement": _only("norm_placement", "before", "its norms lie before attention and MLP"),
    "norm_bias": _norm_bias,
    "norm_epsilon": lambda asked: says(layernorm_epsilon=asked.model.norm_epsilon),
    "embedding_norm": _only("embedding_norm", False, "no norm follows its embedding"),
    "positions": _positions,
    "max_positions": _max_positions,
    "tied_embeddings": _tied,
    "head_bias": _only("head_bias", False, "its head has no bias"),
    "embedding_scale": _only("embedding_scale", 1.0, "it does not scale embeddings"),
    "logit_scale": _only("logit_scale", 1.0, "it does not scale logits"),
    "attention_bias": _attention_bias,
    "attention_output_bias": _output_bias,
    "mlp_bias": _mlp_bias,
    "qk_norm": _qk_norm,
    "qk_norm_over": _qk_norm_over,
    "attention_sinks": _sinks,
    "attention_scale": _only("attention_scale", None, "it scales scores by 1/√head_dim"),
    "rotary": _rotary,
    "parallel_block": _only("parallel_block", False, "its attention and MLP follow one another"),
    "parallel_norms": nothing,  # a part of parallel blocks
    "attention_window": _window,
    "window_kind": lambda asked: (
        NOTHING
        if asked.model.attention_window is None or asked.model.window_kind == "sliding"
        else lacks("its windows slide")
    ),
    "window_pattern": _window_pattern,
    "num_experts": _of_experts(lambda asked: says(num_experts=asked.model.num_experts)),
    "experts_per_token": _of_experts(lambda asked: says(moe_router_topk=asked.model.experts_per_token)),
    "moe_ffn_hidden_size": _of_experts(
        lambda asked: says(moe_ffn_hidden_size=asked.model.moe_ffn_hidden_size)
    ),
    "shared_expert_ffn_hidden_size": _of_experts(_shared),
    "num_moe_layers": _of_experts(_moe_layers),
    "moe_layers": nothing,  # said with their number
    "router_bias": _only("router_bias", False, "its router has no bias"),
    "expert_groups": _of_experts(_groups),
    "router_scores": _of_experts(lambda asked: says(moe_router_score_function=asked.model.router_scores)),
    "normalized_routing": _of_experts(
        lambda asked: (
            NOTHING
            if asked.model.normalized_routing
            else says(moe_router_pre_softmax=True)
            if asked.model.router_scores == "softmax"
            else lacks("it scales the weights of sigmoid scores to sum to one")
        )
    ),
    "routing_scale": _of_experts(_routing_scale),
    "shared_expert_gate": _of_experts(_shared_gate),
    "load_balance": _of_experts(_balance),
    "latent_attention": _latent,
    "further_tokens": _further,
    "vocab_multiple": nothing,  # said with the stack's padding
    "left_out": _left_out,
}
