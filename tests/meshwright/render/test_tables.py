"""Tables fit the line they are printed on, and no number is ever cut."""

from __future__ import annotations

from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from meshwright.render.tables import table
from meshwright.render.words import line_width, wrapped
from meshwright.terminal.progress import line_on

HEADERS = ("#", "GPUs", "layout", "step", "MFU", "cost", "peak mem", "bound by")
ROWS = (
    (
        "1",
        "1,024",
        "tp4 pp32 vpp2 cp4 dp2 mbs1 layers=1,2*62,1 recompute=full:10/selective:23/none:2",
        "41.75 s",
        "52.1 %",
        "$53.09 M",
        "68.7 GiB",
        "tp comm",
    ),
    ("10", "2,048", "tp4 pp32", "43441.75 s", "52.1 %", "$53.09 M", "68.7 GiB", "compute"),
)
NUMBERS = [cell for row in ROWS for header, cell in zip(HEADERS, row, strict=True) if header != "layout"]
WIDEST_PAIR = 2 + 1 + 19
"""The rank beside the layout, which is never narrower than its longest usual word."""


def drawn(width: int) -> list[str]:
    return table(HEADERS, ROWS, words=("layout", "bound by")).lines(width)


@pytest.mark.parametrize("width", range(WIDEST_PAIR, 220))
def test_a_table_fits_its_line_and_keeps_every_number_whole(width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    assert all(any(cell in line for line in lines) for cell in NUMBERS)


def test_a_wide_terminal_is_used() -> None:
    assert len(drawn(80)) > len(drawn(200)) == 3


def test_columns_without_room_follow_below_with_their_rank() -> None:
    lines = drawn(60)
    below = lines[lines.index("") + 1 :]
    assert below[0].split()[0] == "#"
    assert [line.split()[0] for line in below[1:]] == ["1", "10"]


@given(
    rows=st.lists(
        st.tuples(st.text("ab,:/= ", max_size=60), st.integers(0, 10**6), st.integers(0, 10**6)),
        min_size=1,
        max_size=4,
    ),
    width=st.integers(40, 120),
)
def test_words_lose_no_letter(rows: list[tuple[str, int, int]], width: int) -> None:
    cells = [(words, f"{one:,}", f"{other:,}") for words, one, other in rows]
    lines = table(("what", "one", "other"), cells, words=("what",)).lines(width)
    assert max(map(len, lines)) <= width
    shown, given = "".join(lines), "".join(words for words, _, _ in cells)
    for sign in "b:/=":
        assert shown.count(sign) == given.count(sign)


def test_the_width_is_the_terminals(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert line_width() == 200
    assert max(map(len, wrapped("word " * 100).splitlines())) <= 120
    monkeypatch.setenv("COLUMNS", "40")
    assert max(map(len, wrapped("word " * 100).splitlines())) <= 40
    monkeypatch.setenv("COLUMNS", "1")
    assert line_width() == 20


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_progress_is_never_cut(width: int) -> None:
    console = Console(width=width, file=StringIO(), force_terminal=True, color_system=None)
    line = line_on(console)
    said = "4,096 GPUs (3 of 3)  358,385/358,385 layouts  best 11.61 s  bound 11.61 s  gap 0.0 %"
    line.add_task(said, total=None)
    with console.capture() as captured:
        console.print(line)
    assert set(said.split()) <= set(captured.get().split())
