"""Derivation of the `TransformerSpec` fields that a Hugging Face config states in other terms, and reasons
why a config cannot be represented.

The table of families (`data/hugging_face/families.yaml`) names the functions for each family, with arguments. They
follow the configuration and modelling files of `transformers` 4.57, and 5.24 for hybrids.

A query of a sliding window of W sees W tokens, itself included (`masking_utils.py`). Rotary positions rotate pairs of
neighbours (GPT-J) or pairs from the two halves of a head (Llama); this changes only the order of a matrix's rows and is
not distinguished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import inf
from typing import Any, TypeVar

from cost_models.base import MAX_LAYERS
from cost_models.documents import printable
from cost_models.specs.transformer import Rotary

T = TypeVar("T")
Config = Mapping[str, Any]
Derived = dict[str, tuple[str, Any]]
"""Values of spec fields, each with the config key from which it mostly follows."""

ACTIVATIONS = {"gelu": "gelu"} | dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu-tanh")
ACTIVATIONS |= dict.fromkeys(("silu", "swish"), "silu")
ACTIVATIONS |= {"relu": "relu", "relu2": "squared-relu", "quick_gelu": "quick-gelu"}
"""Activation function of a spec by the name in a config."""
_KINDS = {"full_attention": "full", "indexed_attention": "full"}
_KINDS |= {"sliding_attention": "window", "chunked_attention": "window"}
"""Kind of attention (`full`, `window`) of a block by the word in `layer_types`."""


def look_up(config: Config, **fields: tuple[str, Any]) -> Derived:
    """Read spec fields that a config states directly. Each field is given with the config key and the default
    for an absent key."""
    return {name: (key, config.get(key, default)) for name, (key, default) in fields.items()}


def windows(
    config: Config,
    *,
    key: str = "sliding_window",
    default: int | None = None,
    pattern: Sequence[str] = ("window",),
    full_every: int = 0,
    switch: str = "",
) -> Derived:
    """Derive the spec fields of sliding-window attention. `default` replaces a missing `key`, and `pattern`
    missing `layer_types`.

    With `full_every` every `full_every`-th block has no window; with the key `switch` there
    are windows only where the config sets that key to true.
    """
    if switch and config.get(switch) is not True:
        return {}
    window, listed = config.get(key, default), config.get("layer_types")
    if full_every:
        pattern = ("window",) * (full_every - 1) + ("full",)
    kinds = [_KINDS[kind] for kind in listed] if listed else list(pattern)
    if window is None or "window" not in kinds:
        return {}
    fields: Derived = {"attention_window": (key, window)}
    if "full" in kinds:
        fields["window_pattern"] = ("layer_types", shortest_round(kinds))
    if "chunk" in key:
        fields["window_kind"] = (key, "chunked")
    return fields


def last_blocks(config: Config, *, switch: str = "use_sliding_window") -> Derived:
    """Derive Qwen2's sliding windows, which apply from block `max_window_layers` on if `use_sliding_window`
    is set."""
    config.get("sliding_window")  # means nothing without the switch, so that it counts as read
    layers, first = blocks(config), config.get("max_window_layers", 28)
    full = max(0, min(first, layers)) if isinstance(first, int) else 0
    pattern = ["full"] * full + ["window"] * (layers - full)
    return windows(config, default=4096, pattern=pattern, switch=switch)


def whole_number(config: Config, key: str, default: int) -> int:
    """Non-negative integer value of a config key; `default` if the value is absent or invalid (the spec's
    validation reports it)."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def window_refusal(config: Config) -> Iterator[str]:
    """Yield the reasons why a config's `layer_types` cannot be represented; callers use the first."""
    listed, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if listed is None:
        return
    if not isinstance(listed, list) or (isinstance(layers, int) and len(listed) != layers):
        yield f"`layer_types` does not name each of its {layers} blocks"
    kinds = [printable(str(kind), limit=60) for kind in listed]
    if unknown := next((kind for kind in kinds if kind not in _KINDS), None):
        yield f"it has blocks of `{unknown}` (`layer_types`)"
    if {"sliding_attention", "chunked_attention"} <= set(kinds):
        yield "some of its windows slide and some do not (`layer_types`)"


