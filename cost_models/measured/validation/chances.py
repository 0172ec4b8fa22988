"""Whether chances hold: of the runs that were said to fit with so much, how many ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from cost_models.measured.validation.predicting import Prediction
from cost_models.measured.validation.scores import measured_bytes, measured_seconds

EDGES = (0.0, 0.05, 0.2, 0.5, 0.8, 0.95, 1.0)
"""Bounds of the ranges of P(fits)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChanceRange:
    """The runs whose chance of fitting lay in one range."""

    least: float
    most: float
    runs: int
    said: float
    """Mean of their chances."""
    ran: float
    """Share of them that ran."""


def chance_ranges(predictions: Iterable[Prediction]) -> tuple[ChanceRange, ...]:
    """Every range that has runs, the least likely first; runs of which nobody knows whether they ran do not count."""
    known = [
        (one.fits_probability, not one.row.flag("oom"))
        for one in predictions
        if one.fits_probability is not None
        and (one.row.flag("oom") or measured_seconds(one.row) or measured_bytes(one.row))
    ]
    found = []
    for least, most in pairwise(EDGES):
        own = [
            (chance, ran) for chance, ran in known if least <= chance and (chance < most or most == EDGES[-1])
        ]
        if own:
            said, ran = (mean(column) for column in zip(*own, strict=True))
            found.append(ChanceRange(least=least, most=most, runs=len(own), said=said, ran=ran))
    return tuple(found)
