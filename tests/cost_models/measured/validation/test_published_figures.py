"""What papers state beside their tables: ablations, MFU and days, with the residuals that the page shows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cost_models.measured.validation.predictions import Figures, published_figures


def group(name: str) -> Figures:
    (found,) = (one for one in published_figures() if one.name == name)
    return found


def test_one_profile_has_all_rungs_of_a_ladder() -> None:
    """Each rung is on top of the one before; overlap and operators add, and batch 768 has a third of the bubble."""
    ladder = group("megascale-ladder")
    assert {point.profile for point in ladder.points} == {"a100-megascale"}
    assert len({point.layout for point in ladder.points}) == 1
    rungs = [point.predicted for point in ladder.points]
    assert rungs[2] < rungs[1]  # a window counts fewer FLOPs, and saves little of 2,048 tokens
    assert all(two >= one for one, two in pairwise(rungs[2:]))


@pytest.mark.parametrize(
    ("name", "least"), [("megascale-ladder", 8), ("megascale-weak-scaling", 4), ("days", 3)]
)
def test_as_many_figures_are_met_as_were(name: str, least: int) -> None:
    found = group(name)
    assert found.within_tolerance >= least
    assert all(abs(point.off) < 10 for point in found.points)