def shortest_round(kinds: Sequence[T]) -> tuple[T, ...]:
    """Shortest prefix of a sequence that, when repeated, gives the entire sequence (Knuth, Morris and Pratt
    1977)."""
    lengths = range(1, len(kinds) + 1)
    return next((tuple(kinds[:n]) for n in lengths if kinds[n:] == kinds[: len(kinds) - n]), ())


def in_turns(kinds: Sequence[str]) -> str:
    """Description of runs of equal entries, such as "2 window, 1 full" for `("window", "window", "full")`."""
    return ", ".join(f"{len(list(run))} {kind}" for kind, run in groupby(kinds))


_USUAL_BASE = Rotary().base
SCALED = {"linear": {"factor": "factor"}}
SCALED["llama3"] = {"factor": "factor", "first_positions": "original_max_position_embeddings"}
SCALED["llama3"] |= {"low_turns": "low_freq_factor", "high_turns": "high_freq_factor"}
"""Config key of each field of a rotary scaling, by kind of scaling."""
_PLAIN = ("default", "mrope")
"""Kinds of scaling that change nothing for text."""


def rotary(
    config: Config,
    *,
    base: float = _USUAL_BASE,
    base_key: str = "rope_theta",
    windowed_base: tuple[str, float] | None = None,
    part: tuple[str, float] | None = None,
    dim: tuple[str, int] | None = None,
    pattern: Sequence[bool] = (),
) -> Derived:
    """Derive the spec field `rotary` (base, rotated part of a head, scaling, blocks with rotation); empty if
    all are default.

    `base`, `windowed_base` and `part` (a share of the head's elements) are values if the config has no such key. `dim`
    is the number of rotated elements of a head, null for all; `pattern` says which blocks rotate.
    """
    fields: dict[str, Any] = {}
    if (written := config.get(base_key, base)) != _USUAL_BASE:
        fields["base"] = written
    if windowed_base is not None:
        fields["windowed_base"] = config.get(*windowed_base)
    turned = config.get(*dim) if dim else _part_of_head(config, config.get(*part)) if part else None
    if turned is not None:
        fields["dim"] = turned
    if not all(pattern):
        fields["pattern"] = shortest_round(pattern)
    if (kind := _kind(config)) in SCALED:
        scaling = config["rope_scaling"]
        fields["scaling"] = {"kind": kind} | {name: scaling.get(key) for name, key in SCALED[kind].items()}
    return {"rotary": (base_key, fields)} if fields else {}


def old_rotary_keys(config: Config) -> dict[str, Any]:
    """Rotary config keys of `transformers` before 5, filled from `rope_parameters`, except keys that the
    config has."""
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, dict):
        return {}
    full, windowed = (parameters.get(f"{kind}_attention") for kind in ("full", "sliding"))
    full = full if isinstance(full, dict) else parameters
    keys = {"rope_theta": full.get("rope_theta"), "rotary_emb_base": full.get("rope_theta")}
    keys |= dict.fromkeys(("partial_rotary_factor", "rotary_pct"), full.get("partial_rotary_factor"))
    if full.get("rope_type", "default") not in _PLAIN:
        keys["rope_scaling"] = full
    if isinstance(windowed, dict):
        keys["rope_local_base_freq"] = windowed.get("rope_theta")
    return {key: value for key, value in keys.items() if value is not None and config.get(key) is None}


def unscaled(config: Config) -> tuple[str, ...]:
    """Phrase for a rotary scaling that the spec cannot express; empty if there is none."""
    kind = _kind(config)
    return () if kind is None or kind in SCALED else (f"{kind} scaling of rotary positions",)


def _kind(config: Config) -> str | None:
    """Kind of rotary scaling in a config, such as `llama3`; None if positions are not scaled."""
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, dict):
        return None
    kind = scaling.get("rope_type", scaling.get("type"))
    return None if kind in _PLAIN or kind is None else printable(str(kind), limit=40)


def _part_of_head(config: Config, share: Any) -> Any:
    """Number of a head's elements that rotary positions rotate, from their share of the head; None for all.
    Invalid values are left to the spec's validation."""
    if not isinstance(share, int | float) or isinstance(share, bool):
        return share
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    width = config.get("head_dim")
    if width is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        width = hidden // heads
    return int(width * share) if isinstance(width, int) and 0 <= share < 1 else None


