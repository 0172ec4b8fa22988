"""The shape of a transformer in Megatron Core's arguments, written and read: mixtures of experts, then all models.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/transformer/transformer_config.py, core/transformer/moe/router.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.errors import InputError, Problem
from cost_models.specs.transformer import Rotary, TransformerSpec
from planner.formats.exporter import JobExport
from planner.formats.megatron.arguments import TABLE, Arguments

_SCORED_BY = "two best"
"""How Megatron Core scores a group of experts."""


def _write_experts(export: JobExport) -> None:
    """Set Megatron Core's arguments for the fields of a mixture of experts that its table does not write."""
    model = export.job.model
    if model.num_moe_layers != model.num_layers:
        mixtures = model.moe_layers or range(model.num_layers - model.num_moe_layers, model.num_layers)
        pattern = [int(layer in mixtures) for layer in range(model.num_layers)]
        export.sets("model.num_moe_layers", moe_layer_freq=pattern)
    groups = model.expert_groups
    if groups is not None and groups.scored_by != _SCORED_BY:
        export.lacks("model.expert_groups", "it scores a group by its two best experts")
    elif groups is not None:
        settings = {"moe_router_num_groups": groups.count, "moe_router_group_topk": groups.per_token}
        export.sets("model.expert_groups", settings)
    if model.routing_bias and model.router_scores != "sigmoid":
        export.lacks("model.router_scores", "it balances experts by a bias beside sigmoid scores alone")
    else:  # with a balancing bias scores are fp32, as in DeepSeek-V3
        dtype = {"moe_router_dtype": "fp32"} if model.routing_bias else {}
        export.sets("model.router_scores", moe_router_score_function=model.router_scores, **dtype)
    if not model.normalized_routing and model.router_scores == "softmax":
        export.sets("model.normalized_routing", moe_router_pre_softmax=True)
    elif not model.normalized_routing:
        reason = "it scales the weights of sigmoid scores to sum to one"
        export.lacks("model.normalized_routing", reason)
    coefficient = {"moe_aux_loss_coeff": model.load_balance} if model.load_balance else {}
    kind = "aux_loss" if model.load_balance else "none"
    export.sets("model.load_balance", {"moe_router_load_balancing_type": kind, **coefficient})


def experts_of(args: Arguments, mixtures: tuple[int, ...], dense: int) -> dict[str, Any]:
    """Model fields of a mixture of experts, by Megatron-LM's arguments. `mixtures` marks the blocks with
    experts, `dense` is the MLP width of dense blocks.

    Raises:
        InputError: the load balance is no number.
    """
    of = tuple(at for at, one in enumerate(mixtures) if one)
    balances = args.get("moe_router_load_balancing_type")[0] == "aux_loss"
    coefficient = args.get("moe_aux_loss_coeff")[0] if balances else 0.0
    try:
        load_balance = float(coefficient)
    except ValueError:
        raise InputError(f"`--moe-aux-loss-coeff {coefficient}` is no number") from None
    fields: dict[str, Any] = {
        **TABLE.fields("model", args.get, mixtures=True),
        "moe_ffn_hidden_size": args.get("moe_ffn_hidden_size", dense),
        "num_moe_layers": len(of),
        "normalized_routing": not args.get("moe_router_pre_softmax"),
        "load_balance": load_balance,
    }
    if of != tuple(range(len(mixtures) - len(of), len(mixtures))):
        fields["moe_layers"] = of
    if args.has("moe_router_num_groups"):
        count, per_token = args.get("moe_router_num_groups"), args.get("moe_router_group_topk")
        fields["expert_groups"] = {"count": count, "per_token": per_token, "scored_by": _SCORED_BY}
    return fields


_GPT2_WORDS = 50_257
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


_LIMITS: Mapping[str, tuple[Any, ...]] = {
    "model.router_bias": ("its router has no bias", False),
    "model.norm_placement": ("its norms lie before attention and MLP", "before"),
    "model.embedding_norm": ("no norm follows its embedding", False),
    "model.head_bias": ("its head has no bias", False),
    "model.embedding_scale": ("it does not scale embeddings", 1.0),
    "model.residual_scale": ("it does not scale what blocks add", 1.0),
    "model.logit_scale": ("it does not scale logits", 1.0),
    "model.attention_scale": ("it scales scores by 1/√head_dim", None),
    "model.parallel_block": ("its attention and MLP follow one another", False),
}
"""Fields of models of which Megatron Core supports some values alone: the reason, and the values."""


