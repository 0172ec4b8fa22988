"""DeepSpeed's estimates of model states on a host and a GPU, as its documentation prints them, and ours beside them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from cost_models.axes.layout import Offload
from cost_models.axes.words import EVERY

SCRIPT = runpy.run_path(str(Path(__file__).parents[4] / "benchmarks" / "offload" / "estimators.py"))
GIB = 2.0**30


def test_its_figures_follow_from_its_formula() -> None:
    found = [tuple(each / GIB for each in one) for one in SCRIPT["THEIRS"].values()]
    assert found == [pytest.approx(one, abs=0.06) for one in ((71.7, 0.12), (127.4, 0.12), (63.7, 0.79))]


@pytest.mark.parametrize(
    ("name", "offload"),
    [
        ("weights and states, zero.Init", Offload(streamed=EVERY)),
        ("states, zero.Init", Offload(states=EVERY)),
    ],
)
def test_ours_are_near_and_no_more(name: str, offload: Offload) -> None:
    host, states, peak = SCRIPT["ours"](offload)
    theirs, on_gpu = SCRIPT["THEIRS"][name]
    assert 0.85 * theirs < host < theirs
    assert states < on_gpu < peak