def gemma_scale(config: Config) -> Derived:
    """Derive the factor on Gemma's token embeddings, the square root of the hidden size."""
    hidden = whole_number(config, "hidden_size", 0)
    return {"embedding_scale": ("hidden_size", hidden**0.5)} if hidden else {}


def score_scale(config: Config) -> Derived:
    """Derive the factor on attention scores: one over the square root of `query_pre_attn_scalar`."""
    scalar = config.get("query_pre_attn_scalar", 256)
    if scalar == config.get("head_dim", 256) or not isinstance(scalar, int | float) or scalar <= 0:
        return {}
    return {"attention_scale": ("query_pre_attn_scalar", float(scalar) ** -0.5)}


def gemma3(config: Config) -> Derived:
    """Derive Gemma 3's scale factors, sliding windows and rotary positions."""
    rounds = min(max(2, whole_number(config, "sliding_window_pattern", 6)), 1000)
    fields = gemma_scale(config) | score_scale(config) | windows(config, default=4096, full_every=rounds)
    return fields | rotary(config, base=1e6, windowed_base=("rope_local_base_freq", 10_000.0))


def olmo3(config: Config) -> Derived:
    """Derive OLMo 3's sliding windows and rotary positions. Blocks with a window have unscaled rotary
    positions, even if the others are scaled."""
    scaled = ("", config.get("rope_theta", 10_000.0)) if config.get("rope_scaling") else None
    return windows(config, default=4096, full_every=4) | rotary(config, windowed_base=scaled)


def rotary_blocks(config: Config) -> list[bool]:
    """Whether each block has rotary positions, (L,): as listed in `no_rope_layers`, else all blocks but every
    `no_rope_layer_interval`-th."""
    interval = max(1, whole_number(config, "no_rope_layer_interval", 4))
    listed = config.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(blocks(config))]
    return [bool(one) for one in listed] if isinstance(listed, list) else []


def smollm3(config: Config) -> Derived:
    """Derive SmolLM3's sliding windows and rotary positions. Every fourth block has no rotary positions, and
    may have a window."""
    turned = rotary_blocks(config)
    pattern = ["full" if one else "window" for one in turned]
    fields = rotary(config, base=2e6, pattern=turned)
    return fields | windows(config, pattern=pattern, switch="use_sliding_window")


def granite_factors(config: Config) -> Derived:
    """Derive Granite's factors on token embeddings, attention scores, logits, and the outputs of attention
    and MLP."""
    logits = config.get("logits_scaling", 1.0)
    inverse = 1 / logits if isinstance(logits, int | float) and logits > 0 else logits
    return {
        "embedding_scale": _factor(config, "embedding_multiplier"),
        "attention_scale": _factor(config, "attention_multiplier"),
        "logit_scale": ("logits_scaling", inverse),
        "residual_scale": _factor(config, "residual_multiplier"),
    }


def _factor(config: Config, key: str) -> tuple[str, Any]:
    """Value of a config key as a float if possible, default 1, with the key."""
    value = config.get(key, 1.0)
    with suppress(TypeError, ValueError):  # what is no number is refused with its place
        value = float(value)
    return key, value


def windows_that_rotate(config: Config, *, full_every: int = 0, without: bool = True) -> Derived:
    """Derive sliding windows and rotary positions of EXAONE 4 and Command R7B: blocks with a window have
    rotary positions, every `full_every`-th block has neither. If no block has a window, all blocks rotate or
    none (`without`)."""
    if not full_every:
        interval = whole_number(config, "sliding_window_pattern", 4)
        full_every = min(interval, 1000) if interval > 1 else 4
    fields = windows(config, default=4096, full_every=full_every)
    _, kinds = fields.get("window_pattern", ("", ("window",)))
    return fields | rotary(config, pattern=[kind == "window" for kind in kinds] if fields else [without])


def neox_halves(config: Config) -> Derived:
    """Derive whether GPT-NeoX computes attention and MLP in parallel (the default), and the number of norms
    before them."""
    key = "use_parallel_residual"
    parallel = config.get(key, True)
    return {"parallel_block": (key, parallel), "parallel_norms": (key, 2 if parallel is True else 1)}