def write_model(export: JobExport) -> None:
    """Set Megatron Core's arguments for the fields of the model that its table does not write."""
    model, latent = export.job.model, export.job.model.latent_attention
    export.supports(_LIMITS)
    if model.has_experts:
        _write_experts(export)
    match model.gated_mlp, model.activation:
        case True, "silu":
            export.sets("model.activation", swiglu=True)
        case False, "squared-relu":
            export.sets("model.activation", squared_relu=True)
        case False, "gelu-tanh":
            difference = "its fused GELU is the one by tanh"
            export.sets("model.activation", differs=difference, bias_gelu_fusion=True)
        case gated, name if gated or name != "gelu":
            export.lacks("model.activation", f"it has no setting for {'a gated ' if gated else ''}{name}")
    if model.norm != "rmsnorm" and not model.norm_bias:
        export.lacks("model.norm_bias", "its layer norms have biases")
    positions = TABLE.arguments["position_embedding_type"]
    choices = {kind: {positions.name: name} for kind, name in positions.values.items()}
    export.choose("model.positions", model.positions, choices, "it has no such positions")
    longest = max(model.max_positions, export.job.training.sequence_length)
    export.sets("model.max_positions", max_position_embeddings=longest)
    _write_rotary(export)
    if model.attention_bias:
        export.sets("model.attention_bias", add_qkv_bias=True)
    elif model.mlp_bias:
        reason = "biases of the MLP come with those of queries, keys and values"
        export.lacks("model.attention_bias", reason)
    if model.attention_output_bias != model.mlp_bias:
        export.lacks("model.attention_output_bias", "attention's output has a bias where the MLP has")
    if model.qk_norm and model.qk_norm_over != "head":
        export.lacks("model.qk_norm_over", "its norm is over each head")
    if model.attention_sinks:
        export.sets("model.attention_sinks", softmax_type="learnable")
    if model.attention_window is not None:
        if model.window_kind != "sliding":
            export.lacks("model.window_kind", "its windows slide")
        export.sets("model.attention_window", window_size=(model.attention_window - 1, 0))
        if model.window_pattern:
            windows = [int(model.window_of(layer) is not None) for layer in range(model.num_layers)]
            export.sets("model.window_pattern", window_attn_skip_freq=windows)
    if latent is None:
        export.sets("model.head_dim", kv_channels=model.head_dim)
        if model.num_kv_heads != model.num_heads:
            export.sets("model.num_kv_heads", group_query_attention=True, num_query_groups=model.num_kv_heads)
    else:
        settings: dict[str, Any] = {"multi_latent_attention": True}
        settings["qk_layernorm"] = True  # of latents, which all models with them have
        settings |= {"kv_lora_rank": latent.kv_rank, "qk_head_dim": model.head_dim - latent.position_dim}
        settings |= {"qk_pos_emb_head_dim": latent.position_dim, "v_head_dim": latent.value_dim}
        if latent.query_rank is not None:
            settings["q_lora_rank"] = latent.query_rank
        export.sets("model.latent_attention", settings)
    if model.left_out:
        export.lacks("model.left_out", f"nobody read how: {', '.join(model.left_out)}")


def _write_rotary(export: JobExport) -> None:
    model = export.job.model
    if model.positions != "rotary":
        return
    rotary = model.rotary or Rotary()
    scaling = rotary.scaling
    if rotary.windowed_base not in (None, rotary.base):
        export.lacks("model.rotary", "it has one rotary base for all blocks")
        return
    settings: dict[str, Any] = {"rotary_base": int(rotary.base)}
    if rotary.dim is not None and model.latent_attention is None:
        settings["rotary_percent"] = rotary.dim / model.head_dim
    if rotary.pattern and not all(rotary.pattern):
        layers = range(model.num_layers)
        settings["no_rope_freq"] = [int(not rotary.pattern[at % len(rotary.pattern)]) for at in layers]
    if scaling is None:
        export.sets("model.rotary", settings)
    elif scaling.kind == "llama3":
        export.sets("model.rotary", settings, use_rope_scaling=True, rope_scaling_factor=scaling.factor)
    elif scaling.factor != int(scaling.factor):
        export.lacks("model.rotary", "it divides frequencies by whole numbers")
    else:
        export.sets("model.rotary", settings, rotary_seq_len_interpolation_factor=int(scaling.factor))


def model_of(args: Arguments, assumed: list[str], tokenizer: str | None) -> TransformerSpec:
    """The model that Megatron-LM arguments describe, with Megatron-LM's defaults for missing arguments.

    Raises:
        InputError: arguments are missing, or describe no model.
    """
    missing = [name for name in _NEEDED if not args.has(name)]
    vocab, multiple = _vocabulary(args, assumed, tokenizer)
    if vocab is None:
        missing.append("vocab_size")
    if missing:
        problems = [Problem(f"`--{name.replace('_', '-')}`", "is missing") for name in missing]
        hint = '`--also "--vocab-size 128256"` says what the command leaves to tokenizers or checkpoints'
        raise InputError("the command does not say its whole model", problems=problems, hint=hint)
    gated, biases = args.get("swiglu"), args.get("add_bias_linear")
    plain = "gelu-tanh" if args.values.get("bias_gelu_fusion") else "gelu"
    hidden = args.get("hidden_size")
    mlp_width = int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
    fields = {
        **TABLE.fields("model", args.get),
        "name": "imported",
        "ffn_hidden_size": args.get("ffn_hidden_size", mlp_width),
        "gated_mlp": gated,
        "activation": "silu" if gated else "squared-relu" if args.get("squared_relu") else plain,
        "attention_output_bias": biases,
        "attention_bias": biases or args.get("add_qkv_bias"),
        "vocab_size": vocab,
        "vocab_multiple": multiple,
        "attention_sinks": args.get("softmax_type") in ("learnable", "off-by-one"),
        "max_positions": args.get("max_position_embeddings", args.get("seq_length")),
        "source": "arguments of pretrain_gpt.py",
        **_positions_of(args),
        **_attention_of(args, assumed),
        **_windows_of(args),
    }
    if args.get("num_experts"):
        mixtures = pattern_of(args, args.get("moe_layer_freq"), last=False)
        fields |= experts_of(args, mixtures, fields["ffn_hidden_size"])
    return TransformerSpec(**fields)


