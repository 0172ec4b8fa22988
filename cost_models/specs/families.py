"""What each Hugging Face `model_type` calls its sizes, and what its code fixes where the config is silent.

Read from the configuration and modelling files of `transformers` 4.57.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.specs.config_windows import Derived, last_blocks, windows

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one `model_type` is written down and what its code fixes."""

    sizes: Mapping[str, str]
    """Field → the config's key, without which the model is unknown."""
    facts: Mapping[str, Any]
    """Field → what the architecture always is."""
    optional: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """Field → the config's key, and the value where it is absent (None: as our own default)."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """Key of the activation and its value where absent."""
    needed: tuple[str, ...] = ()
    """Keys without which the model is unknown, besides those of `sizes`."""
    derive: Callable[[Config], Derived] = lambda config: {}
    """What a config says in other terms than ours."""
    refuse: Callable[[Config], str | None] = lambda config: None
    """A reason why this config cannot be represented, or None."""
    left_out: Callable[[Config], tuple[str, ...]] = lambda config: ()
    """What the model computes that our blocks do not, a few words each: it is priced without and never trained."""
    simplify: Callable[[Config], str | None] = lambda config: None
    """What else is left out, without which it is the same model, or None."""


LLAMA_SIZES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "ffn_hidden_size": "intermediate_size",
    "vocab_size": "vocab_size",
}
LLAMA_FACTS = {
    "gated_mlp": True,
    "norm": "rmsnorm",
    "positions": "rotary",
    "attention_bias": False,
    "attention_output_bias": False,
    "mlp_bias": False,
}
LLAMA_OPTIONAL = {
    "num_kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "max_positions": ("max_position_embeddings", None),
    "tied_embeddings": ("tie_word_embeddings", False),
}
_GPT_FACTS = {"gated_mlp": False, "norm": "layernorm"}


def without(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The facts but for some."""
    return {name: value for name, value in facts.items() if name not in names}


def _opt_refusal(config: Config) -> str | None:
    if config.get("word_embed_proj_dim", config.get("hidden_size")) != config.get("hidden_size"):
        return "its embeddings are narrower than its blocks (`word_embed_proj_dim`)"
    if config.get("do_layer_norm_before") is False:
        return "it normalises after each block (`do_layer_norm_before: false`)"
    return None


def _parallel_residual(key: str, default: bool) -> Callable[[Config], str | None]:
    def simplify(config: Config) -> str | None:
        return (
            f"attention before MLP, each with its norm (`{key}` is not costed)"
            if config.get(key, default)
            else None
        )

    return simplify


FAMILIES: dict[str, Family] = {
    "llama": Family(
        sizes=LLAMA_SIZES,
        facts=without(LLAMA_FACTS, "attention_bias", "attention_output_bias", "mlp_bias"),
        optional=LLAMA_OPTIONAL
        | {"attention_bias": ("attention_bias", False), "mlp_bias": ("mlp_bias", False)},
    ),
    "mistral": Family(
        sizes=LLAMA_SIZES,
        facts=LLAMA_FACTS,
        optional=LLAMA_OPTIONAL,
        derive=lambda config: windows(config, default=4096),
    ),
    "phi3": Family(sizes=LLAMA_SIZES, facts=LLAMA_FACTS, optional=LLAMA_OPTIONAL, derive=windows),
    "qwen2": Family(
        sizes=LLAMA_SIZES,
        facts=LLAMA_FACTS | {"attention_bias": True},
        optional=LLAMA_OPTIONAL,
        derive=last_blocks,
    ),
    "qwen3": Family(
        sizes=LLAMA_SIZES,
        facts=without(LLAMA_FACTS, "attention_bias", "attention_output_bias") | {"qk_norm": True},
        optional=LLAMA_OPTIONAL
        | {"head_dim": ("head_dim", 128), "attention_bias": ("attention_bias", False)},
        derive=last_blocks,
    ),
    "gemma": Family(
        sizes=LLAMA_SIZES,
        facts=without(LLAMA_FACTS, "attention_bias", "attention_output_bias"),
        optional=LLAMA_OPTIONAL
        | {
            "head_dim": ("head_dim", 256),
            "tied_embeddings": ("tie_word_embeddings", True),
            "attention_bias": ("attention_bias", False),
        },
        activation=("hidden_act", "gelu_pytorch_tanh"),
    ),
    "gpt2": Family(
        sizes={
            "num_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_heads": "n_head",
            "vocab_size": "vocab_size",
            "max_positions": "n_positions",
        },
        facts=_GPT_FACTS | {"positions": "learned", "attention_bias": True, "mlp_bias": True},
        optional={
            "ffn_hidden_size": ("n_inner", None),
            "tied_embeddings": ("tie_word_embeddings", True),
        },
        activation=("activation_function", "gelu_new"),
    ),
    "gpt_neox": Family(
        sizes=LLAMA_SIZES,
        facts=_GPT_FACTS | {"positions": "rotary", "mlp_bias": True},
        optional={
            "max_positions": ("max_position_embeddings", None),
            "tied_embeddings": ("tie_word_embeddings", False),
            "attention_bias": ("attention_bias", True),
        },
        activation=("hidden_act", "gelu"),
        simplify=_parallel_residual("use_parallel_residual", True),
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
        facts=_GPT_FACTS | {"positions": "alibi", "attention_bias": True, "mlp_bias": True},
        optional={
            "tied_embeddings": ("tie_word_embeddings", True),
            "max_positions": ("seq_length", None),
        },
        activation=("hidden_act", "gelu"),
        simplify=lambda config: "the norm behind the embedding left out",
    ),
}
"""`model_type` → family."""
