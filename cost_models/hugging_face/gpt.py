"""Dense families in the manner of GPT: layer norms, biases or none, and blocks whose halves run side by side.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from cost_models.hugging_face.families import (
    LLAMA_OPTIONAL,
    LLAMA_SIZES,
    Config,
    Family,
    combined,
    norms_by,
    without,
)
from cost_models.hugging_face.rotary import rotary
from cost_models.hugging_face.windows import Derived, every, windows

_GPT_FACTS = {"gated_mlp": False, "norm": "layernorm"}
_SPLIT_NORMS = "norms of every query and key head with gains of its own"


def _opt_refusal(config: Config) -> str | None:
    if config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size"):
        return "its embeddings are narrower than its blocks (`word_embed_proj_dim`)"
    if config.get("do_layer_norm_before") is False:
        return "it normalises after each block (`do_layer_norm_before: false`)"
    return None


def _gptj(config: Config) -> Derived:
    """Rotary positions over `rotary_dim` numbers of a head; null: all."""
    return rotary(config, dim=config.get("rotary_dim", 64))


def _neox_halves(config: Config) -> Derived:
    """Parallel attention and MLP, each with its norm, unless the config says otherwise."""
    key = "use_parallel_residual"
    parallel = config.get(key, True)
    return {"parallel_block": (key, parallel), "parallel_norms": (key, 2 if parallel is True else 1)}


def _falcon(config: Config) -> Derived:
    """Falcon's generations: 7B (one norm, one key head), 40B and 180B (two norms, some key heads), 11B (one norm)."""
    newer = config.get("new_decoder_architecture", False)
    heads = config.get("num_attention_heads")
    if newer:
        kv_heads = ("num_kv_heads", config.get("num_kv_heads", heads))
    else:
        kv_heads = ("multi_query", 1 if config.get("multi_query", True) else heads)
    found: dict[str, tuple[str, Any]] = {"num_kv_heads": kv_heads}
    found["parallel_block"] = ("parallel_attn", config.get("parallel_attn", True))
    if found["parallel_block"][1] is True:
        norms = config.get("num_ln_in_parallel_attn") or (2 if newer else 1)
        found["parallel_norms"] = ("num_ln_in_parallel_attn", norms)
    if config.get("alibi"):
        return found | {"positions": ("alibi", "alibi")}
    return found | {"positions": ("alibi", "rotary")} | rotary(config)


def _qk_norms(key: str, config: Config) -> Derived:
    """Norms over queries and keys; they are priced, but the executor has none like them."""
    return {"qk_norm": (key, True), "qk_norm_over": (key, "all")} if config.get(key) else {}


def _alternating(config: Config) -> Derived:
    """Command R7B: three blocks with a window and rotary positions, then one with neither."""
    found = windows(config, default=4096, pattern=every(4))
    _, pattern = found.get("window_pattern", ("", ("window",)))
    turned = [kind == "window" for kind in pattern] if found else [False]
    return found | rotary(config, pattern=turned)


_COHERE: dict[str, Any] = {
    "sizes": LLAMA_SIZES,
    "facts": _GPT_FACTS
    | {
        "gated_mlp": True,
        "norm_bias": False,
        "positions": "rotary",
        "parallel_block": True,
        "mlp_bias": False,
    },
    "optional": LLAMA_OPTIONAL
    | norms_by("layer_norm_eps", 1e-5)
    | {
        "tied_embeddings": ("tie_word_embeddings", True),
        "attention_bias": ("attention_bias", False),
        "logit_scale": ("logit_scale", 0.0625),
    },
}

