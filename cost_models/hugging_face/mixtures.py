"""Fields of mixtures of experts: the blocks with experts, and the choice and weights of routers.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.hugging_face.rotary import rotary
from cost_models.hugging_face.windows import (
    Config,
    Derived,
    last_blocks,
    shortest_round,
    whole_number,
    windows,
)


def routing(config: Config, *, normalized: bool) -> Derived:
    """Derive whether routing weights are normalized and the load-balance coefficient; `normalized` is the default
    of the family."""
    key = "aux_loss_alpha" if "aux_loss_alpha" in config else "router_aux_loss_coef"
    return {
        "normalized_routing": ("norm_topk_prob", config.get("norm_topk_prob", normalized)),
        "load_balance": (key, config.get(key, 0.001)),
    }


def mixtures(key: str, layers: int, expert_layers: Iterable[int]) -> Derived:
    """Spec fields for the number of blocks with experts, and for the indices of the blocks where these are not
    the last ones."""
    numbers = sorted(set(expert_layers))
    last = numbers == list(range(layers - len(numbers), layers))
    return {"num_moe_layers": (key, len(numbers))} | ({} if last else {"moe_layers": (key, numbers)})


def blocks(config: Config) -> int:
    return min(whole_number(config, "num_hidden_layers", 0), MAX_LAYERS)


def sparse_step(config: Config) -> Derived:
    """Derive the blocks with experts, every `decoder_sparse_step`-th block except those in `mlp_only_layers`."""
    step, layers = max(1, whole_number(config, "decoder_sparse_step", 1)), blocks(config)
    listed = config.get("mlp_only_layers")
    dense = set(listed) if isinstance(listed, list) and all(isinstance(i, int) for i in listed) else set()
    expert_layers = [index for index in range(step - 1, layers, step) if index not in dense]
    return mixtures("decoder_sparse_step", layers, expert_layers) | routing(config, normalized=False)


def after_the_first(config: Config) -> Derived:
    """Derive the blocks with experts of DeepSeek-like models, in which the first blocks are dense. Then every
    `moe_layer_freq`-th has experts; shared ones have their width."""
    layers, first = blocks(config), whole_number(config, "first_k_dense_replace", 0)
    interval = max(1, whole_number(config, "moe_layer_freq", 1))
    width, shared = (
        whole_number(config, "moe_intermediate_size", 0),
        whole_number(config, "n_shared_experts", 0),
    )
    expert_layers = [index for index in range(0, layers, interval) if index >= first]
    listed = config.get("mlp_layer_types")
    if isinstance(listed, list):
        expert_layers = [index for index, kind in enumerate(listed[:layers]) if kind == "sparse"]
    expert_fields = mixtures("first_k_dense_replace", layers, expert_layers)
    return expert_fields | {
        "shared_expert_ffn_hidden_size": ("n_shared_experts", shared * width),
        "routing_scale": ("routed_scaling_factor", config.get("routed_scaling_factor", 1.0)),
    }


def groups(config: Config, *, scored_by: str) -> Derived:
    """Derive the groups of experts to which routing of a token is limited, where the config limits it."""
    count, per_token = config.get("n_group"), config.get("topk_group")
    if config.get("topk_method") == "greedy" or count in (None, 1) or count == per_token:
        return {}
    return {"expert_groups": ("n_group", {"count": count, "per_token": per_token, "scored_by": scored_by})}


def every_block(config: Config) -> Derived:
    """Derive a sliding window in all blocks or in none, whatever `max_window_layers` says."""
    return windows(config, default=4096) if config.get("use_sliding_window") is True else {}


def _deepseek(config: Config) -> Derived:
    """Derive DeepSeek's multi-head latent attention, router scores and expert groups. A head has two parts, and
    everything comes out of latents."""
    position = whole_number(config, "qk_rope_head_dim", 0)
    third = config.get("model_type") != "deepseek_v2"
    latent: dict[str, Any] = {
        "kv_rank": config.get("kv_lora_rank"),
        "query_rank": config.get("q_lora_rank"),
        "position_dim": config.get("qk_rope_head_dim"),
        "value_dim": config.get("v_head_dim"),
    }
    picked: Derived = {}
    if (kept_tokens := config.get("index_topk")) is not None:
        latent["indexer"] = {"heads": config.get("index_n_heads"), "head_dim": config.get("index_head_dim")}
        picked = {"attention_window": ("index_topk", kept_tokens), "window_kind": ("index_topk", "picked")}
    return {
        "head_dim": ("qk_nope_head_dim", whole_number(config, "qk_nope_head_dim", 0) + position),
        "latent_attention": ("kv_lora_rank", latent),
        "router_scores": ("scoring_func", config.get("scoring_func", "sigmoid" if third else "softmax")),
        **picked,
        **groups(config, scored_by="two best" if third else "best"),
        **routing(config, normalized=third),
    }


def indexer_refusal(config: Config) -> str | None:
    kinds = config.get("indexer_types")
    if (isinstance(kinds, list) and "shared" in kinds) or whole_number(config, "index_topk_freq", 1) > 1:
        return "some of its blocks attend to what an indexer before them picked (`indexer_types`)"
    return None


def _jamba(config: Config) -> Derived:
    """Derive the blocks of Jamba with attention and those with experts, each at a regular period from an offset
    on."""
    layers = blocks(config)

    def chosen(name: str, every: int, first: int) -> range:
        period = max(1, whole_number(config, f"{name}_period", every))
        return range(whole_number(config, f"{name}_offset", first), layers, period)

    attends = chosen("attn_layer", 8, 4)
    kinds = ["attention" if layer in attends else "recurrence" for layer in range(layers)]
    fields: Derived = {"mixers": ("attn_layer_period", shortest_round(kinds))}
    if whole_number(config, "num_experts", 16) < 2:
        return fields
    experts = mixtures("expert_layer_period", layers, chosen("expert_layer", 2, 1))
    fields |= {"num_experts": ("num_experts", config.get("num_experts", 16))}
    fields |= {"experts_per_token": ("num_experts_per_tok", config.get("num_experts_per_tok", 2))}
    return fields | experts | routing(config, normalized=False)


def _llama4(config: Config) -> Derived:
    """Derive experts, windows and rotary positions of Llama 4. Dense blocks have a width of their own; blocks
    without a window have no rotary positions."""
    layers, step = blocks(config), max(1, whole_number(config, "interleave_moe_layer_step", 1))
    written, interval = config.get("moe_layers"), max(1, whole_number(config, "no_rope_layer_interval", 4))
    expert_layers = written if isinstance(written, list) else range(step - 1, layers, step)
    listed = config.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(layers)]
    turned = [bool(one) for one in listed] if isinstance(listed, list) else []
    pattern = ["window" if one else "full" for one in turned]
    return {
        **mixtures(
            "interleave_moe_layer_step", layers, (one for one in expert_layers if isinstance(one, int))
        ),
        **windows(config, key="attention_chunk_size", default=8192, pattern=pattern),
        **rotary(config, base=500_000.0, pattern=turned),
        "load_balance": ("router_aux_loss_coef", config.get("router_aux_loss_coef", 0.001)),
        "shared_expert_ffn_hidden_size": ("intermediate_size", config.get("intermediate_size")),
    }


def _mellum(config: Config) -> Derived:
    """Derive windows and rotary positions of Mellum, with another rotary base in blocks with a window."""
    fields = windows(config, default=1024)
    windowed = ("rope_local_base_freq", 10_000.0) if fields else None
    return fields | rotary(config, base=500_000.0, windowed_base=windowed)


def _shared_granite(config: Config) -> Derived:
    return {
        "shared_expert_ffn_hidden_size": (
            "shared_intermediate_size",
            config.get("shared_intermediate_size", 0),
        )
    }


def _ernie(config: Config) -> Derived:
    """Derive the blocks with experts of ERNIE 4.5, at a regular interval between two block indices. Shared
    experts are as wide as routed ones."""
    layers, first = blocks(config), whole_number(config, "moe_layer_start_index", 1)
    last, step = config.get("moe_layer_end_index", -1), max(1, whole_number(config, "moe_layer_interval", 1))
    end = layers - 1 if not isinstance(last, int) or last < 0 else last
    expert_layers = [index for index in range(first, min(end, layers - 1) + 1) if (index + 1) % step == 0]
    width, shared = (
        whole_number(config, key, 0) for key in ("moe_intermediate_size", "moe_num_shared_experts")
    )
    return {
        **mixtures("moe_layer_start_index", layers, expert_layers),
        "load_balance": ("router_aux_loss_coef", config.get("router_aux_loss_coef", 0.001)),
        "shared_expert_ffn_hidden_size": ("moe_num_shared_experts", shared * width),
        "head_bias": ("use_bias", config.get("use_bias", False)),
    }


def _hunyuan(config: Config) -> Derived:
    """Derive the experts of Hunyuan, with one shared expert as wide as the routed ones. Counts may be listed
    block by block."""
    return {
        "num_experts": ("num_experts", _common_count(config, "num_experts")),
        "experts_per_token": ("moe_topk", _common_count(config, "moe_topk")),
        "shared_expert_ffn_hidden_size": ("intermediate_size", config.get("intermediate_size")),
    }


def _common_count(config: Config, key: str) -> Any:
    """Value of a config key that holds one number for all blocks, or the first of a list with one number per
    block."""
    written = config.get(key)
    return written[0] if isinstance(written, list) and written else written


def hunyuan_refusal(config: Config) -> str | None:
    for key in ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"):
        written = config.get(key)
        if isinstance(written, list) and any(one != written[0] for one in written):
            return f"its blocks differ in `{key}`"
    if _common_count(config, "num_shared_expert") not in (None, 1):
        return "it has several shared experts (`num_shared_expert`)"
    if _common_count(config, "moe_intermediate_size") not in (None, config.get("intermediate_size")):
        return "its experts are not as wide as `intermediate_size`"
    return None


def _windows_of_dots(config: Config) -> Derived:
    """Derive the windows of dots.llm1, from block `max_window_layers` on, without a switch in the config."""
    return last_blocks({**config, "use_sliding_window": True}) if config.get("sliding_window", 4096) else {}


DERIVATIONS: dict[str, Callable[..., Derived]] = {
    "routing": routing,
    "every_so_many": sparse_step,
    "after_the_first": after_the_first,
    "groups": groups,
    "every_block": every_block,
    "deepseek": _deepseek,
    "llama4": _llama4,
    "jamba": _jamba,
    "mellum": _mellum,
    "shared_granite": _shared_granite,
    "ernie": _ernie,
    "hunyuan": _hunyuan,
    "windows_of_dots": _windows_of_dots,
}
"""Name in the table → function."""
