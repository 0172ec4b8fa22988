"""Attention windows in Hugging Face configs: one for all blocks, or block by block in `layer_types`.

Read from the configuration files and `masking_utils.py` of `transformers` 4.57, where a query of a sliding window of W
sees W tokens, itself included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from cost_models.base import MAX_LAYERS
from cost_models.documents import printable

T = TypeVar("T")
Config = Mapping[str, Any]
Derived = dict[str, tuple[str, Any]]
"""Our field → the key that it mostly follows from, and its value."""

_KINDS = dict.fromkeys(("full_attention", "indexed_attention"), "full")
_KINDS |= dict.fromkeys(("sliding_attention", "chunked_attention"), "window")


def windows(
    config: Config,
    *,
    key: str = "sliding_window",
    default: int | None = None,
    pattern: Sequence[str] = ("window",),
    full_every: int = 0,
) -> Derived:
    """Derive the spec fields for sliding-window attention; `default` stands for a missing `key`, `pattern` for
    missing `layer_types`.

    With `full_every` the pattern is that in which every so many-th block has no window.
    """
    window = config.get(key, default)
    listed = config.get("layer_types")
    if full_every:
        pattern = ("window",) * (full_every - 1) + ("full",)
    kinds = [_KINDS[kind] for kind in listed] if listed else list(pattern)
    if window is None or "window" not in kinds:
        return {}
    fields: dict[str, tuple[str, Any]] = {"attention_window": (key, window)}
    if "full" in kinds:
        fields["window_pattern"] = ("layer_types", shortest_round(kinds))
    if "chunk" in key:
        fields["window_kind"] = (key, "chunked")
    return fields


def last_blocks(config: Config) -> Derived:
    """Derive the windows of Qwen2, which apply from block `max_window_layers` on if `use_sliding_window` is set."""
    layers, first, _ = (
        config.get(key, default)
        for key, default in (("num_hidden_layers", 0), ("max_window_layers", 28), ("sliding_window", None))
    )
    if config.get("use_sliding_window") is not True:
        return {}
    if not (isinstance(layers, int) and isinstance(first, int)):
        return windows(config, default=4096)
    full = max(0, min(first, layers, MAX_LAYERS))
    pattern = ["full"] * full + ["window"] * min(layers - full, MAX_LAYERS)
    return windows(config, default=4096, pattern=pattern)


def whole_number(config: Config, key: str, default: int) -> int:
    """Non-negative integer under a config key; the default where the value is absent or invalid. The field checks
    report nonsense."""
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def refusal(config: Config) -> str | None:
    """Reason why a config's `layer_types` cannot be represented; None where they can."""
    listed, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if listed is None:
        return None
    if not isinstance(listed, list) or (isinstance(layers, int) and len(listed) != layers):
        return f"`layer_types` does not name each of its {layers} blocks"
    kinds = [printable(str(kind), limit=60) for kind in listed]
    if unknown := next((kind for kind in kinds if kind not in _KINDS), None):
        return f"it has blocks of `{unknown}` (`layer_types`)"
    if {"sliding_attention", "chunked_attention"} <= set(kinds):
        return "some of its windows slide and some do not (`layer_types`)"
    return None


def shortest_round(kinds: Sequence[T]) -> tuple[T, ...]:
    """Shortest prefix of a sequence that gives all entries when repeated (Knuth, Morris and Pratt 1977)."""
    borders = [0] * (len(kinds) + 1)
    border = 0
    for index in range(1, len(kinds)):
        while border and kinds[index] != kinds[border]:
            border = borders[border]
        border += kinds[index] == kinds[border]
        borders[index + 1] = border
    return tuple(kinds[: len(kinds) - borders[len(kinds)]])


def in_turns(kinds: Sequence[str]) -> str:
    """Describe runs of equal entries in words, such as "2 window, 1 full" for `("window", "window", "full")`."""
    return ", ".join(f"{len(list(run))} {kind}" for kind, run in groupby(kinds))