def falcon(config: Config) -> Derived:
    """Derive key/value heads, parallel blocks and positions of the Falcon generations. 7B has one norm and
    one key head, 40B and 180B two norms and several key heads, 11B one norm."""
    newer, heads = config.get("new_decoder_architecture", False), config.get("num_attention_heads")
    if newer:
        fields = look_up(config, num_kv_heads=("num_kv_heads", heads))
    else:
        fields = {"num_kv_heads": ("multi_query", 1 if config.get("multi_query", True) else heads)}
    fields |= look_up(config, parallel_block=("parallel_attn", True))
    if fields["parallel_block"][1] is True:
        norms = config.get("num_ln_in_parallel_attn") or (2 if newer else 1)
        fields["parallel_norms"] = ("num_ln_in_parallel_attn", norms)
    if config.get("alibi"):
        return fields | {"positions": ("alibi", "alibi")}
    return fields | {"positions": ("alibi", "rotary")} | rotary(config)


def fields_if_set(config: Config, *, key: str, then: Mapping[str, Any], usual: bool = False) -> Derived:
    """Spec fields `then`, each with the config key `key`, if the config sets that key; else none. `usual`
    is the value of an absent key."""
    return {name: (key, value) for name, value in then.items()} if config.get(key, usual) else {}


def encoder(config: Config, *, types: int = 2, shifted: bool = False) -> Derived:
    """Derive the fields of BERT-like encoders: number of token types, and index of the first position. With
    `shifted` positions start behind the padding's."""
    rows = config.get("type_vocab_size", types) if types else 0  # nonsense is left to the field checks
    first = whole_number(config, "pad_token_id", 1) + 1 if shifted else 0
    return {"encoder": ("type_vocab_size", {"token_types": rows, "first_position": first})}


def stacks(config: Config, *, scales: bool = True) -> Derived:
    """Derive the fields of T5-like models with an encoder and a decoder stack. The number of layers is the
    sum over both stacks. If the family `scales` them, logits of a tied head are divided by the root of the
    width."""
    first = whole_number(config, "num_layers", 0)
    decoder = whole_number(config, "num_decoder_layers", first)
    buckets = whole_number(config, "relative_attention_num_buckets", 32)
    farthest = whole_number(config, "relative_attention_max_distance", 128)
    tied, width = config.get("tie_word_embeddings", True), whole_number(config, "d_model", 0)
    scaled = width**-0.5 if scales and width and config.get("scale_decoder_outputs", tied) else 1.0
    blocks = {"encoder_layers": first, "position_buckets": buckets, "farthest": farthest}
    num_layers = first + decoder if first else config.get("num_layers")
    gated = str(config.get("feed_forward_proj", "relu")).startswith("gated")
    fields: Derived = {"num_layers": ("num_layers", num_layers), "stacks": ("num_decoder_layers", blocks)}
    fields["gated_mlp"] = ("feed_forward_proj", gated)
    return fields | {"logit_scale": ("tie_word_embeddings", scaled)}


def encoder_refusal(config: Config) -> Iterator[str]:
    """Yield reasons why a BERT-like encoder cannot be represented."""
    if (kind := config.get("position_embedding_type") or "absolute") != "absolute":
        yield f"it has positions of its own in attention (`position_embedding_type: {kind}`)"
    if config.get("embedding_size") not in (None, 0, config.get("hidden_size")):
        yield "its embeddings are narrower than its blocks (`embedding_size`)"


def opt_refusal(config: Config) -> Iterator[str]:
    """Yield reasons why an OPT model cannot be represented."""
    if config.get("word_embed_proj_dim") not in (None, 0, config.get("hidden_size")):
        yield "its embeddings are narrower than its blocks (`word_embed_proj_dim`)"
    if config.get("do_layer_norm_before") is False:
        yield "it normalises after each block (`do_layer_norm_before: false`)"


