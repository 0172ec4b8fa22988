"""The record of a Hugging Face `model_type`: names of its fields, and what its code fixes where a config is silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.hugging_face.windows import Derived

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How configs of one `model_type` are written, and what its code fixes."""

    sizes: Mapping[str, str]
    """Our field → the config's key, each required."""
    facts: Mapping[str, Any]
    """Our field → its value in every model of the family."""
    optional: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    """Our field → the config's key and the value where it is absent (None: our own default)."""
    activation: tuple[str, str] = ("hidden_act", "silu")
    """The config's key of the activation, and its value where absent."""
    alike: Mapping[str, str] = field(default_factory=dict)
    """Activation that ours has not → the one of ours that it is priced as."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Key → value that the family's class assumes: parts of larger configs leave out such values."""
    needed: tuple[str, ...] = ()
    """Required keys besides those of `sizes`."""
    told: tuple[str, ...] = ()
    """Keys that repeat others, or that what is left out names: reading them adds nothing."""
    derive: Callable[[Config], Derived] = lambda config: {}
    """Fields that follow from a config which says them in other terms."""
    refuse: Callable[[Config], str | None] = lambda config: None
    """The reason why a config cannot be represented; None where it can."""
    left_out: Callable[[Config], tuple[str, ...]] = lambda config: ()
    """What the model computes that our blocks do not, a few words each: neither priced nor trained."""
    simplify: Callable[[Config], str | None] = lambda config: None
    """A simplification that leaves the model the same, in words; None where there is none."""


class Noted(dict[str, Any]):
    """A config that notes which of its keys were read."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default."""
        self.read.add(key)
        return super().get(key, default)


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
    """The optional field of the norms' epsilon: the config's key for it, and the value where absent."""
    return {"norm_epsilon": (key, epsilon)}


LLAMA_OPTIONAL = {
    "num_kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "max_positions": ("max_position_embeddings", None),
    "tied_embeddings": ("tie_word_embeddings", False),
} | norms_by("rms_norm_eps", 1e-6)


def without(facts: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The facts except those named."""
    return {name: value for name, value in facts.items() if name not in names}


def combined(*parts: Callable[[Config], Derived]) -> Callable[[Config], Derived]:
    """What several say of a config."""
    return lambda config: {name: value for part in parts for name, value in part(config).items()}


def whole_number(config: Config, key: str, default: int) -> int:
    """A whole number of the config; the default where it is absent or nonsense, which the field checks report."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default