GPT_FAMILIES: Mapping[str, Family] = {
    "gpt2": Family(
        sizes={
            "num_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_heads": "n_head",
            "vocab_size": "vocab_size",
            "max_positions": "n_positions",
        },
        facts=_GPT_FACTS | {"positions": "learned", "attention_bias": True, "mlp_bias": True},
        optional=norms_by("layer_norm_epsilon", 1e-5)
        | {"ffn_hidden_size": ("n_inner", None), "tied_embeddings": ("tie_word_embeddings", True)},
        activation=("activation_function", "gelu_new"),
    ),
    "gptj": Family(
        sizes={
            "num_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_heads": "n_head",
            "vocab_size": "vocab_size",
        },
        facts=_GPT_FACTS
        | {"positions": "rotary", "attention_bias": False, "mlp_bias": True}
        | {"parallel_block": True, "head_bias": True},
        optional=norms_by("layer_norm_epsilon", 1e-5)
        | {
            "ffn_hidden_size": ("n_inner", None),
            "max_positions": ("n_positions", None),
            "tied_embeddings": ("tie_word_embeddings", False),
        },
        activation=("activation_function", "gelu_new"),
        derive=_gptj,
    ),
    "gpt_neox": Family(
        sizes=LLAMA_SIZES,
        facts=_GPT_FACTS | {"positions": "rotary", "mlp_bias": True},
        optional=norms_by("layer_norm_eps", 1e-5)
        | {
            "max_positions": ("max_position_embeddings", None),
            "tied_embeddings": ("tie_word_embeddings", False),
            "attention_bias": ("attention_bias", True),
        },
        activation=("hidden_act", "gelu"),
        derive=combined(partial(rotary, base_key="rotary_emb_base", part=("rotary_pct", 0.25)), _neox_halves),
    ),
    "phi": Family(
        sizes=LLAMA_SIZES,
        facts=_GPT_FACTS
        | {"positions": "rotary", "attention_bias": True, "mlp_bias": True}
        | {"parallel_block": True, "head_bias": True},
        optional=without(LLAMA_OPTIONAL, "head_dim") | norms_by("layer_norm_eps", 1e-5),
        activation=("hidden_act", "gelu_new"),
        derive=partial(rotary, part=("partial_rotary_factor", 0.5)),
        refuse=lambda config: (
            "it has layer norms of queries and keys (`qk_layernorm`)" if config.get("qk_layernorm") else None
        ),
    ),
    "falcon": Family(
        sizes=without(LLAMA_SIZES, "ffn_hidden_size"),
        facts=_GPT_FACTS,
        optional=norms_by("layer_norm_epsilon", 1e-5)
        | {
            "ffn_hidden_size": ("ffn_hidden_size", None),
            "max_positions": ("max_position_embeddings", None),
            "tied_embeddings": ("tie_word_embeddings", True),
            "attention_bias": ("bias", False),
            "mlp_bias": ("bias", False),
        },
        activation=("activation", "gelu"),
        derive=_falcon,
        left_out=lambda config: (
            ("ALiBi slopes divided by the root of a head's width",) if config.get("alibi") else ()
        ),
    ),
    "cohere": Family(
        derive=combined(rotary, partial(_qk_norms, "use_qk_norm")),
        left_out=lambda config: (_SPLIT_NORMS,) if config.get("use_qk_norm") else (),
        **_COHERE,
    ),
    "cohere2": Family(derive=_alternating, **_COHERE),
    "stablelm": Family(
        sizes=LLAMA_SIZES,
        facts=_GPT_FACTS
        | {"gated_mlp": True, "positions": "rotary", "attention_output_bias": False, "mlp_bias": False},
        optional=without(LLAMA_OPTIONAL, "head_dim")
        | norms_by("layer_norm_eps", 1e-5)
        | {
            "attention_bias": ("use_qkv_bias", False),
            "parallel_block": ("use_parallel_residual", False),
        },
        derive=combined(
            partial(rotary, part=("partial_rotary_factor", 0.25)), partial(_qk_norms, "qk_layernorm")
        ),
        left_out=lambda config: (_SPLIT_NORMS,) if config.get("qk_layernorm") else (),
    ),
    "starcoder2": Family(
        sizes=LLAMA_SIZES,
        facts=_GPT_FACTS | {"positions": "rotary"},
        optional=LLAMA_OPTIONAL
        | norms_by("norm_epsilon", 1e-5)
        | {
            "tied_embeddings": ("tie_word_embeddings", True),
            "attention_bias": ("use_bias", True),
            "mlp_bias": ("use_bias", True),
        },
        activation=("hidden_act", "gelu_pytorch_tanh"),
        derive=combined(windows, rotary),
    ),
    "opt": Family(
        sizes=without(LLAMA_SIZES, "ffn_hidden_size")
        | {"ffn_hidden_size": "ffn_dim", "max_positions": "max_position_embeddings"},
        facts=_GPT_FACTS | {"positions": "learned"},
        optional={
            "tied_embeddings": ("tie_word_embeddings", True),
            "attention_bias": ("enable_bias", True),
            "mlp_bias": ("enable_bias", True),
        },
        activation=("activation_function", "relu"),
        refuse=_opt_refusal,
        simplify=lambda config: "two spare rows of the position table left out",
    ),
    "bloom": Family(
        sizes={
            "num_layers": "n_layer",
            "hidden_size": "hidden_size",
            "num_heads": "n_head",
            "vocab_size": "vocab_size",
        },
        facts=_GPT_FACTS
        | {"positions": "alibi", "attention_bias": True, "mlp_bias": True, "embedding_norm": True},
        optional=norms_by("layer_norm_epsilon", 1e-5)
        | {"tied_embeddings": ("tie_word_embeddings", True), "max_positions": ("seq_length", None)},
        activation=("hidden_act", "gelu_pytorch_tanh"),
        refuse=lambda config: (
            "its residual stream is what norms return (`apply_residual_connection_post_layernorm`)"
            if config.get("apply_residual_connection_post_layernorm")
            else None
        ),
    ),
}
"""`model_type` → family."""
