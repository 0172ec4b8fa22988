"""Context parallelism: the ranks that share a sequence, and how they get one another's keys and values."""

from __future__ import annotations

from typing import Literal, get_args

from cost_models.axes.axis import Axis
from cost_models.axes.words import UNSAID, Choice, Number

Context = Literal["ring", "all-gather", "all-to-all"]
CONTEXTS: tuple[Context, ...] = get_args(Context)
"""How ranks that share a sequence get one another's keys and values: passed round behind attention, gathered before
it, or by trading tokens for heads (Ulysses)."""
USUAL_CONTEXT = UNSAID
"""In the column `context`: as the software stack does it."""

CP = Axis(word=Number())
CONTEXT = Axis(
    word=Choice(CONTEXTS),
    settled=lambda layout: None if layout.cp == 1 else layout.context,
    must_be_chosen=True,
    within="cp",
)
