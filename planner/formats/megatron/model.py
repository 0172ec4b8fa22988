"""The shape of a transformer in Megatron Core's arguments, written and read: mixtures of experts, then all models.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/transformer/transformer_config.py, core/transformer/moe/router.py.
"""

from __future__ import annotations

from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.errors import InputError, Problem
from cost_models.specs.transformer import Rotary, TransformerSpec
from planner.formats.exporter import JobExport
from planner.formats.megatron.arguments import TABLE, Arguments

_SCORED_BY = "two best"
"""How Megatron Core scores a group of experts."""
_GPT2_WORDS = 50_257
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


def _write_experts(export: JobExport) -> None:
    """Set Megatron Core's arguments for the fields of a mixture of experts that its table does not write."""
    model, scores = export.job.model, export.job.model.router_scores
    if model.num_moe_layers != model.num_layers:
        mixtures = model.moe_layers or range(model.num_layers - model.num_moe_layers, model.num_layers)
        pattern = [int(layer in mixtures) for layer in range(model.num_layers)]
        export.sets("model.num_moe_layers", moe_layer_freq=pattern)
    if (groups := model.expert_groups) is not None:
        settings = {"moe_router_num_groups": groups.count, "moe_router_group_topk": groups.per_token}
        export.sets("model.expert_groups", settings)
        reason = "it scores a group by its two best experts"
        export.lacks("model.expert_groups", reason, when=groups.scored_by != _SCORED_BY)
    # with a balancing bias scores are fp32, as in DeepSeek-V3
    dtype = {"moe_router_dtype": "fp32"} if model.routing_bias else {}
    export.sets("model.router_scores", dtype, moe_router_score_function=scores)
    reason = "it balances experts by a bias beside sigmoid scores alone"
    export.lacks("model.router_scores", reason, when=model.routing_bias and scores != "sigmoid")
    reason = "it scales the weights of sigmoid scores to sum to one"
    unnormalized = not model.normalized_routing and scores != "softmax"
    export.lacks("model.normalized_routing", reason, when=unnormalized)
    coefficient = {"moe_aux_loss_coeff": model.load_balance} if model.load_balance else {}
    kind = "aux_loss" if model.load_balance else "none"
    export.sets("model.load_balance", coefficient, moe_router_load_balancing_type=kind)


def write_model(export: JobExport) -> None:
    """Set Megatron Core's arguments for the fields of the model that its table does not write."""
    model, latent = export.job.model, export.job.model.latent_attention
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
    unbiased = model.norm != "rmsnorm" and not model.norm_bias
    export.lacks("model.norm_bias", "its layer norms have biases", when=unbiased)
    positions = TABLE.arguments["position_embedding_type"]
    choices = {kind: {positions.name: name} for kind, name in positions.values.items()}
    export.choose("model.positions", model.positions, choices, "it has no such positions")
    longest = max(model.max_positions, export.job.training.sequence_length)
    export.sets("model.max_positions", max_position_embeddings=longest)
    if model.positions == "rotary":
        _write_rotary(export, model.rotary or Rotary())
    export.sets("model.attention_bias", add_qkv_bias=True, when=model.attention_bias)
    reason = "biases of the MLP come with those of queries, keys and values"
    export.lacks("model.attention_bias", reason, when=model.mlp_bias and not model.attention_bias)
    reason = "attention's output has a bias where the MLP has"
    export.lacks("model.attention_output_bias", reason, when=model.attention_output_bias != model.mlp_bias)
    over_all_heads = model.qk_norm and model.qk_norm_over != "head"
    export.lacks("model.qk_norm_over", "its norm is over each head", when=over_all_heads)
    export.sets("model.attention_sinks", softmax_type="learnable", when=model.attention_sinks)
    if (window := model.attention_window) is not None:
        export.lacks("model.window_kind", "its windows slide", when=model.window_kind != "sliding")
        export.sets("model.attention_window", window_size=(window - 1, 0))
        windows = [int(model.window_of(layer) is not None) for layer in range(model.num_layers)]
        export.sets("model.window_pattern", window_attn_skip_freq=windows, when=model.window_pattern)
    if latent is None:
        export.sets("model.head_dim", kv_channels=model.head_dim)
        groups = {"group_query_attention": True, "num_query_groups": model.num_kv_heads}
        export.sets("model.num_kv_heads", groups, when=model.num_kv_heads != model.num_heads)
    else:
        # norms of latents, which all models with them have
        settings: dict[str, Any] = {"multi_latent_attention": True, "qk_layernorm": True}
        settings |= {"kv_lora_rank": latent.kv_rank, "qk_head_dim": model.head_dim - latent.position_dim}
        settings |= {"qk_pos_emb_head_dim": latent.position_dim, "v_head_dim": latent.value_dim}
        settings |= {} if latent.query_rank is None else {"q_lora_rank": latent.query_rank}
        export.sets("model.latent_attention", settings)
    unread = ", ".join(model.left_out)
    export.lacks("model.left_out", f"nobody read how: {unread}", when=unread)


def _write_rotary(export: JobExport, rotary: Rotary) -> None:
    model, scaling, reason = export.job.model, rotary.scaling, ""
    settings: dict[str, Any] = {"rotary_base": int(rotary.base)}
    if rotary.dim is not None and model.latent_attention is None:
        settings["rotary_percent"] = rotary.dim / model.head_dim
    if rotary.pattern and not all(rotary.pattern):
        layers = range(model.num_layers)
        settings["no_rope_freq"] = [int(not rotary.pattern[at % len(rotary.pattern)]) for at in layers]
    if scaling is not None and scaling.kind == "llama3":
        settings |= {"use_rope_scaling": True, "rope_scaling_factor": scaling.factor}
    elif scaling is not None:
        settings["rotary_seq_len_interpolation_factor"] = int(scaling.factor)
        reason = "it divides frequencies by whole numbers" if scaling.factor % 1 else ""
    if rotary.windowed_base not in (None, rotary.base):
        reason = "it has one rotary base for all blocks"
    export.sets("model.rotary", settings)
    export.lacks("model.rotary", reason, when=reason)


