"""Parts of a transformer's blocks that are not plain: latent attention, rotary positions, groups of experts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cost_models.base import LargeInt, PositiveInt, Spec

Scale = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
"""A factor above zero."""
LISTED = Field(strict=False)
"""A tuple that may be given as a list: filled-in defaults are lists, which strict validation would refuse."""


class LatentAttention(Spec):
    """Multi-head latent attention: queries, keys and values come from narrow latents (DeepSeek-V2, arXiv 2405.04434,
    2.1)."""

    kv_rank: PositiveInt
    """Width of the latent of keys and values."""
    query_rank: PositiveInt | None = None
    """Width of the latent of queries; None: queries are made without one."""
    position_dim: PositiveInt
    """Part of `head_dim` that carries rotary positions; all heads share one such key."""
    value_dim: PositiveInt
    """Width of a value head."""


class RotaryScaling(Spec):
    """Scaling of rotary positions, for sequences longer than those a model was first trained on."""

    kind: Literal["linear", "llama3"]
    """linear: every frequency is divided by `factor` (Chen et al. 2023); llama3: only the low ones."""
    factor: Scale
    """Factor by which frequencies are divided."""
    first_positions: LargeInt = 8192
    """Longest sequence of the first training; for llama3."""
    low_turns: Scale = 1.0
    """llama3: what turns fewer times than this over `first_positions` is slowed by the whole factor."""
    high_turns: Scale = 4.0
    """llama3: what turns more often than this is not slowed; between the two it is slowed in part."""

    @model_validator(mode="after")
    def _ordered(self) -> RotaryScaling:
        if self.low_turns > self.high_turns:
            raise ValueError(f"low_turns {self.low_turns:g} is above high_turns {self.high_turns:g}")
        return self


class Rotary(Spec):
    """Rotary positions of queries and keys (Su et al. 2021)."""

    base: Scale = 10_000.0
    """Base of the frequencies: the slowest takes nearly 2 pi times so many tokens for a turn."""
    windowed_base: Scale | None = None
    """Base in blocks with a window, never scaled; None: as in the others (Gemma 3 has another)."""
    dim: PositiveInt | None = None
    """Numbers of a head that are turned, the first ones; None: all."""
    pattern: Annotated[tuple[bool, ...], LISTED] = ()
    """Which blocks have rotary positions, from the first on and repeated. Default: all."""
    scaling: RotaryScaling | None = None
    """Scaling for longer sequences; None: none."""


class ExpertGroups(Spec):
    """Groups of experts, consecutive and equally large; a token chooses some groups before it chooses experts."""

    count: PositiveInt
    """Number of groups."""
    per_token: PositiveInt
    """Groups that a token's experts may come from."""
    scored_by: Literal["best", "two best"] = "best"
    """Score of a group: that of its best expert (DeepSeek-V2), or the sum of its two best (DeepSeek-V3)."""