def _vocabulary(args: Arguments, assumed: list[str], tokenizer: str | None) -> tuple[int | None, int]:
    """Size of the vocabulary, and the multiple (besides tp) to which the model pads the vocabulary."""
    if (padded := args.get("padded_vocab_size")) is not None:
        return padded, 1
    words = args.get("vocab_size")
    if words is None and tokenizer == "GPT2BPETokenizer":
        assumed.append(f"{_GPT2_WORDS:,} words, those of GPT-2's tokenizer")
        words = _GPT2_WORDS
    multiple = args.get("make_vocab_size_divisible_by")
    default = TABLE.arguments["make_vocab_size_divisible_by"].default
    is_padded = words is not None and multiple == default and not words % default
    return words, 1 if is_padded else multiple


def _positions_of(args: Arguments) -> dict[str, Any]:
    argument = TABLE.arguments["position_embedding_type"]
    kind = "rope" if args.get("use_rotary_position_embeddings") else args.get("position_embedding_type")
    if args.get("position_embedding") is False and kind == argument.default:
        kind = "none"
    rotary: dict[str, Any] = {}
    if kind == "rope":
        if (base := args.get("rotary_base")) != 10_000:
            rotary["base"] = float(base)
        if (share := args.get("rotary_percent")) != 1.0 and not args.get("multi_latent_attention"):
            default = args.get("hidden_size") // max(1, args.get("num_attention_heads"))
            rotary["dim"] = round(int(args.get("kv_channels", default)) * share)
        if (skipped := args.get("no_rope_freq")) is not None:
            rotary["pattern"] = tuple(not one for one in pattern_of(args, skipped, last=True))
        if args.get("use_rope_scaling"):
            rotary["scaling"] = {"kind": "llama3", "factor": args.get("rope_scaling_factor")}
        elif (factor := args.get("rotary_seq_len_interpolation_factor")) is not None:
            rotary["scaling"] = {"kind": "linear", "factor": float(factor)}
    return {"positions": argument.plan_value(kind), **({"rotary": rotary} if rotary else {})}


def _attention_of(args: Arguments, assumed: list[str]) -> dict[str, Any]:
    if args.get("multi_latent_attention"):
        if not args.get("qk_layernorm"):
            assumed.append("norms of latents, which `--qk-layernorm` would switch on")
        position = args.get("qk_pos_emb_head_dim")
        latent = {"kv_rank": args.get("kv_lora_rank"), "query_rank": args.get("q_lora_rank")}
        latent |= {"position_dim": position, "value_dim": args.get("v_head_dim")}
        head = args.get("qk_head_dim") + position
        return {"latent_attention": latent, "head_dim": head, "qk_norm": False}
    fields = {"head_dim": args.get("kv_channels")} if args.has("kv_channels") else {}
    if args.get("group_query_attention"):
        fields["num_kv_heads"] = args.get("num_query_groups")
    return fields


def _windows_of(args: Arguments) -> dict[str, Any]:
    if (window := args.get("window_size")) is None:
        return {}
    fields: dict[str, Any] = {"attention_window": (window[0] if isinstance(window, tuple) else window) + 1}
    if (pattern := args.get("window_attn_skip_freq")) is not None:
        kinds = pattern_of(args, pattern, last=True)
        if isinstance(pattern, int):
            kinds = tuple(1 - one for one in kinds)  # of a number N, every N-th block attends to all tokens
        fields["window_pattern"] = tuple("window" if one else "full" for one in kinds)
    return fields


def pattern_of(args: Arguments, pattern: Any, *, last: bool) -> tuple[int, ...]:
    """Marks (0 or 1) of all blocks by a pattern or a period. A number N marks every N-th block: the last of
    each N, or the first."""
    count = args.get("num_layers") or 0
    if count > MAX_LAYERS:
        raise InputError(f"`--num-layers {count}` are more blocks than any model has")
    if isinstance(pattern, int):
        period = max(1, pattern)
        return tuple(int((at + 1) % period == 0 if last else at % period == 0) for at in range(count))
    if len(pattern) != count:
        raise InputError(f"a pattern of {len(pattern)} blocks for `--num-layers {count}`")
    return tuple(pattern)