def routing(config: Config, *, normalized: bool) -> Derived:
    """Derive whether routing weights are normalized, and the load-balance coefficient; `normalized` is the
    family's default."""
    key = "aux_loss_alpha" if "aux_loss_alpha" in config else "router_aux_loss_coef"
    return look_up(config, normalized_routing=("norm_topk_prob", normalized), load_balance=(key, 0.001))


def mixtures(key: str, layers: int, expert_layers: Iterable[int]) -> Derived:
    """Spec fields for the number of blocks with experts and, unless these are the last blocks, for their
    indices."""
    numbers = sorted(set(expert_layers))
    last = numbers == list(range(layers - len(numbers), layers))
    return {"num_moe_layers": (key, len(numbers))} | ({} if last else {"moe_layers": (key, numbers)})


def blocks(config: Config) -> int:
    """Number of blocks that a config states, at most `MAX_LAYERS`; 0 if invalid."""
    return min(whole_number(config, "num_hidden_layers", 0), MAX_LAYERS)


def periodic_experts(config: Config) -> Derived:
    """Derive which blocks have experts: every `decoder_sparse_step`-th block except those in
    `mlp_only_layers`."""
    step, layers = max(1, whole_number(config, "decoder_sparse_step", 1)), blocks(config)
    listed = config.get("mlp_only_layers")
    dense = set(listed) if isinstance(listed, list) and all(isinstance(i, int) for i in listed) else set()
    expert_layers = [index for index in range(step - 1, layers, step) if index not in dense]
    return mixtures("decoder_sparse_step", layers, expert_layers) | routing(config, normalized=False)


def experts_after_dense(config: Config) -> Derived:
    """Derive which blocks have experts in DeepSeek-like models: every `moe_layer_freq`-th block after the
    first dense ones. Shared experts are as wide as routed ones."""
    layers, first = blocks(config), whole_number(config, "first_k_dense_replace", 0)
    interval = max(1, whole_number(config, "moe_layer_freq", 1))
    width = whole_number(config, "moe_intermediate_size", 0)
    expert_layers = [index for index in range(0, layers, interval) if index >= first]
    listed = config.get("mlp_layer_types")
    if isinstance(listed, list):
        expert_layers = [index for index, kind in enumerate(listed[:layers]) if kind == "sparse"]
    shared = whole_number(config, "n_shared_experts", 0)
    fields = mixtures("first_k_dense_replace", layers, expert_layers)
    fields |= {"shared_expert_ffn_hidden_size": ("n_shared_experts", shared * width)}
    return fields | look_up(config, routing_scale=("routed_scaling_factor", 1.0))


def groups(config: Config, *, scored_by: str) -> Derived:
    """Derive the groups of experts to which a token's routing is limited; empty if the config has no limit."""
    count, per_token = config.get("n_group"), config.get("topk_group")
    if config.get("topk_method") == "greedy" or count in (None, 1) or count == per_token:
        return {}
    return {"expert_groups": ("n_group", {"count": count, "per_token": per_token, "scored_by": scored_by})}


def deepseek(config: Config) -> Derived:
    """Derive DeepSeek's latent attention, router scores and expert groups. A head's width is the sum of its
    parts with and without rotary positions."""
    width = whole_number(config, "qk_nope_head_dim", 0) + whole_number(config, "qk_rope_head_dim", 0)
    third = config.get("model_type") != "deepseek_v2"
    latent: dict[str, Any] = {"kv_rank": config.get("kv_lora_rank"), "query_rank": config.get("q_lora_rank")}
    latent |= {"position_dim": config.get("qk_rope_head_dim"), "value_dim": config.get("v_head_dim")}
    fields: Derived = {"head_dim": ("qk_nope_head_dim", width), "latent_attention": ("kv_lora_rank", latent)}
    fields |= look_up(config, router_scores=("scoring_func", "sigmoid" if third else "softmax"))
    if (kept_tokens := config.get("index_topk")) is not None:
        latent["indexer"] = {"heads": config.get("index_n_heads"), "head_dim": config.get("index_head_dim")}
        fields |= {"attention_window": ("index_topk", kept_tokens), "window_kind": ("index_topk", "picked")}
    fields |= groups(config, scored_by="two best" if third else "best")
    return fields | routing(config, normalized=third)


