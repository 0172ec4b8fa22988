"""The account of a run's time: by hand from a record, beside a forecast, and as operations to forecast with."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.errors import InputError
from executor.measure.report import OperationsReport, operations_of_record
from meshwright.verbs.ran import forecast_shares, operations_rows, operations_spec, operations_text

Line = dict[str, Any]


def step(number: int, at: float) -> Line:
    return {"step": number, "seconds": 1.0, "at": at}


SAVE = {"save": 2, "blocked_seconds": 0.5, "at": 102.5}
SAVED = {"saved": 2, "flush_seconds": 0.8, "bytes": 1000, "at": 103.3}
KILLED: list[Line] = [
    *(step(1, 101.0), step(2, 102.0), SAVE, SAVED, step(3, 103.5)),
    {"note": "start 2: rank 1 was ended from outside"},
    # last sign of life at 104.0, half a step after the last line
    {
        "restart": 2,
        "detection_seconds": 1.0,
        "starting_seconds": 4.0,
        "loading_seconds": 2.0,
        "resumed_step": 2,
        "steps_lost": 1,
        "at": 111.0,
    },
    *(step(3, 112.0), step(4, 113.0)),
    {"saved": 4, "flush_seconds": 0.2, "bytes": 1000, "at": 113.3},
    {"save": 4, "blocked_seconds": 0.4, "at": 113.4},
]
"""Two steps, a save, one step, a kill half a step later, and on from step 2."""


def test_the_lines_of_a_record_partition_its_time() -> None:
    seen = operations_of_record(KILLED, every=2)
    assert seen is not None
    assert seen.wall_seconds == pytest.approx(113.4 - 100.0)
    assert seen.parts == pytest.approx({"training": 4.0, "saving": 0.9, "lost_work": 1.5, "restarting": 7.0})
    assert seen.goodput == pytest.approx(4.0 / 13.4)
    assert [(save.step, save.flush_seconds, save.bytes) for save in seen.saves] == [
        (2, 0.8, 1000),
        (4, 0.2, 1000),
    ]
    assert seen.mean_save.blocked == 0.5  # beside the last one nothing is trained
    (restart,) = seen.restarts
    assert (restart.seconds, restart.steps_lost) == (7.0, 1)


def test_a_save_that_was_cut_off_was_not_written() -> None:
    """The same step is saved again after the restart; its writing is that of the second time."""
    killed = [step(1, 1.0), {"save": 1, "blocked_seconds": 0.1, "at": 1.1}]
    again: Line = KILLED[6] | {"resumed_step": 0, "at": 20.0}
    retried = [
        step(1, 21.0),
        {"save": 1, "blocked_seconds": 0.1, "at": 21.1},
        SAVED | {"saved": 1, "at": 22.0},
    ]
    seen = operations_of_record([*killed, again, *retried], every=1)
    assert seen is not None
    assert [save.flush_seconds for save in seen.saves] == [None, 0.8]
    assert operations_of_record([KILLED[5]], every=1) is None


def test_parts_stand_beside_those_of_a_forecast() -> None:
    seen = operations_of_record(KILLED, every=2)
    assert seen is not None
    shares = forecast_shares(seen)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert [row["part"] for row in operations_rows(seen)] == list(seen.parts)
    text = "\n".join(str(part) for part in operations_text(seen, operations_rows(seen)))
    for words in (
        "work done again",
        "each stops training for 500.0 ms",
        "1 failure, on average 1.00 s until",
    ):
        assert words in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_restart_in_which_ranks_are_lost_again_is_two_failures() -> None:
    """What the first of two starts took is no restart's typical detection."""
    again = KILLED[6] | {"restart": 4, "detection_seconds": 9.0, "starting_seconds": 2.0, "at": 130.0}
    seen = operations_of_record([*KILLED[:9], again, step(5, 131.0)], every=2)
    assert seen is not None
    assert seen.failures == 3
    assert seen.mean_restart.detection == 1.0
    assert seen.mean_restart.starting == 3.0


def test_a_run_says_what_a_forecast_counts() -> None:
    seen = operations_of_record(KILLED, every=2)
    assert seen is not None
    spec = operations_spec(seen, gpus=2, name="run-report.json")
    assert spec.mtbf == pytest.approx(2 * 13.4)
    assert (spec.detection, spec.restart, spec.pause) == (1.0, 4.0, 0.5)
    assert spec.storage_read == pytest.approx(1000)  # bytes/s, slowest that a file may say
    assert spec.storage_write == pytest.approx(1250)
    nothing = OperationsReport(every=2, steps=1, parts=dict.fromkeys(seen.parts, 0.0))
    with pytest.raises(InputError, match="no checkpoint that was written"):
        operations_spec(nothing, gpus=2, name="run-report.json")
