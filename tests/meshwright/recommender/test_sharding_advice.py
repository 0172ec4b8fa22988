"""`advise` of recommenders: changes that pay alone and together, the proven end, and what other hardware brings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import SHOP

import meshwright as mw
from cost_models.recommender.prices import estimate
from planner.explain.advice import LEAST_GAIN
from planner.plan import load_any_plan

MODEL = SHOP.replace("pooling: 2.0", "pooling: 2.0, zipf: 1.05").replace(
    "pooling: 8.0", "pooling: 8.0, zipf: 1.1"
)
TODAY = "table:0-1=whole@0,0 table:2-3=row"


@pytest.fixture
def today(meshwright, tmp_path) -> Path:
    """All large tables on one of sixteen GPUs."""
    (tmp_path / "shop.yaml").write_text(MODEL)
    asked = ("dgx-h100", "--gpus", "16", "--global-batch", "64K", "--layout", TODAY)
    done = meshwright("estimate", str(tmp_path / "shop.yaml"), *asked, "-o", str(tmp_path / "today.yaml"))
    assert done.code == 0, done.err
    return tmp_path / "today.yaml"


def test_each_change_fits_and_gains_alone_and_with_those_before_it(today) -> None:
    advised = mw.advise(today)
    assert isinstance(advised, mw.ShardingAdvised)
    advice, before = advised.advice, advised.advice.today
    assert advice.changes
    assert advice.today.step_seconds == load_any_plan(today).prediction.step_seconds
    for one in advice.changes:
        assert one.by_itself.fits
        assert one.by_itself.step_seconds < advice.today.step_seconds
        assert one.with_earlier.step_seconds < before.step_seconds * (1 - LEAST_GAIN)
        assert estimate(advice.question, one.sharding).step_seconds == one.with_earlier.step_seconds
        before = one.with_earlier
    assert advice.best.step_seconds <= before.step_seconds
    assert advice.best.step_seconds == pytest.approx(advice.answer.certificate.value)


def test_advice_in_words_and_as_a_document(meshwright, today, tmp_path) -> None:
    answer = meshwright("advise", str(today), "-o", str(tmp_path / "best.yaml"))
    assert answer.code == 0, answer.err
    assert max(map(len, answer.out.splitlines())) <= 80
    told = " ".join(answer.out.split())
    for said in (
        "+ item: ",
        "Every change fits in memory and gains, alone",
        "Proved optimal",
        "twice the bandwidth of",
    ):
        assert said in told
    document = json.loads(meshwright("advise", str(today), "--json").out)
    assert document["layout"] == TODAY
    assert "25 % more device memory" in {one["change"] for one in document["further"]}
    assert {one["trouble"] for one in document["further"]} >= {"other links", "other GPUs", "other hosts"}
    best = load_any_plan(tmp_path / "best.yaml")
    assert best.layout == document["best_layout"]
    assert document["certificate"]["value"] == pytest.approx(document["best"]["step_seconds"])
    assert meshwright("verify", str(tmp_path / "best.yaml")).code == 0
    again = meshwright("advise", str(tmp_path / "best.yaml"))
    assert "Nothing to change: no sharding is faster." in again.out


def test_from_what_does_not_fit_the_first_change_makes_room(meshwright, today, tmp_path) -> None:
    (tmp_path / "shop.yaml").write_text(MODEL.replace("rows: 4000000", "rows: 400000000"))
    asked = ("dgx-h100", "--gpus", "16", "--global-batch", "64K", "--layout", TODAY)
    done = meshwright("estimate", str(tmp_path / "shop.yaml"), *asked, "-o", str(today))
    assert done.code == 1
    advice = mw.advise(today).advice
    assert not advice.today.fits
    assert advice.changes[0].with_earlier.fits
