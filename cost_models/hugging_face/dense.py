"""Fields that dense families of Hugging Face state in their own terms: positions, windows, scales, parallel halves.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.hugging_face.rotary import rotary
from cost_models.hugging_face.windows import Config, Derived, whole_number, windows


def _gemma_scale(config: Config) -> Derived:
    """Derive the factor on Gemma's embedded tokens, the square root of the hidden size."""
    hidden = whole_number(config, "hidden_size", 0)
    return {"embedding_scale": ("hidden_size", hidden**0.5)} if hidden else {}


def _score_scale(config: Config) -> Derived:
    """Derive the factor on attention scores from `query_pre_attn_scalar`, as one over its square root."""
    scalar = config.get("query_pre_attn_scalar", 256)
    if scalar == config.get("head_dim", 256) or not isinstance(scalar, int | float) or scalar <= 0:
        return {}
    return {"attention_scale": ("query_pre_attn_scalar", float(scalar) ** -0.5)}


def _gemma3(config: Config) -> Derived:
    rounds = max(2, whole_number(config, "sliding_window_pattern", 6))
    return {
        **_gemma_scale(config),
        **_score_scale(config),
        **windows(config, default=4096, full_every=min(rounds, 1000)),
        **rotary(config, base=1e6, windowed_base=("rope_local_base_freq", 10_000.0)),
    }


def _olmo3(config: Config) -> Derived:
    """Derive OLMo 3's windows and rotary positions. Blocks with a window have unscaled rotary positions, whatever
    the scaling in the others."""
    base = config.get("rope_theta", 10_000.0)
    scaled = ("", base) if config.get("rope_scaling") else None
    return windows(config, default=4096, full_every=4) | rotary(config, windowed_base=scaled)


def _smollm3(config: Config) -> Derived:
    """Derive SmolLM3's windows and rotary positions. Every fourth block has no rotary positions, and may have a
    window."""
    layers = min(whole_number(config, "num_hidden_layers", 0), MAX_LAYERS)
    interval = max(1, whole_number(config, "no_rope_layer_interval", 4))
    listed = config.get("no_rope_layers") or [(index + 1) % interval != 0 for index in range(layers)]
    turned = [bool(one) for one in listed] if isinstance(listed, list) else []
    fields = rotary(config, base=2e6, pattern=turned)
    if config.get("use_sliding_window") is True:
        fields |= windows(config, pattern=["full" if one else "window" for one in turned])
    return fields


def multiplied(config: Config) -> Derived:
    """Derive Granite's factors on embedded tokens, attention scores, logits, and the output of each half of a
    block."""
    logits = config.get("logits_scaling", 1.0)
    inverse = 1 / logits if isinstance(logits, int | float) and logits > 0 else logits
    return {
        "embedding_scale": ("embedding_multiplier", float(config.get("embedding_multiplier", 1.0))),
        "attention_scale": ("attention_multiplier", float(config.get("attention_multiplier", 1.0))),
        "logit_scale": ("logits_scaling", inverse),
        "residual_scale": ("residual_multiplier", float(config.get("residual_multiplier", 1.0))),
    }


def _exaone4(config: Config) -> Derived:
    """Derive EXAONE 4's windows and rotary positions. Blocks with a window turn, those without do not; where
    there is no window all turn."""
    interval = config.get("sliding_window_pattern", 4)
    rounds = interval if isinstance(interval, int) and not isinstance(interval, bool) and interval > 1 else 4
    window = config.get("sliding_window", 4096)
    fields = windows(config, default=4096, full_every=min(rounds, 1000))
    if window is None or not fields:
        return rotary(config)
    _, kinds = fields.get("window_pattern", ("", ("window",)))
    return fields | rotary(config, pattern=[kind == "window" for kind in kinds])


def _gptj(config: Config) -> Derived:
    """Derive GPT-J's rotary positions, which turn `rotary_dim` numbers of a head, or all if the key is null."""
    return rotary(config, dim=config.get("rotary_dim", 64))


def _neox_halves(config: Config) -> Derived:
    """Derive whether GPT-NeoX computes attention and MLP in parallel, each with a separate norm, which is the
    default."""
    key = "use_parallel_residual"
    parallel = config.get(key, True)
    return {"parallel_block": (key, parallel), "parallel_norms": (key, 2 if parallel is True else 1)}


def _falcon(config: Config) -> Derived:
    """Derive key/value heads, parallel blocks and positions of the Falcon generations. 7B has one norm and one
    key head, 40B and 180B two norms and some key heads, 11B one norm."""
    newer = config.get("new_decoder_architecture", False)
    heads = config.get("num_attention_heads")
    if newer:
        kv_heads = ("num_kv_heads", config.get("num_kv_heads", heads))
    else:
        kv_heads = ("multi_query", 1 if config.get("multi_query", True) else heads)
    fields: dict[str, tuple[str, Any]] = {"num_kv_heads": kv_heads}
    fields["parallel_block"] = ("parallel_attn", config.get("parallel_attn", True))
    if fields["parallel_block"][1] is True:
        norms = config.get("num_ln_in_parallel_attn") or (2 if newer else 1)
        fields["parallel_norms"] = ("num_ln_in_parallel_attn", norms)
    if config.get("alibi"):
        return fields | {"positions": ("alibi", "alibi")}
    return fields | {"positions": ("alibi", "rotary")} | rotary(config)


