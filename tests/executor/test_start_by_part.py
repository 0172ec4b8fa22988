"""The start of a run by part: each is told once, groups apart from what was built around them."""

from __future__ import annotations

from unittest import mock

from executor.clock import StartClock, StartReport, making_group, timing_groups


def test_parts_follow_one_another_and_groups_are_taken_out() -> None:
    with mock.patch("executor.clock.date", side_effect=[103.0, 104.0, 109.0, 110.0, 111.0]):
        clock = StartClock(100.0)
        clock.end("processes")
        clock.end("groups")
        assert clock.report() is None
        clock.end("weights", inside=2.0)
        clock.end("first_step")
        clock.end("first_step")  # of the next step
    found = clock.report()
    assert found == StartReport(processes=3.0, groups=3.0, weights=3.0, first_step=1.0)
    assert list(found.parts) == ["processes", "groups", "weights", "first_step"]


def test_only_groups_inside_the_block_are_timed() -> None:
    with timing_groups() as spent:
        for _ in range(2):
            with making_group():
                pass
    with making_group():
        pass
    assert len(spent) == 2