def indexer_refusal(config: Config) -> Iterator[str]:
    """Yield the reason why a model with shared sparse-attention indexers cannot be represented."""
    kinds = config.get("indexer_types")
    if (isinstance(kinds, list) and "shared" in kinds) or whole_number(config, "index_topk_freq", 1) > 1:
        yield "some of its blocks attend to what an indexer before them picked (`indexer_types`)"


def jamba(config: Config) -> Derived:
    """Derive which blocks of Jamba have attention and which have experts, each at a regular period from an
    offset."""
    layers = blocks(config)

    def periodic_blocks(name: str, default_period: int, default_offset: int) -> range:
        """Indices of the blocks that have the feature `name`: one in every period, from an offset on."""
        period = max(1, whole_number(config, f"{name}_period", default_period))
        return range(whole_number(config, f"{name}_offset", default_offset), layers, period)

    attends = periodic_blocks("attn_layer", 8, 4)
    kinds = ["attention" if layer in attends else "recurrence" for layer in range(layers)]
    fields: Derived = {"mixers": ("attn_layer_period", shortest_round(kinds))}
    if whole_number(config, "num_experts", 16) < 2:
        return fields
    experts = mixtures("expert_layer_period", layers, periodic_blocks("expert_layer", 2, 1))
    fields |= look_up(config, num_experts=("num_experts", 16), experts_per_token=("num_experts_per_tok", 2))
    return fields | experts | routing(config, normalized=False)


def llama4(config: Config) -> Derived:
    """Derive experts, windows and rotary positions of Llama 4. Dense blocks have a separate width; blocks
    without a window have no rotary positions."""
    layers, step = blocks(config), max(1, whole_number(config, "interleave_moe_layer_step", 1))
    written, turned = config.get("moe_layers"), rotary_blocks(config)
    listed = [one for one in written if isinstance(one, int)] if isinstance(written, list) else None
    expert_layers = range(step - 1, layers, step) if listed is None else listed
    pattern = ["window" if one else "full" for one in turned]
    fields = mixtures("interleave_moe_layer_step", layers, expert_layers)
    fields |= windows(config, key="attention_chunk_size", default=8192, pattern=pattern)
    fields |= rotary(config, base=500_000.0, pattern=turned)
    shared = {"shared_expert_ffn_hidden_size": ("intermediate_size", None)}
    return fields | look_up(config, load_balance=("router_aux_loss_coef", 0.001), **shared)


def mellum(config: Config) -> Derived:
    """Derive sliding windows and rotary positions of Mellum; blocks with a window have another rotary base."""
    fields = windows(config, default=1024)
    windowed = ("rope_local_base_freq", 10_000.0) if fields else None
    return fields | rotary(config, base=500_000.0, windowed_base=windowed)


def ernie(config: Config) -> Derived:
    """Derive which blocks of ERNIE 4.5 have experts, at a regular interval between two block indices. Shared
    experts are as wide as routed ones."""
    layers, first = blocks(config), whole_number(config, "moe_layer_start_index", 1)
    last, step = config.get("moe_layer_end_index", -1), max(1, whole_number(config, "moe_layer_interval", 1))
    end = layers - 1 if not isinstance(last, int) or last < 0 else last
    expert_layers = [index for index in range(first, min(end, layers - 1) + 1) if (index + 1) % step == 0]
    width = whole_number(config, "moe_intermediate_size", 0)
    shared = whole_number(config, "moe_num_shared_experts", 0)
    fields = mixtures("moe_layer_start_index", layers, expert_layers)
    fields |= look_up(config, load_balance=("router_aux_loss_coef", 0.001))
    fields |= {"shared_expert_ffn_hidden_size": ("moe_num_shared_experts", shared * width)}
    return fields | look_up(config, head_bias=("use_bias", False))


def hunyuan(config: Config) -> Derived:
    """Derive the experts of Hunyuan, with one shared expert of the width `intermediate_size`. Numbers may be
    listed block by block."""
    fields: Derived = {"num_experts": ("num_experts", _common_count(config, "num_experts"))}
    fields |= {"experts_per_token": ("moe_topk", _common_count(config, "moe_topk"))}
    return fields | look_up(config, shared_expert_ffn_hidden_size=("intermediate_size", None))


