"""Segments between checkpoints: hand-made figures, and formulas against failures drawn one by one."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from cost_models.reliability import Segment, best_work, blocked, daly, first_order_ratio, waiting, young

HOUR = 3600.0
LLAMA3 = 3.09 * HOUR
"""Seconds between failures of 16,384 H100: 419 in 54 days."""


@pytest.mark.parametrize(
    ("saving", "restart", "minutes", "goodput"), [(60.0, 600.0, 19.3, 0.852), (30.0, 120.0, 13.6, 0.918)]
)
def test_published_figures_by_hand(saving: float, restart: float, minutes: float, goodput: float) -> None:
    """Young's interval on 16,384 GPUs, and the goodput that it leaves."""
    interval = young(saving, LLAMA3)
    assert interval / 60 == pytest.approx(minutes, abs=0.06)
    one = Segment(work=interval, saving=saving, restart=restart, mtbf=LLAMA3)
    assert one.goodput == pytest.approx(goodput, abs=6e-4)
    assert first_order_ratio(one) == pytest.approx(one.goodput, abs=0.01)


def test_no_interval_is_better_than_the_best() -> None:
    best = best_work(60.0, LLAMA3)
    assert best == pytest.approx(daly(60.0, LLAMA3), rel=0.02)

    def goodput(work: float) -> float:
        return Segment(work=work, saving=60.0, restart=600.0, mtbf=LLAMA3).goodput

    assert goodput(best) > max(goodput(best * 0.9), goodput(best * 1.1))


def test_parts_of_a_segment_are_the_whole() -> None:
    one = Segment(work=900.0, saving=20.0, restart=300.0, mtbf=5000.0, lag=60.0)
    assert one.length + one.restarting + one.lost == pytest.approx(one.expected)
    assert one.failures * one.mtbf == pytest.approx(one.expected)


def test_mean_and_variance_are_those_of_failures_drawn_one_by_one() -> None:
    """The clock runs through trainings, saves and restarts; what could not be read yet when it failed is done again."""
    one = Segment(work=900.0, saving=60.0, restart=300.0, mtbf=2500.0, lag=200.0)
    drawn = _draw(one, segments=60_000, seed=5)
    error = math.sqrt(one.variance / len(drawn))
    assert statistics.fmean(drawn) == pytest.approx(one.expected, abs=3 * error)
    assert statistics.pvariance(drawn) == pytest.approx(one.variance, rel=0.1)


def _draw(one: Segment, segments: int, seed: int) -> list[float]:
    """Seconds between readable checkpoints of a job that is followed from event to event."""
    rng = random.Random(seed)
    clock, done, readable = 0.0, 0.0, 0
    failure = rng.expovariate(1 / one.mtbf)
    times, last = [], 0.0
    while len(times) < segments:
        target = (readable + 1) * one.length + one.lag  # progress at which the next checkpoint can be read
        if clock + target - done <= failure:
            clock += target - done
            done, readable = target, readable + 1
            times.append(clock - last)
            last = clock
            continue
        clock, done = failure, readable * one.length
        while (failure := clock + rng.expovariate(1 / one.mtbf)) < clock + one.restart:
            clock = failure
        clock += one.restart
    return times[1:]


def test_spares_wait_as_erlang_says() -> None:
    """The chance that a failure finds no spare, from the states of the repair shop."""
    load, spares = 2.5, 4
    weights = [load**away / math.factorial(away) for away in range(spares + 1)]
    assert blocked(spares, load) == pytest.approx(weights[-1] / sum(weights))
    assert waiting(None, 10.0, 1.0).mean_seconds == 0.0
    assert waiting(0, 10.0, 1e9).chance == 1.0
    chances = [waiting(count, 3600.0, 1000.0).mean_seconds for count in range(12)]
    assert chances == sorted(chances, reverse=True)
