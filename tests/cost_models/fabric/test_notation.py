"""The lines in which a cluster file has its links."""

from __future__ import annotations

import pytest
from fabrics import leaves, pod
from hypothesis import given
from hypothesis import strategies as st

from cost_models.specs.graph import expand, fold, read_lines, write_lines


@pytest.mark.parametrize(
    "lines",
    [
        pod(12),
        leaves(),
        leaves(instead=["leaf[0-2] -- spine0 400 Gb/s x2", "leaf3 -- spine0 33.3 Gb/s roce"]),
    ],
)
def test_lines_are_written_as_they_are_read(lines: list[str]) -> None:
    links, _ = read_lines(lines)
    again, wrong = read_lines(write_lines(links))
    assert not wrong
    assert {link[:-1] for link in again} == {link[:-1] for link in links}
    assert len(write_lines(links)) <= 8


@given(st.sets(st.integers(0, 40), min_size=1), st.booleans())
def test_names_fold_and_expand(numbers: set[int], padded: bool) -> None:
    names = [f"n{number:03}.gpu1" if padded else f"n{number}.gpu1" for number in sorted(numbers)]
    assert expand(fold(names)) == names


@given(st.text(max_size=60))
def test_any_line_is_links_or_problems(text: str) -> None:
    links, wrong = read_lines([text])
    assert bool(links) != bool(wrong)
