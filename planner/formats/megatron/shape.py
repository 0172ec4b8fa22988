"""The model of Megatron-LM's arguments: what they say, and what `pretrain_gpt.py` does where they do not.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/transformer/transformer_config.py.
"""

from __future__ import annotations

from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.errors import InputError, Problem
from cost_models.specs.transformer import TransformerSpec
from planner.formats.megatron.arguments import Arguments

_POSITIONS = {"learned_absolute": "learned", "rope": "rotary", "none": "none"}
_GPT2_WORDS = 50_257
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings")


def shape_of(said: Arguments, padding: int, assumed: list[str], tokenizer: str | None) -> TransformerSpec:
    """The model; `padding` is the multiple, beside tp, to which the software stack pads the vocabulary by itself.

    Raises:
        InputError: arguments are missing, or say what no model is.
    """
    missing = [name for name in _NEEDED[:3] if not said.has(name)]
    if not said.has("seq_length"):
        missing.append("seq_length")
    vocab, multiple = _vocabulary(said, padding, assumed, tokenizer)
    if vocab is None:
        missing.append("vocab_size")
    if missing:
        problems = [Problem(f"`--{name.replace('_', '-')}`", "is missing") for name in missing]
        hint = '`--also "--vocab-size 128256"` says what the command leaves to tokenizers or checkpoints'
        raise InputError("the command does not say its whole model", problems=problems, hint=hint)
    fields = {
        "name": "imported",
        "num_layers": said.get("num_layers"),
        "hidden_size": said.get("hidden_size"),
        "num_heads": said.get("num_attention_heads"),
        "vocab_size": vocab,
        "vocab_multiple": multiple,
        "norm_epsilon": said.get("layernorm_epsilon", 1e-5),
        "tied_embeddings": not said.get("untie_embeddings_and_output_weights", False),
        "qk_norm": said.get("qk_layernorm", False),
        "attention_sinks": said.get("softmax_type") in ("learnable", "off-by-one"),
        "max_positions": said.get("max_position_embeddings", said.get("seq_length")),
        "further_tokens": said.get("mtp_num_layers", 0),
        "source": "arguments of pretrain_gpt.py",
        **_mlp(said),
        **_norm(said),
        **_positions(said),
        **_attention(said),
        **_windows(said),
        **_experts(said),
    }
    return TransformerSpec(**fields)


def _vocabulary(
    said: Arguments, padding: int, assumed: list[str], tokenizer: str | None
) -> tuple[int | None, int]:
    if (padded := said.get("padded_vocab_size")) is not None:
        return padded, 1
    words = said.get("vocab_size")
    if words is None and tokenizer == "GPT2BPETokenizer":
        assumed.append(f"{_GPT2_WORDS:,} words, those of GPT-2's tokenizer")
        words = _GPT2_WORDS
    multiple = said.get("make_vocab_size_divisible_by", padding)
    is_whole = words is not None and multiple == padding and not words % padding
    return words, 1 if is_whole else multiple


def _mlp(said: Arguments) -> dict[str, Any]:
    gated = said.get("swiglu", False)
    hidden = said.get("hidden_size") or 0
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    biases = said.get("add_bias_linear", True)
    plain = "gelu-tanh" if said.get("bias_gelu_fusion") else "gelu"
    return {
        "ffn_hidden_size": said.get("ffn_hidden_size", usual),
        "gated_mlp": gated,
        "activation": "silu" if gated else "squared-relu" if said.get("squared_relu") else plain,
        "mlp_bias": biases,
        "attention_output_bias": biases,
        "attention_bias": biases or said.get("add_qkv_bias", False),
    }


def _norm(said: Arguments) -> dict[str, Any]:
    name = said.get("normalization", "LayerNorm")
    if name not in ("LayerNorm", "RMSNorm"):
        raise InputError(f"`--normalization {name}` is not known here")
    return {"norm": name.lower()}


def _positions(said: Arguments) -> dict[str, Any]:
    kind = said.get("position_embedding_type", "learned_absolute")
    if said.get("use_rotary_position_embeddings"):
        kind = "rope"
    if said.get("position_embedding") is False and kind == "learned_absolute":
        kind = "none"
    if kind not in _POSITIONS:
        raise InputError(f"`--position-embedding-type {kind}` is not known here")
    if kind != "rope":
        return {"positions": _POSITIONS[kind]}
    rotary: dict[str, Any] = {}
    if (base := said.get("rotary_base", 10_000)) != 10_000:
        rotary["base"] = float(base)
    if (share := said.get("rotary_percent", 1.0)) != 1.0 and not said.get("multi_latent_attention"):
        rotary["dim"] = round(_head(said) * share)
    if (skipped := said.get("no_rope_freq")) is not None:
        rotary["pattern"] = tuple(not one for one in _layers(said, skipped, last=True))
    if said.get("use_rope_scaling"):
        rotary["scaling"] = {"kind": "llama3", "factor": said.get("rope_scaling_factor", 8.0)}
    elif (factor := said.get("rotary_seq_len_interpolation_factor")) is not None:
        rotary["scaling"] = {"kind": "linear", "factor": float(factor)}
    return {"positions": "rotary", **({"rotary": rotary} if rotary else {})}


