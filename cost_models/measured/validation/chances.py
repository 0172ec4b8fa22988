"""Chances to fit against what happened: of the runs that were said to fit with so much chance, how many ran."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from cost_models.measured.validation.predicting import Prediction
from cost_models.measured.validation.scores import measured_bytes, measured_seconds

EDGES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
"""Bounds of the ranges of P(fits), narrow where a decision is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChanceRange:
    """The runs whose chance of fitting lay in one range."""

    least: float
    most: float
    runs: int
    fits_probability: float
    """Mean of their chances."""
    ran_share: float
    """Share of them that ran."""


def chance_ranges(predictions: Iterable[Prediction]) -> tuple[ChanceRange, ...]:
    """Ranges of P(fits) that have runs, the least likely first; runs with unknown outcome do not count."""
    known = _outcomes(predictions)
    found = []
    for least, most in pairwise(EDGES):
        own = [
            (chance, ran) for chance, ran in known if least <= chance and (chance < most or most == EDGES[-1])
        ]
        if own:
            said, ran = (mean(column) for column in zip(*own, strict=True))
            found.append(
                ChanceRange(least=least, most=most, runs=len(own), fits_probability=said, ran_share=ran)
            )
    return tuple(found)


def brier_scores(predictions: Iterable[Prediction]) -> tuple[float, float] | None:
    """Mean squared difference of P(fits) from what happened, 1 or 0, and the same of one chance for all: the share that
    ran (Brier 1950). None: no outcome is known."""
    known = _outcomes(predictions)
    if not known:
        return None
    share = mean(ran for _, ran in known)
    return mean((chance - ran) ** 2 for chance, ran in known), share * (1 - share)


def _outcomes(predictions: Iterable[Prediction]) -> list[tuple[float, bool]]:
    """P(fits) of the runs whose outcome is known, and whether they ran."""
    return [
        (one.fits_probability, not one.row.flag("oom"))
        for one in predictions
        if one.fits_probability is not None
        and (one.row.flag("oom") or measured_seconds(one.row) or measured_bytes(one.row))
    ]
