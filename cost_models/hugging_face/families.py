"""What is known of a `model_type` of Hugging Face: names of sizes, and what code fixes where a config is silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.hugging_face.windows import Derived

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
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Key → what the family's class takes for it: parts of larger configs leave out what is so."""
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


def norms_by(key: str, epsilon: float) -> dict[str, tuple[str, Any]]:
    """What a config calls the epsilon of its norms, and the one it has where it is silent."""
    return {"norm_epsilon": (key, epsilon)}


LLAMA_OPTIONAL = {
    "num_kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "max_positions": ("max_position_embeddings", None),
    "tied_embeddings": ("tie_word_embeddings", False),
} | norms_by("rms_norm_eps", 1e-6)


def without(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The facts but for some."""
    return {name: value for name, value in facts.items() if name not in names}


def together(*parts: Callable[[Config], Derived]) -> Callable[[Config], Derived]:
    """What several say of a config."""
    return lambda config: {name: value for part in parts for name, value in part(config).items()}


def whole(config: Config, key: str, default: int) -> int:
    """A whole number of the config; the default where it is absent or nonsense, which the field checks report."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