def _head(said: Arguments) -> int:
    usual = (said.get("hidden_size") or 0) // max(1, said.get("num_attention_heads") or 1)
    return int(said.get("kv_channels", usual))


def _attention(said: Arguments) -> dict[str, Any]:
    if said.get("multi_latent_attention"):
        position, key = said.get("qk_pos_emb_head_dim", 64), said.get("qk_head_dim", 128)
        latent: dict[str, Any] = {
            "kv_rank": said.get("kv_lora_rank", 512),
            "position_dim": position,
            "value_dim": said.get("v_head_dim", 128),
        }
        if said.has("q_lora_rank"):
            latent["query_rank"] = said.get("q_lora_rank")
        return {"latent_attention": latent, "head_dim": key + position}
    fields = {"head_dim": said.get("kv_channels")} if said.has("kv_channels") else {}
    if said.get("group_query_attention"):
        fields["num_kv_heads"] = said.get("num_query_groups", 1)
    return fields


def _windows(said: Arguments) -> dict[str, Any]:
    if (window := said.get("window_size")) is None:
        return {}
    fields: dict[str, Any] = {"attention_window": (window[0] if isinstance(window, tuple) else window) + 1}
    if (pattern := said.get("window_attn_skip_freq")) is not None:
        kinds = _layers(said, pattern, last=True)
        if isinstance(pattern, int):
            kinds = tuple(1 - one for one in kinds)  # every so-manieth block attends to all
        fields["window_pattern"] = tuple("window" if one else "full" for one in kinds)
    return fields


def _layers(said: Arguments, pattern: Any, *, last: bool) -> tuple[int, ...]:
    """A pattern of 0 and 1 over all blocks; of a number, every so-manieth, the last of each round or the first."""
    count = said.get("num_layers") or 0
    if count > MAX_LAYERS:
        raise InputError(f"`--num-layers {count}` are more blocks than any model has")
    if isinstance(pattern, int):
        every = max(1, pattern)
        return tuple(int((at + 1) % every == 0 if last else at % every == 0) for at in range(count))
    if len(pattern) != count:
        raise InputError(f"a pattern of {len(pattern)} blocks for `--num-layers {count}`")
    return tuple(pattern)


def _experts(said: Arguments) -> dict[str, Any]:
    if not said.get("num_experts"):
        return {}
    mixtures = _layers(said, said.get("moe_layer_freq", 1), last=False)
    of = tuple(at for at, one in enumerate(mixtures) if one)
    fields: dict[str, Any] = {
        "num_experts": said.get("num_experts"),
        "experts_per_token": said.get("moe_router_topk", 2),
        "moe_ffn_hidden_size": said.get("moe_ffn_hidden_size", _mlp(said)["ffn_hidden_size"]),
        "shared_expert_ffn_hidden_size": said.get("moe_shared_expert_intermediate_size", 0),
        "num_moe_layers": len(of),
        "router_scores": said.get("moe_router_score_function", "softmax"),
        "normalized_routing": not said.get("moe_router_pre_softmax", False),
        "routing_scale": said.get("moe_router_topk_scaling_factor", 1.0),
        "shared_expert_gate": said.get("moe_shared_expert_gate", False),
        "load_balance": _load_balance(said),
    }
    if of != tuple(range(len(mixtures) - len(of), len(mixtures))):
        fields["moe_layers"] = of
    if said.has("moe_router_num_groups"):
        fields["expert_groups"] = {
            "count": said.get("moe_router_num_groups"),
            "per_token": said.get("moe_router_group_topk", 1),
            "scored_by": "two best",
        }
    return fields


def _load_balance(said: Arguments) -> float:
    if said.get("moe_router_load_balancing_type", ("aux_loss",))[0] != "aux_loss":
        return 0.0
    text = said.get("moe_aux_loss_coeff", ("0",))[0]
    try:
        return float(text)
    except ValueError:
        raise InputError(f"`--moe-aux-loss-coeff {text}` is no number") from None