def model_of(args: Arguments) -> TransformerSpec:
    """The model that Megatron-LM arguments describe, with Megatron-LM's defaults for missing arguments.

    Raises:
        InputError: arguments are missing, or describe no model.
    """
    vocab, multiple = _vocabulary(args)
    missing = [name for name in _NEEDED if not args.has(name)] + ["vocab_size"] * (vocab is None)
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
        **_attention_of(args),
    }
    if args.get("num_experts"):
        fields |= _experts_of(args, fields["ffn_hidden_size"])
    return TransformerSpec(**fields)


def _experts_of(args: Arguments, dense: int) -> dict[str, Any]:
    """Model fields of a mixture of experts, by Megatron-LM's arguments. `dense` is the MLP width of dense blocks.

    Raises:
        InputError: the load balance is no number.
    """
    mixtures = _pattern_of(args, args.get("moe_layer_freq"), last=False)
    layers = tuple(at for at, has_experts in enumerate(mixtures) if has_experts)
    balances = args.get("moe_router_load_balancing_type")[0] == "aux_loss"
    coefficient = args.get("moe_aux_loss_coeff")[0] if balances else 0.0
    try:
        load_balance = float(coefficient)
    except ValueError:
        raise InputError(f"`--moe-aux-loss-coeff {coefficient}` is no number") from None
    fields: dict[str, Any] = {
        **TABLE.fields("model", args.get, mixtures=True),
        "moe_ffn_hidden_size": args.get("moe_ffn_hidden_size", dense),
        "num_moe_layers": len(layers),
        "load_balance": load_balance,
    }
    if layers != tuple(range(len(mixtures) - len(layers), len(mixtures))):
        fields["moe_layers"] = layers
    if args.has("moe_router_num_groups"):
        count, per_token = args.get("moe_router_num_groups"), args.get("moe_router_group_topk")
        fields["expert_groups"] = {"count": count, "per_token": per_token, "scored_by": _SCORED_BY}
    return fields


def _vocabulary(args: Arguments) -> tuple[int | None, int]:
    """Size of the vocabulary, and the multiple (besides tp) to which the model pads the vocabulary."""
    if (padded := args.get("padded_vocab_size")) is not None:
        return padded, 1
    words, multiple = args.get("vocab_size"), args.get("make_vocab_size_divisible_by")
    if words is None and args.tokenizer == "GPT2BPETokenizer":
        args.assume(f"{_GPT2_WORDS:,} words, those of GPT-2's tokenizer")
        words = _GPT2_WORDS
    default = TABLE.arguments["make_vocab_size_divisible_by"].default
    return words, 1 if words is not None and multiple == default and not words % default else multiple


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
            rotary["pattern"] = tuple(not one for one in _pattern_of(args, skipped, last=True))
        if args.get("use_rope_scaling"):
            rotary["scaling"] = {"kind": "llama3", "factor": args.get("rope_scaling_factor")}
        elif (factor := args.get("rotary_seq_len_interpolation_factor")) is not None:
            rotary["scaling"] = {"kind": "linear", "factor": float(factor)}
    return {"positions": argument.plan_value(kind), "rotary": rotary or None}


def _attention_of(args: Arguments) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if (window := args.get("window_size")) is not None:
        fields["attention_window"] = (window[0] if isinstance(window, tuple) else window) + 1
        if (pattern := args.get("window_attn_skip_freq")) is not None:
            marks, windowed = _pattern_of(args, pattern, last=True), not isinstance(pattern, int)
            # of a number N, every N-th block attends to all tokens
            fields["window_pattern"] = tuple("window" if mark == windowed else "full" for mark in marks)
    if args.get("multi_latent_attention"):
        unnormed = not args.get("qk_layernorm")
        args.assume("norms of latents, which `--qk-layernorm` would switch on", when=unnormed)
        position = args.get("qk_pos_emb_head_dim")
        latent = {"kv_rank": args.get("kv_lora_rank"), "query_rank": args.get("q_lora_rank")}
        latent |= {"position_dim": position, "value_dim": args.get("v_head_dim")}
        fields |= {"latent_attention": latent, "qk_norm": False}
        fields["head_dim"] = args.get("qk_head_dim") + position
        return fields
    if args.has("kv_channels"):
        fields["head_dim"] = args.get("kv_channels")
    if args.get("group_query_attention"):
        fields["num_kv_heads"] = args.get("num_query_groups")
    return fields


def _pattern_of(args: Arguments, pattern: Any, *, last: bool) -> tuple[int, ...]:
    """Marks (0 or 1) of all blocks by a pattern or a period. A number N marks every N-th block: the last of
    each N, or the first."""
    count = args.get("num_layers") or 0
    if count > MAX_LAYERS:
        raise InputError(f"`--num-layers {count}` are more blocks than any model has")
    if isinstance(pattern, int):
        return tuple(int((at + last) % max(1, pattern) == 0) for at in range(count))
    if len(pattern) != count:
        raise InputError(f"a pattern of {len(pattern)} blocks for `--num-layers {count}`")
    return tuple(pattern)
