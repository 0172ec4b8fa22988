"""Fields of hybrids: the mixer of every block is attention, a recurrence or none.

Read from the configuration and modelling files of `transformers` 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.hugging_face.mixtures import after_the_first, blocks, mixtures, routing
from cost_models.hugging_face.windows import Config, Derived, shortest_round, whole_number

_MIXERS = {
    "linear_attention": "recurrence",
    "conv": "recurrence",
    "mamba": "recurrence",
    "M": "recurrence",
    "full_attention": "attention",
    "attention": "attention",
    "*": "attention",
    "mlp": "none",
    "-": "none",
    "moe": "none",
    "E": "none",
}
"""Word of a config, or letter of a `hybrid_override_pattern`, for a block → what mixes its tokens."""
_EXPERTS = ("moe", "E")
_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern")


def listed(config: Config) -> tuple[str, list[str]]:
    """Key of a hybrid model's config that lists the type of each block, and the listed words; no words where
    there is no such key."""
    for key in _LISTS:
        value = config.get(key)
        if isinstance(value, str | list) and value:
            return key, [str(word) for word in value][: MAX_LAYERS + 1]
    return _LISTS[0], []


def hybrid_refusal(config: Config) -> str | None:
    """Reason why a hybrid model's list of blocks cannot be represented; None where it can."""
    key, words = listed(config)
    unknown = next((word for word in words if word not in _MIXERS), None)
    return None if unknown is None else f"it has blocks of `{unknown[:60]}` (`{key}`)"


def mixers(config: Config, *, full_every: int = 0, attention_at: str = "") -> Derived:
    """Derive the spec field `mixers`, which says for each block whether attention or a recurrence mixes tokens.
    Taken from a list of blocks, else every so many-th block attends (`full_attention_interval`), or those that
    the key `attention_at` numbers."""
    key, words = listed(config)
    kinds = [_MIXERS[word] for word in words]
    if not kinds and attention_at:
        key, attention_layers = attention_at, config.get(attention_at) or []
        kinds = [
            "attention" if layer in attention_layers else "recurrence" for layer in range(blocks(config))
        ]
    if not kinds:
        key = "full_attention_interval"
        interval = min(max(1, whole_number(config, key, full_every)), MAX_LAYERS)
        kinds = ["recurrence"] * (interval - 1) + ["attention"]
    return {"mixers": (key, shortest_round(kinds))}


