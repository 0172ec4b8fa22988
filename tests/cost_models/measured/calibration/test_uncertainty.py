"""What a profile does not know: errors of pairs, and the runs it rests on."""

from __future__ import annotations

import pytest

from cost_models.axes.layout import axes_that_differ, parse_layout
from cost_models.measured.calibration.step_time_fit import pair_error, timed_runs
from cost_models.measured.runs.cases import Case, read_case, shipped_rows


@pytest.fixture(scope="module")
def cases() -> tuple[Case, ...]:
    rows = [row for row in shipped_rows() if row.source_id == "bloom_prequel" and row.step_seconds]
    return tuple(read_case(row) for row in rows[:60])


def test_layouts_differ_in_what_is_chosen() -> None:
    one, other = parse_layout("tp8 pp4 dp2"), parse_layout("tp4 pp4 dp4 recompute=full:2")
    assert axes_that_differ(one, other) == ("tp", "recompute")
    assert axes_that_differ(parse_layout("pp2 recompute=full:2"), parse_layout("pp2 recompute=full")) == ()


def test_what_all_runs_share_is_no_error_of_a_pair(cases: tuple[Case, ...]) -> None:
    errors = {case.row.row_id: 0.01 * (place % 7) for place, case in enumerate(cases)}
    slower = {row: 1.3 * (1 + error) - 1 for row, error in errors.items()}
    assert pair_error(cases, dict.fromkeys(errors, 0.3)) == pytest.approx(0, abs=1e-9)
    assert pair_error(cases, errors) == pytest.approx(pair_error(cases, slower))


def test_too_few_pairs_say_nothing(cases: tuple[Case, ...]) -> None:
    assert pair_error(cases[:2], {case.row.row_id: 0.1 for case in cases}) is None


def test_the_runs_of_a_profile_name_what_they_used(cases: tuple[Case, ...]) -> None:
    (runs,) = timed_runs(cases, {case.row.row_id: 0.1 for case in cases})
    assert (runs.source, runs.stack, runs.runs, runs.median_error) == ("bloom_prequel", "bigscience", 60, 0.1)
    assert "8" in runs.values_of("pp")
    assert runs.values_of("cp") == ()