def _qk_norms(config: Config, *, key: str) -> Derived:
    """Derive norms over queries and keys of all heads together. They are priced, but the executor has none like
    them."""
    return {"qk_norm": (key, True), "qk_norm_over": (key, "all")} if config.get(key) else {}


def _multi_query(config: Config) -> Derived:
    """Derive one key/value head for all queries (multi-query attention), unless the config says otherwise."""
    return {"num_kv_heads": ("multi_query", 1)} if config.get("multi_query", True) else {}


def _post_norms(config: Config, *, key: str) -> Derived:
    """Derive norms both before and after attention and MLP, unless the config says otherwise."""
    return {"norm_placement": (key, "around" if config.get(key, True) else "before")}


def _alternating(config: Config) -> Derived:
    """Derive Command R7B's windows and rotary positions. Three blocks with a window and rotary positions, then
    one with neither."""
    fields = windows(config, default=4096, full_every=4)
    _, pattern = fields.get("window_pattern", ("", ("window",)))
    turned = [kind == "window" for kind in pattern] if fields else [False]
    return fields | rotary(config, pattern=turned)


def _encoder(config: Config, *, types: int = 2, shifted: bool = False) -> Derived:
    """Derive the fields of BERT-like encoders, with the number of token types and the first position index.
    Positions begin behind that of padding where `shifted`."""
    rows = config.get("type_vocab_size", types) if types else 0  # nonsense is left to the field checks
    first = whole_number(config, "pad_token_id", 1) + 1 if shifted else 0
    return {"encoder": ("type_vocab_size", {"token_types": rows, "first_position": first})}


def _stacks(config: Config, *, scales: bool = True) -> Derived:
    """Derive the fields of T5-like models with an encoder and a decoder stack. Blocks of both stacks are counted
    one after the other; logits of a tied head are scaled by the root of their width, where the family `scales`
    them."""
    first = whole_number(config, "num_layers", 0)
    decoder = whole_number(config, "num_decoder_layers", first)
    buckets = whole_number(config, "relative_attention_num_buckets", 32)
    farthest = whole_number(config, "relative_attention_max_distance", 128)
    tied, width = config.get("tie_word_embeddings", True), whole_number(config, "d_model", 0)
    scaled = width**-0.5 if scales and width and config.get("scale_decoder_outputs", tied) else 1.0
    blocks = {"encoder_layers": first, "position_buckets": buckets, "farthest": farthest}
    return {
        "num_layers": ("num_layers", first + decoder if first else config.get("num_layers")),
        "stacks": ("num_decoder_layers", blocks),
        "gated_mlp": ("feed_forward_proj", str(config.get("feed_forward_proj", "relu")).startswith("gated")),
        "logit_scale": ("tie_word_embeddings", scaled),
    }


def encoder_refusal(config: Config) -> str | None:
    if config.get("is_decoder"):
        return "it is a decoder (`is_decoder`), of which its family has no weights"
    if (kind := config.get("position_embedding_type") or "absolute") != "absolute":
        return f"it has positions of its own in attention (`position_embedding_type: {kind}`)"
    if config.get("embedding_size") not in (None, 0, config.get("hidden_size")):
        return "its embeddings are narrower than its blocks (`embedding_size`)"
    if config.get("sinusoidal_pos_embds"):
        return "its positions are not learned (`sinusoidal_pos_embds`)"
    if config.get("use_task_id"):
        return "it has a table of tasks (`use_task_id`)"
    return None


def opt_refusal(config: Config) -> str | None:
    if config.get("word_embed_proj_dim") not in (None, 0, config.get("hidden_size")):
        return "its embeddings are narrower than its blocks (`word_embed_proj_dim`)"
    if config.get("do_layer_norm_before") is False:
        return "it normalises after each block (`do_layer_norm_before: false`)"
    return None


DERIVATIONS: dict[str, Callable[..., Derived]] = {
    "gemma_scale": _gemma_scale,
    "score_scale": _score_scale,
    "gemma3": _gemma3,
    "olmo3": _olmo3,
    "smollm3": _smollm3,
    "multiplied": multiplied,
    "exaone4": _exaone4,
    "gptj": _gptj,
    "neox_halves": _neox_halves,
    "falcon": _falcon,
    "qk_norms": _qk_norms,
    "alternating": _alternating,
    "multi_query": _multi_query,
    "encoder": _encoder,
    "stacks": _stacks,
    "post_norms": _post_norms,
}
"""Name in the table → function."""