def recurrence(config: Config, *, kind: str, width: str = "", **keys: Sequence[Any]) -> Derived:
    """Derive the spec field `recurrence` (shape of the recurrent mixer) from pairs of config key and default for
    each of its fields.

    A width of heads that is not said is that of all of them, `width` or `mamba_expand` times the model's, shared out.

    Of mamba1 `heads` says how many times as many channels as the model's width there are.
    """
    fields = {name: _or(config.get(key), default) for name, (key, default) in keys.items()}
    hidden = whole_number(config, "hidden_size", 0)
    if kind == "mamba1":
        fields["heads"] = int(fields["heads"] * hidden) if isinstance(fields["heads"], int | float) else None
        fields["step_rank"] = -(-hidden // 16) if fields["step_rank"] == "auto" else fields["step_rank"]
    heads = fields["heads"]
    if fields.get("head_dim") in (None, "auto") and isinstance(heads, int) and heads > 0:
        total_width = whole_number(config, width, 0) if width else 0
        if not total_width:
            total_width = whole_number(config, "mamba_expand", 2) * hidden
        fields["head_dim"] = total_width // heads
    if kind == "lightning":
        fields |= {"state_dim": fields["head_dim"], "conv_width": 0}
    return {"recurrence": (str(keys["heads"][0]), {"kind": kind, **fields})}


def limited_steps(config: Config) -> tuple[str, ...]:
    """Phrase for Mamba-2's limits on step sizes if a config sets finite ones, which no published model does."""
    limits = config.get("time_step_limit")
    numbers = [one for one in limits if isinstance(one, float)] if isinstance(limits, list) else []
    return ("limits of step sizes",) if any(0 < one < inf for one in numbers) else ()


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _nemotron_h(config: Config) -> Derived:
    """Derive blocks and experts of Nemotron-H. Every block is one half; experts have no gates."""
    key, words = listed(config)
    fields: Derived = {"num_layers": (key, len(words)), "mixers": (key, [_MIXERS[word] for word in words])}
    experts = [layer for layer, word in enumerate(words) if word in _EXPERTS]
    if not experts:
        return fields
    width = "moe_shared_expert_intermediate_size"
    shared = config.get(width) if whole_number(config, "n_shared_experts", 1) else 0
    expert_fields = (
        after_the_first(config) | mixtures(key, len(words), experts) | routing(config, normalized=True)
    )
    expert_fields |= {field: (of, config.get(of)) for field, of in _EXPERT_SIZES.items()}
    expert_fields |= {"moe_layers": (key, experts), "routing_bias": (key, True)}
    return {**fields, **expert_fields, "shared_expert_ffn_hidden_size": (width, shared)}


_EXPERT_SIZES = {
    "num_experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "moe_ffn_hidden_size": "moe_intermediate_size",
}


def nemotron_refusal(config: Config) -> str | None:
    if config.get("moe_latent_size"):
        return "its experts work on latents (`moe_latent_size`)"
    if config.get("num_nextn_predict_layers"):
        return "blocks of its own predict further tokens (`num_nextn_predict_layers`)"
    return hybrid_refusal(config)


def _kimi(config: Config) -> Derived:
    """Derive mixers and recurrence of Kimi Linear. Checkpoints number attention's blocks from 1 in
    `linear_attn_config`."""
    inside = config.get("linear_attn_config")
    inside = inside if isinstance(inside, dict) else {}
    rank = inside.get("head_dim", config.get("linear_head_dim", 128))
    heads = inside.get("num_heads", config.get("linear_num_heads", 32))
    width = inside.get("short_conv_kernel_size", config.get("linear_conv_kernel_dim", 4))
    shape = {"heads": heads, "head_dim": rank, "state_dim": rank, "conv_width": width, "gate_rank": rank}
    full = inside.get("full_attn_layers")
    fields = mixers(config, full_every=4)
    if isinstance(full, list):
        kinds = ["attention" if layer + 1 in full else "recurrence" for layer in range(blocks(config))]
        fields = {"mixers": ("linear_attn_config", shortest_round(kinds))}
    return {**fields, "recurrence": ("linear_attn_config", {"kind": "kimi-delta", **shape})}


def _granite_hybrid(config: Config) -> Derived:
    """Derive positions and experts of hybrid Granite 4 models. Without routed experts the shared ones are the MLP."""
    width = "shared_intermediate_size"
    shared, experts = config.get(width, 1024), config.get("num_local_experts", 8)
    turns = config.get("position_embedding_type") == "rope"
    fields: Derived = {"positions": ("position_embedding_type", "rotary" if turns else "none")}
    if not experts:
        return fields | {"ffn_hidden_size": (width, shared)}
    return {
        **fields,
        **routing(config, normalized=True),
        "num_experts": ("num_local_experts", experts),
        "experts_per_token": ("num_experts_per_tok", config.get("num_experts_per_tok", 2)),
        "shared_expert_ffn_hidden_size": (width, shared),
    }


def _mamba(config: Config) -> Derived:
    """Set one head for Mamba, whose blocks have no attention."""
    return {"num_heads": ("hidden_size", 1)}


def _lfm2(config: Config) -> Derived:
    """Derive mixers and MLP width of LFM2. Convolutions where no attention is named, and in dense blocks a width
    that is rounded."""
    fields: Derived = {}
    if config.get("layer_types") or config.get("full_attn_idxs"):
        fields = mixers(config, attention_at="full_attn_idxs")
    if "recurrence" in fields.get("mixers", ("", ()))[1]:
        convolution: dict[str, Any] = {"kind": "convolution", "heads": config.get("hidden_size")}
        convolution |= {"conv_width": config.get("conv_L_cache", 3)}
        convolution |= dict.fromkeys(("conv_bias", "bias"), config.get("conv_bias", False))
        fields["recurrence"] = ("conv_L_cache", convolution)
    if config.get("model_type") != "lfm2":
        return fields
    width = whole_number(config, "block_ff_dim", whole_number(config, "intermediate_size", 12_288))
    if config.get("block_auto_adjust_ff_dim", True):
        times, multiple = config.get("block_ffn_dim_multiplier", 1.0), config.get("block_multiple_of", 256)
        width = int(2 * width / 3)
        if isinstance(times, int | float) and isinstance(multiple, int) and multiple > 0:
            width = -(-int(times * width) // multiple) * multiple
    return fields | {"ffn_hidden_size": ("intermediate_size", width)}


DERIVATIONS: Mapping[str, Callable[..., Derived]] = {
    "mixers": mixers,
    "recurrence": recurrence,
    "nemotron_h": _nemotron_h,
    "kimi": _kimi,
    "granite_hybrid": _granite_hybrid,
    "mamba": _mamba,
    "lfm2": _lfm2,
}
"""Name in the table → function."""
