"""The shape of a dense transformer in Megatron Core's arguments, written and read; mixtures are in `experts`.

Sources: NVIDIA/Megatron-LM, August 2026 (core 0.20): megatron/training/arguments.py,
core/transformer/transformer_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.errors import InputError, Problem
from cost_models.specs.transformer import Rotary, TransformerSpec
from planner.formats.exporter import NOTHING, Job, Translate, Word, lacks, nothing, only, otherwise, says
from planner.formats.megatron.arguments import TABLE, Arguments
from planner.formats.megatron.experts import EXPERTS, experts_of
from planner.formats.table import table_of

_GPT2_WORDS = 50_257
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")


def _kv_heads(job: Job) -> Word:
    model = job.model
    if model.num_kv_heads == model.num_heads or model.latent_attention is not None:
        return NOTHING
    return says(group_query_attention=True, num_query_groups=model.num_kv_heads)


def _activation(job: Job) -> Word:
    match job.model.gated_mlp, job.model.activation:
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


def _norm_bias(job: Job) -> Word:
    plain = job.model.norm == "rmsnorm" or job.model.norm_bias
    return NOTHING if plain else lacks("its layer norms have biases")


def _positions(job: Job) -> Word:
    argument = table_of(TABLE).arguments["position_embedding_type"]
    if job.model.positions not in argument.values:
        return lacks("it has no such positions")
    return says(position_embedding_type=argument.theirs(job.model.positions))


def _attention_bias(job: Job) -> Word:
    if job.model.attention_bias or not job.model.mlp_bias:
        return says(add_qkv_bias=True) if job.model.attention_bias else NOTHING
    return lacks("biases of the MLP come with those of queries, keys and values")


def _output_bias(job: Job) -> Word:
    if job.model.attention_output_bias == job.model.mlp_bias:
        return NOTHING
    return lacks("attention's output has a bias where the MLP has")


def _qk_norm_over(job: Job) -> Word:
    plain = not job.model.qk_norm or job.model.qk_norm_over == "head"
    return NOTHING if plain else lacks("its norm is over each head")


def _rotary(job: Job) -> Word:
    if job.model.positions != "rotary":
        return NOTHING
    rotary = job.model.rotary or Rotary()
    if rotary.windowed_base not in (None, rotary.base):
        return lacks("it has one rotary base for all blocks")
    settings: dict[str, Any] = {"rotary_base": int(rotary.base)}
    if rotary.dim is not None and job.model.latent_attention is None:
        settings["rotary_percent"] = rotary.dim / job.model.head_dim
    if rotary.pattern and not all(rotary.pattern):
        layers = range(job.model.num_layers)
        settings["no_rope_freq"] = [int(not rotary.pattern[at % len(rotary.pattern)]) for at in layers]
    if rotary.scaling is None:
        return says(**settings)
    if rotary.scaling.kind == "llama3":
        return says(**settings, use_rope_scaling=True, rope_scaling_factor=rotary.scaling.factor)
    if rotary.scaling.factor != int(rotary.scaling.factor):
        return lacks("it divides frequencies by whole numbers")
    return says(**settings, rotary_seq_len_interpolation_factor=int(rotary.scaling.factor))


def _window_kind(job: Job) -> Word:
    slides = job.model.attention_window is None or job.model.window_kind == "sliding"
    return NOTHING if slides else lacks("its windows slide")


def _window_pattern(job: Job) -> Word:
    model = job.model
    if model.attention_window is None or not model.window_pattern:
        return NOTHING
    layers = range(model.num_layers)
    return says(window_attn_skip_freq=[int(model.window_of(layer) is not None) for layer in layers])


def _latent(job: Job) -> Word:
    latent = job.model.latent_attention
    if latent is None:
        return NOTHING
    settings: dict[str, Any] = {} if latent.query_rank is None else {"q_lora_rank": latent.query_rank}
    return says(
        multi_latent_attention=True,
        qk_layernorm=True,  # of latents, which all models with them have
        kv_lora_rank=latent.kv_rank,
        qk_head_dim=job.model.head_dim - latent.position_dim,
        qk_pos_emb_head_dim=latent.position_dim,
        v_head_dim=latent.value_dim,
        **settings,
    )


def _left_out(job: Job) -> Word:
    what = job.model.left_out
    return lacks(f"nobody read how: {', '.join(what)}") if what else NOTHING


MODEL: Mapping[str, Translate] = {
    **EXPERTS,
    "model.name": nothing,
    "model.num_kv_heads": _kv_heads,
    "model.head_dim": lambda job: (
        NOTHING if job.model.latent_attention is not None else says(kv_channels=job.model.head_dim)
    ),
    "model.gated_mlp": nothing,  # said with `activation`
    "model.activation": _activation,
    "model.norm_placement": only("model.norm_placement", "its norms lie before attention and MLP", "before"),
    "model.norm_bias": _norm_bias,
    "model.embedding_norm": only("model.embedding_norm", "no norm follows its embedding", False),
    "model.positions": _positions,
    "model.max_positions": lambda job: says(
        max_position_embeddings=max(job.model.max_positions, job.training.sequence_length)
    ),
    "model.head_bias": only("model.head_bias", "its head has no bias", False),
    "model.embedding_scale": only("model.embedding_scale", "it does not scale embeddings", 1.0),
    "model.residual_scale": only("model.residual_scale", "it does not scale what blocks add", 1.0),
    "model.logit_scale": only("model.logit_scale", "it does not scale logits", 1.0),
    "model.attention_bias": _attention_bias,
    "model.attention_output_bias": _output_bias,
    "model.qk_norm_over": _qk_norm_over,
    "model.attention_sinks": lambda job: (
        says(softmax_type="learnable") if job.model.attention_sinks else NOTHING
    ),
    "model.attention_scale": only("model.attention_scale", "it scales scores by 1/√head_dim", None),
    "model.rotary": _rotary,
    "model.parallel_block": only("model.parallel_block", "its attention and MLP follow one another", False),
    "model.parallel_norms": nothing,  # a part of parallel blocks
    "model.attention_window": lambda job: (
        NOTHING
        if job.model.attention_window is None
        else says(window_size=(job.model.attention_window - 1, 0))
    ),
    "model.window_kind": _window_kind,
    "model.window_pattern": _window_pattern,
    "model.latent_attention": _latent,
    "model.vocab_multiple": nothing,  # said with the stack's padding
    "model.left_out": _left_out,
}
"""Fields of the model whose settings do not follow from the table."""


def model_of(said: Arguments, assumed: list[str], tokenizer: str | None) -> TransformerSpec:
    """The model that arguments describe, with Megatron-LM's defaults for what they leave out.

    Raises:
        InputError: arguments are missing, or describe no model.
    """
    missing = [name for name in _NEEDED if not said.has(name)]
    vocab, multiple = _vocabulary(said, assumed, tokenizer)
    if vocab is None:
        missing.append("vocab_size")
    if missing:
        problems = [Problem(f"`--{name.replace('_', '-')}`", "is missing") for name in missing]
        hint = '`--also "--vocab-size 128256"` says what the command leaves to tokenizers or checkpoints'
        raise InputError("the command does not say its whole model", problems=problems, hint=hint)
    gated, biases = said.get("swiglu"), said.get("add_bias_linear")
    plain = "gelu-tanh" if said.values.get("bias_gelu_fusion") else "gelu"
    hidden = said.get("hidden_size")
    fields = {
        **table_of(TABLE).fields("model", said.get),
        "name": "imported",
        "ffn_hidden_size": said.get(
            "ffn_hidden_size", int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden
        ),
        "gated_mlp": gated,
        "activation": "silu" if gated else "squared-relu" if said.get("squared_relu") else plain,
        "attention_output_bias": biases,
        "attention_bias": biases or said.get("add_qkv_bias"),
        "vocab_size": vocab,
        "vocab_multiple": multiple,
        "attention_sinks": said.get("softmax_type") in ("learnable", "off-by-one"),
        "max_positions": said.get("max_position_embeddings", said.get("seq_length")),
        "source": "arguments of pretrain_gpt.py",
        **_positions_of(said),
        **_attention_of(said, assumed),
        **_windows_of(said),
    }
    if said.get("num_experts"):
        mixtures = pattern_of(said, said.get("moe_layer_freq"), last=False)
        fields |= experts_of(said, mixtures, fields["ffn_hidden_size"])
    return TransformerSpec(**fields)


def _vocabulary(said: Arguments, assumed: list[str], tokenizer: str | None) -> tuple[int | None, int]:
    """Words of the vocabulary, and the multiple beside tp to which the model itself pads it."""
    if (padded := said.get("padded_vocab_size")) is not None:
        return padded, 1
    words = said.get("vocab_size")
    if words is None and tokenizer == "GPT2BPETokenizer":
        assumed.append(f"{_GPT2_WORDS:,} words, those of GPT-2's tokenizer")
        words = _GPT2_WORDS
    multiple = said.get("make_vocab_size_divisible_by")
    usual = table_of(TABLE).arguments["make_vocab_size_divisible_by"].default
    is_whole = words is not None and multiple == usual and not words % usual
    return words, 1 if is_whole else multiple


def _positions_of(said: Arguments) -> dict[str, Any]:
    argument = table_of(TABLE).arguments["position_embedding_type"]
    kind = "rope" if said.get("use_rotary_position_embeddings") else said.get("position_embedding_type")
    if said.get("position_embedding") is False and kind == argument.default:
        kind = "none"
    rotary: dict[str, Any] = {}
    if kind == "rope":
        if (base := said.get("rotary_base")) != 10_000:
            rotary["base"] = float(base)
        if (share := said.get("rotary_percent")) != 1.0 and not said.get("multi_latent_attention"):
            usual = said.get("hidden_size") // max(1, said.get("num_attention_heads"))
            rotary["dim"] = round(int(said.get("kv_channels", usual)) * share)
        if (skipped := said.get("no_rope_freq")) is not None:
            rotary["pattern"] = tuple(not one for one in pattern_of(said, skipped, last=True))
        if said.get("use_rope_scaling"):
            rotary["scaling"] = {"kind": "llama3", "factor": said.get("rope_scaling_factor")}
        elif (factor := said.get("rotary_seq_len_interpolation_factor")) is not None:
            rotary["scaling"] = {"kind": "linear", "factor": float(factor)}
    return {"positions": argument.ours(kind), **({"rotary": rotary} if rotary else {})}


def _attention_of(said: Arguments, assumed: list[str]) -> dict[str, Any]:
    if said.get("multi_latent_attention"):
        if not said.get("qk_layernorm"):
            assumed.append("norms of latents, which `--qk-layernorm` would switch on")
        position = said.get("qk_pos_emb_head_dim")
        latent: dict[str, Any] = {
            "kv_rank": said.get("kv_lora_rank"),
            "position_dim": position,
            "value_dim": said.get("v_head_dim"),
        }
        if said.has("q_lora_rank"):
            latent["query_rank"] = said.get("q_lora_rank")
        head = said.get("qk_head_dim") + position
        return {"latent_attention": latent, "head_dim": head, "qk_norm": False}
    fields = {"head_dim": said.get("kv_channels")} if said.has("kv_channels") else {}
    if said.get("group_query_attention"):
        fields["num_kv_heads"] = said.get("num_query_groups")
    return fields


def _windows_of(said: Arguments) -> dict[str, Any]:
    if (window := said.get("window_size")) is None:
        return {}
    fields: dict[str, Any] = {"attention_window": (window[0] if isinstance(window, tuple) else window) + 1}
    if (pattern := said.get("window_attn_skip_freq")) is not None:
        kinds = pattern_of(said, pattern, last=True)
        if isinstance(pattern, int):
            kinds = tuple(1 - one for one in kinds)  # of a number N, every N-th block attends to all tokens
        fields["window_pattern"] = tuple("window" if one else "full" for one in kinds)
    return fields


def pattern_of(said: Arguments, pattern: Any, *, last: bool) -> tuple[int, ...]:
    """0 or 1 for each block. A number N marks every N-th block: the last of each N, or the first."""
    count = said.get("num_layers") or 0
    if count > MAX_LAYERS:
        raise InputError(f"`--num-layers {count}` are more blocks than any model has")
    if isinstance(pattern, int):
        every = max(1, pattern)
        return tuple(int((at + 1) % every == 0 if last else at % every == 0) for at in range(count))
    if len(pattern) != count:
        raise InputError(f"a pattern of {len(pattern)} blocks for `--num-layers {count}`")
    return tuple(pattern)
