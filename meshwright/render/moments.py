"""Moments of a recommender's step at which a memory may be fullest, in words."""

from __future__ import annotations

from cost_models.recommender.prices import moments

_WORDS = {
    moments.FORWARD: "while vectors travel",
    moments.DENSE: "while the dense network runs",
    moments.BACKWARD: "while gradients travel",
    moments.COPIES: "while gradients of copied rows are added up",
    moments.UPDATE: "while rows are updated",
    moments.SUMS: "while gradients of the dense network are summed",
}


def while_(moment: str) -> str:
    """ " while gradients travel": nothing where a step is one moment."""
    return f" {_WORDS[moment]}" if moment in _WORDS else ""
