"""Rotary positions in Hugging Face configs: base, part of a head, scaling, blocks without.

Read from the configuration files and `modeling_rope_utils.py` of `transformers` 4.57. Which of a head's numbers turn
together, neighbours (GPT-J) or those of its two halves (Llama), only orders the rows of a matrix: it is not told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cost_models.documents import printable
from cost_models.hugging_face.windows import Config, Derived, shortest_round
from cost_models.specs.transformer import Rotary

_USUAL_BASE = Rotary().base
SCALED = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "first_positions": "original_max_position_embeddings",
        "low_turns": "low_freq_factor",
        "high_turns": "high_freq_factor",
    },
}
"""Kind of scaling → our field → the config's key."""
_PLAIN = ("default", "mrope")
"""Kinds of scaling that change nothing for text."""


def rotary(
    config: Config,
    *,
    base: float = _USUAL_BASE,
    base_key: str = "rope_theta",
    windowed_base: tuple[str, float] | None = None,
    part: tuple[str, float] | None = None,
    dim: int | None = None,
    pattern: Sequence[bool] = (),
) -> Derived:
    """Derive the spec field `rotary` (base, rotated part of a head, scaling, blocks); empty where all are usual.

    `base`, `windowed_base` and `part` (a share of a head) are values where the config has no such key. `dim` is numbers
    of a head instead; `pattern` says which blocks turn.
    """
    fields: dict[str, Any] = {}
    if (written := config.get(base_key, base)) != _USUAL_BASE:
        fields["base"] = written
    if windowed_base is not None:
        fields["windowed_base"] = config.get(*windowed_base)
    if part is not None:
        dim = _part_of_head(config, config.get(*part))
    if dim is not None:
        fields["dim"] = dim
    if not all(pattern):
        fields["pattern"] = shortest_round(pattern)
    if (kind := _kind(config)) in SCALED:
        scaling = config["rope_scaling"]
        fields["scaling"] = {"kind": kind} | {name: scaling.get(key) for name, key in SCALED[kind].items()}
    return {"rotary": (base_key, fields)} if fields else {}


def old_rotary_keys(config: Config) -> dict[str, Any]:
    """Config keys for rotary positions as before `transformers` 5, filled from `rope_parameters`."""
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
    """Phrase for a rotary scaling that the spec cannot express; empty where there is none."""
    kind = _kind(config)
    return () if kind is None or kind in SCALED else (f"{kind} scaling of rotary positions",)


def _kind(config: Config) -> str | None:
    """Kind of rotary scaling in a config, such as `llama3`; None where positions are not scaled."""
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, dict):
        return None
    kind = scaling.get("rope_type", scaling.get("type"))
    return None if kind in _PLAIN or kind is None else printable(str(kind), limit=40)


def _part_of_head(config: Config, share: Any) -> Any:
    """Number of a head's elements that rotary positions turn, from their share; None where all turn. Nonsense is
    left to the field check."""
    if not isinstance(share, int | float) or isinstance(share, bool):
        return share
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    width = config.get("head_dim")
    if width is None and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        width = hidden // heads
    return int(width * share) if isinstance(width, int) and 0 <= share < 1 else None
