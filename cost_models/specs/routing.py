"""Routing among groups of experts."""

from __future__ import annotations

from typing import Literal

from cost_models.base import PositiveInt, Spec


class ExpertGroups(Spec):
    """Groups of experts, consecutive and equally large; a token chooses some groups before it chooses experts."""

    count: PositiveInt
    """Number of groups."""
    per_token: PositiveInt
    """Groups that a token's experts may come from."""
    scored_by: Literal["best", "two best"] = "best"
    """Score of a group: that of its best expert (DeepSeek-V2), or the sum of its two best (DeepSeek-V3)."""
