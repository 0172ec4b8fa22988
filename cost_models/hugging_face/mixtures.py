"""Which blocks of a Hugging Face mixture have experts, and how its routers choose and weigh them.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from collections.abc import Iterable

from cost_models.base import MAX_LAYERS
from cost_models.hugging_face.families import Config, whole_number
from cost_models.hugging_face.windows import Derived, windows


def routing(config: Config, *, normalized: bool) -> Derived:
    """How routers weigh and balance, where `transformers` reads it; `normalized` is what the family's class assumes."""
    key = "aux_loss_alpha" if "aux_loss_alpha" in config else "router_aux_loss_coef"
    return {
        "normalized_routing": ("norm_topk_prob", config.get("norm_topk_prob", normalized)),
        "load_balance": (key, config.get(key, 0.001)),
    }


def mixtures(key: str, layers: int, chosen: Iterable[int]) -> Derived:
    """Which blocks have experts: how many, and their numbers where they are not the last ones."""
    named = sorted(set(chosen))
    last = named == list(range(layers - len(named), layers))
    return {"num_moe_layers": (key, len(named))} | ({} if last else {"moe_layers": (key, named)})


def blocks(config: Config) -> int:
    return min(whole_number(config, "num_hidden_layers", 0), MAX_LAYERS)


def every_so_many(config: Config) -> Derived:
    """Every `decoder_sparse_step`-th block has experts, except those in `mlp_only_layers`."""
    step, layers = max(1, whole_number(config, "decoder_sparse_step", 1)), blocks(config)
    named = config.get("mlp_only_layers")
    dense = set(named) if isinstance(named, list) and all(isinstance(i, int) for i in named) else set()
    chosen = [index for index in range(step - 1, layers, step) if index not in dense]
    return mixtures("decoder_sparse_step", layers, chosen) | routing(config, normalized=False)


def after_the_first(config: Config) -> Derived:
    """The first blocks are dense, and later all but every so many-th; shared experts are as wide as routed ones."""
    layers, first = blocks(config), whole_number(config, "first_k_dense_replace", 0)
    every = max(1, whole_number(config, "moe_layer_freq", 1))
    width, shared = (
        whole_number(config, "moe_intermediate_size", 0),
        whole_number(config, "n_shared_experts", 0),
    )
    chosen = [index for index in range(0, layers, every) if index >= first]
    found = mixtures("first_k_dense_replace", layers, chosen)
    return found | {
        "shared_expert_ffn_hidden_size": ("n_shared_experts", shared * width),
        "routing_scale": ("routed_scaling_factor", config.get("routed_scaling_factor", 1.0)),
    }


def groups(config: Config, *, scored_by: str) -> Derived:
    """Groups that experts are chosen from, where not from all experts at once."""
    count, chosen = config.get("n_group"), config.get("topk_group")
    if config.get("topk_method") == "greedy" or count in (None, 1) or count == chosen:
        return {}
    return {"expert_groups": ("n_group", {"count": count, "per_token": chosen, "scored_by": scored_by})}


def every_block(config: Config) -> Derived:
    """A window in every block or in none, whatever `max_window_layers` says."""
    return windows(config, default=4096) if config.get("use_sliding_window") is True else {}
