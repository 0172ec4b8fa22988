"""Goodput counted failure by failure: the forecast's, and best at the interval that it finds."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`benchmarks/goodput/counted.py` trains the same job for real; here only its clock runs."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS / "goodput"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in set(sys.modules) - known:
        if name in ("counted", "small_plans"):
            del sys.modules[name]


def test_the_planned_interval_is_best_and_its_goodput_as_forecast() -> None:
    from counted import STEP, Clock, Counted, best_steps

    steps, best = 900, best_steps(STEP)
    goodput = {
        every: [_goodput(Counted(), Clock(random.Random(seed)), steps, every) for seed in range(10)]
        for every in (best, best // 2, 2 * best)
    }
    for every, seen in goodput.items():
        forecast = replace(STEP, work=every * STEP.work).goodput
        assert statistics.fmean(seen) == pytest.approx(forecast, abs=0.05)
    wins = sum(
        own > max(others)
        for own, *others in zip(goodput[best], goodput[best // 2], goodput[2 * best], strict=True)
    )
    assert wins >= 8


def _goodput(job, clock, steps: int, every: int) -> float:  # type: ignore[no-untyped-def]
    job.train(steps, every, clock)
    return steps / clock.now
