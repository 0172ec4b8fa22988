"""How attention is made where it is not plain: latents of queries, keys and values, and rotary positions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cost_models.base import LargeInt, PositiveInt, Spec

Scale = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
"""What a number is multiplied by, or another above zero."""
LISTED = Field(strict=False)
"""Written as a list: what fills in defaults hands lists on, which a strict tuple would refuse."""


class LatentAttention(Spec):
    """Attention whose queries, keys and values come out of narrow latents (DeepSeek-V2, arXiv 2405.04434, 2.1)."""

    kv_rank: PositiveInt
    """Width of the latent that keys and values are made of."""
    query_rank: PositiveInt | None = None
    """Width of the queries' latent; None: queries are made directly."""
    position_dim: PositiveInt
    """The part of `head_dim` that carries rotary positions; one such key is shared by all heads."""
    value_dim: PositiveInt
    """Width of a value head."""


class RotaryScaling(Spec):
    """Slower turns, for sequences longer than those a model was first trained on."""

    kind: Literal["linear", "llama3"]
    """linear: all turns are slower (Chen et al. 2023); llama3: those that a first sequence does not complete often."""
    factor: Scale
    """How much slower."""
    first_positions: LargeInt = 8192
    """Tokens of the sequences of before; for llama3."""
    low_turns: Scale = 1.0
    """llama3: what turns fewer times over `first_positions` is slowed by the whole factor."""
    high_turns: Scale = 4.0
    """llama3: what turns more often is not slowed; between the two it is in part."""

    @model_validator(mode="after")
    def _ordered(self) -> RotaryScaling:
        if self.low_turns > self.high_turns:
            raise ValueError(f"low_turns {self.low_turns:g} is above high_turns {self.high_turns:g}")
        return self


class Rotary(Spec):
    """How rotary positions turn queries and keys (Su et al. 2021)."""

    base: Scale = 10_000.0
    """The slowest turn takes nearly 2 pi times so many tokens."""
    windowed_base: Scale | None = None
    """The same in blocks with a window, never scaled; None: as in the others (Gemma 3 has another)."""
    dim: PositiveInt | None = None
    """How many of a head's numbers are turned, the first ones; None: all."""
    pattern: Annotated[tuple[bool, ...], LISTED] = ()
    """Which blocks turn at all, from the first on and repeated. Default: all."""
    scaling: RotaryScaling | None = None
    """None: turns are as the base says."""
