"""How the routers of a mixture choose among groups of experts first."""

from __future__ import annotations

from typing import Literal

from cost_models.base import PositiveInt, Spec


class ExpertGroups(Spec):
    """Experts in groups of the same size, in their order, of which a token chooses some before it chooses experts."""

    count: PositiveInt
    """Groups."""
    per_token: PositiveInt
    """Groups that a token's experts may come from."""
    scored_by: Literal["best", "two best"] = "best"
    """A group's score: that of its best expert (DeepSeek-V2), or the sum of its two best (DeepSeek-V3)."""