def _common_count(config: Config, key: str) -> Any:
    """Value of a config key for all blocks: a number, or the first of a list with a number per block."""
    written = config.get(key)
    return written[0] if isinstance(written, list) and written else written


def hunyuan_refusal(config: Config) -> Iterator[str]:
    """Yield reasons why a Hunyuan model cannot be represented, such as blocks that differ."""
    for key in ("num_experts", "moe_topk", "moe_intermediate_size", "num_shared_expert"):
        written = config.get(key)
        if isinstance(written, list) and any(one != written[0] for one in written):
            yield f"its blocks differ in `{key}`"
    if _common_count(config, "num_shared_expert") not in (None, 1):
        yield "it has several shared experts (`num_shared_expert`)"
    if _common_count(config, "moe_intermediate_size") not in (None, config.get("intermediate_size")):
        yield "its experts are not as wide as `intermediate_size`"


def dots_windows(config: Config) -> Derived:
    """Derive the sliding windows of dots.llm1, which apply from block `max_window_layers` on."""
    return last_blocks(config, switch="") if config.get("sliding_window", 4096) else {}


_MIXERS = dict.fromkeys(("linear_attention", "conv", "mamba", "M"), "recurrence")
_MIXERS |= dict.fromkeys(("full_attention", "attention", "*"), "attention")
_MIXERS |= dict.fromkeys(("mlp", "-", "moe", "E"), "none")
"""Mixer of a block (attention, recurrence or none) by the config's word, or letter of `hybrid_override_pattern`."""
_EXPERTS = ("moe", "E")
_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern")


def listed(config: Config) -> tuple[str, list[str]]:
    """Config key of a hybrid model that lists the type of each block, with the listed words; no words if
    there is no such key."""
    for key in _LISTS:
        value = config.get(key)
        if isinstance(value, str | list) and value:
            return key, [str(word) for word in value][: MAX_LAYERS + 1]
    return _LISTS[0], []


def hybrid_refusal(config: Config) -> Iterator[str]:
    """Yield the reason why a hybrid model's list of block types cannot be represented, if it cannot."""
    key, words = listed(config)
    if unknown := [word for word in words if word not in _MIXERS]:
        yield f"it has blocks of `{unknown[0][:60]}` (`{key}`)"


def mixers(config: Config, *, full_every: int = 0, attention_at: str = "") -> Derived:
    """Derive the spec field `mixers`, which says for each block whether attention or a recurrence mixes
    tokens. Sources are the list of block types, else the block indices under the key `attention_at`, else
    `full_attention_interval` (every so many-th block has attention)."""
    key, words = listed(config)
    kinds = [_MIXERS[word] for word in words]
    if not kinds and attention_at:
        key, attends = attention_at, config.get(attention_at) or []
        kinds = ["attention" if layer in attends else "recurrence" for layer in range(blocks(config))]
    if not kinds:
        key = "full_attention_interval"
        interval = min(max(1, whole_number(config, key, full_every)), MAX_LAYERS)
        kinds = ["recurrence"] * (interval - 1) + ["attention"]
    return {"mixers": (key, shortest_round(kinds))}


def recurrence(config: Config, *, kind: str, width: str = "", **keys: Sequence[Any]) -> Derived:
    """Derive the spec field `recurrence` (shape of the recurrent mixer). Each of its fields is given as a
    config key with the default for an absent key.

    A missing width of heads is the total width (`width`, or `mamba_expand` times the model's) divided by the heads.

    In mamba1 the value of `heads` is the number of channels as a multiple of the model's width.
    """
    fields = {name: usual if config.get(key) is None else config[key] for name, (key, usual) in keys.items()}
    hidden = whole_number(config, "hidden_size", 0)
    if kind == "mamba1":
        fields["heads"] = int(fields["heads"] * hidden) if isinstance(fields["heads"], int | float) else None
        fields["step_rank"] = -(-hidden // 16) if fields["step_rank"] == "auto" else fields["step_rank"]
    heads = fields["heads"]
    if fields.get("head_dim") in (None, "auto") and isinstance(heads, int) and heads > 0:
        total_width = whole_number(config, width, 0) if width else 0
        fields["head_dim"] = (total_width or whole_number(config, "mamba_expand", 2) * hidden) // heads
    if kind == "lightning":
        fields |= {"state_dim": fields["head_dim"], "conv_width": 0}
    return {"recurrence": (str(keys["heads"][0]), {"kind": kind, **fields})}


def limited_steps(config: Config) -> tuple[str, ...]:
    """Phrase for finite limits on Mamba-2's step sizes, which no published model has; empty without limits."""
    limits = config.get("time_step_limit")
    numbers = [one for one in limits if isinstance(one, float)] if isinstance(limits, list) else []
    return ("limits of step sizes",) if any(0 < one < inf for one in numbers) else ()


def nemotron_h(config: Config) -> Derived:
    """Derive blocks and experts of Nemotron-H. Every block is attention, a recurrence or an MLP alone;
    experts have no gates."""
    key, words = listed(config)
    fields: Derived = {"num_layers": (key, len(words)), "mixers": (key, [_MIXERS[word] for word in words])}
    experts = [layer for layer, word in enumerate(words) if word in _EXPERTS]
    if not experts:
        return fields
    width = "moe_shared_expert_intermediate_size"
    shared = config.get(width) if whole_number(config, "n_shared_experts", 1) else 0
    fields |= experts_after_dense(config) | mixtures(key, len(words), experts)
    fields |= routing(config, normalized=True)
    per_token, width_of_expert = ("num_experts_per_tok", None), ("moe_intermediate_size", None)
    sizes = {"experts_per_token": per_token, "moe_ffn_hidden_size": width_of_expert}
    fields |= look_up(config, num_experts=("n_routed_experts", None), **sizes)
    fields |= {"moe_layers": (key, experts), "routing_bias": (key, True)}
    return fields | {"shared_expert_ffn_hidden_size": (width, shared)}


def kimi(config: Config) -> Derived:
    """Derive mixers and recurrence of Kimi Linear. `linear_attn_config` numbers the blocks with attention
    from 1."""
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


def granite_hybrid(config: Config) -> Derived:
    """Derive positions and experts of hybrid Granite 4 models. Without routed experts the shared expert is
    the MLP."""
    width = "shared_intermediate_size"
    shared, experts = config.get(width, 1024), config.get("num_local_experts", 8)
    turns = config.get("position_embedding_type") == "rope"
    fields: Derived = {"positions": ("position_embedding_type", "rotary" if turns else "none")}
    if not experts:
        return fields | {"ffn_hidden_size": (width, shared)}
    fields |= routing(config, normalized=True) | {"num_experts": ("num_local_experts", experts)}
    fields |= look_up(config, experts_per_token=("num_experts_per_tok", 2))
    return fields | {"shared_expert_ffn_hidden_size": (width, shared)}


def mamba(config: Config) -> Derived:
    """Spec field for Mamba's number of heads, which is 1, as no block has attention."""
    return {"num_heads": ("hidden_size", 1)}


def lfm2(config: Config) -> Derived:
    """Derive mixers and MLP width of LFM2. Blocks without attention are convolutions; dense blocks have a
    rounded MLP width."""
    fields: Derived = {}
    if config.get("layer_types") or config.get("full_attn_idxs"):
        fields = mixers(config, attention_at="full_attn_idxs")
    if "recurrence" in fields.get("mixers", ("", ()))[1]:
        shape = {"heads": config.get("hidden_size"), "conv_width": config.get("conv_L_cache", 3)}
        shape |= dict.fromkeys(("conv_bias", "bias"), config.get("conv_bias", False))
        fields["recurrence"] = ("conv_L_cache", {"kind": "convolution", **shape})
    if config.get("model_type") != "lfm2":
        return fields
    width = whole_number(config, "block_ff_dim", whole_number(config, "intermediate_size", 12_288))
    if config.get("block_auto_adjust_ff_dim", True):
        times, multiple = config.get("block_ffn_dim_multiplier", 1.0), config.get("block_multiple_of", 256)
        width = int(2 * width / 3)
        if isinstance(times, int | float) and isinstance(multiple, int) and multiple > 0:
            width = -(-int(times * width) // multiple) * multiple
    return fields | {"ffn_hidden_size": ("intermediate_size", width)}
