"""Sentences and tables from estimates made by hand; tables fit the line, and no number is ever cut."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cost_models.estimate import Breakdown
from cost_models.pipeline.pricing import trust_of
from cost_models.units import counted, format_days, grouped
from meshwright.records.estimates import estimate_record
from meshwright.render.estimates import estimate_text, memory_sentence
from meshwright.render.goals import sizes_text
from meshwright.render.ranked import certificate_sentence, question_header
from meshwright.render.tables import table
from meshwright.render.words import (
    change,
    line_width,
    lines_of,
    money,
    parts_sentence,
    percent,
    sentence_list,
    time_unit,
    wrapped,
)
from meshwright.terminal.output import as_csv, as_json
from meshwright.terminal.progress import line_on

GIB = 2.0**30


def test_a_peak_near_the_limit_is_tight(make_estimate) -> None:
    said = {20: ("fits", 99), 45: ("tight", 93), 55: ("does not fit", 18), 70: ("does not fit", None)}
    for activations, (verdict, chance) in said.items():
        estimate = make_estimate(activations=activations * GIB)
        words = " ".join(memory_sentence(estimate).split())
        assert estimate.verdict == verdict
        assert words.partition("; fits with probability ")[2][:4] == (f"{chance} %" if chance else "")
        assert ("tight: measured peaks have been off by up to 10 %" in words) == (verdict == "tight")


@pytest.mark.parametrize(("scale", "said"), [(0.44, "MFU 125.0 %"), (0.56, "HFU 101.8 %"), (0.6, "")])
def test_more_than_the_hardware_can_do_is_said_aloud(make_estimate, question, scale, said) -> None:
    estimate = make_estimate(scale=scale)
    warned = " ".join(estimate_text(estimate).split()).partition("warning: ")[2]
    assert warned == "; ".join(estimate_record(estimate, question)["warnings"])
    assert warned.startswith(said)
    assert bool(warned) == bool(said)


def test_trust_says_what_unseen_sources_showed(question) -> None:
    names = {
        "gpu": question.cluster.gpu.name,
        "stack": question.stack.name,
        "name": "a100",
        "tier": "profile",
    }
    figures = {"median_error": 0.031, "validated_runs": 132, "unseen_error": 0.08}
    own = question.hardware.model_copy(update=names | figures)
    said = "a100 (profile, median error 3 % over 132 runs"
    at_home = trust_of(replace(question, hardware=own))
    assert (at_home.unseen_error, str(at_home)) == (None, f"{said})")
    abroad = trust_of(replace(question, hardware=own.model_copy(update={"stack": "any"})))
    assert str(abroad) == f"{said}; 8 % on held-out sources)"
    borrowed = trust_of(replace(question, hardware=own.model_copy(update={"gpu": "h100-sxm"})))
    assert str(borrowed).startswith("a100 (borrowed from h100-sxm; median error ")
    for trust in (abroad, borrowed):
        assert max(map(len, question_header(question, trust).splitlines())) <= 80
    untried = own.model_copy(update={"stack": "any", "unseen_error": None})
    assert str(trust_of(replace(question, hardware=untried))) == f"{said})"


def test_optimal_is_said_only_when_proved(certificate) -> None:
    assert certificate_sentence(certificate, 25.2).startswith(
        "Proved optimal under the cost model in 1.40 s; 3,911 layouts"
    )
    open_gap = certificate.model_copy(update={"gap": 0.018})
    sentence = certificate_sentence(open_gap, 25.2)
    assert not {"Proved", "optimal"} & set(sentence.split())
    assert "within 1.8 % of the optimum" in " ".join(sentence.split())


def test_numbers_as_written() -> None:
    amounts = (0.004, 2.5, 1270.4, 508_000, 1.168e6, 2.1e9)
    assert " ".join(map(money, amounts)) == "$0.004 $2.50 $1,270 $508.0 k $1.168 M $2.1 B"
    assert all(" " not in grouped(10**digits) for digits in range(9))
    assert grouped(623029) == "623,029"


@pytest.mark.parametrize("width", range(8, 40))
def test_a_number_keeps_its_unit_beside_it(width: int) -> None:
    lines = lines_of("saves 7.0 s, of 48.9 % and 1.2 GiB; $1.168 M at 450 GB/s. 12 steps", width)
    units = ("s,", "%", "GiB;", "M", "GB/s.")
    assert not [line for line in lines if line.split()[0] in units]


WORDS = {
    "48.9 %": percent(0.4894),
    "-3.6 %": change(100.0, 96.4),
    "same": change(100.0, 100.01),
    "1 layout": counted(1, "layout"),
    "3,911 layouts": counted(3911, "layout"),
    "2 microbatches": counted(2, "microbatch"),
    "1 process": counted(1, "process"),
    "1 day": format_days(86400.0),
    "30 days": format_days(30 * 86400.0),
    "20.7 days": format_days(20.66 * 86400.0),
    "1 GPU": sizes_text((1,)),
    "64 and 1,024 GPUs": sizes_text((64, 1024)),
    "a, b and c": sentence_list(["a", "b", "c"]),
    "": sentence_list([]),
    "compute 900.0": parts_sentence(Breakdown(compute=0.9, host=1e-9), time_unit(0.9)),
}


def test_words() -> None:
    assert [*WORDS.values()] == [*WORDS]


def test_json_has_no_nan_and_csv_every_column() -> None:
    written = as_json({"gap": float("inf"), "values": (1, 2)})
    assert written == '{\n  "gap": null,\n  "values": [\n    1,\n    2\n  ]\n}'
    assert as_csv([{"a": 1}, {"a": 2, "b": 3}]) == "a,b\n1,\n2,3\n"


def test_lines_end_at_spaces_and_long_placements_after_commas() -> None:
    placement = "recompute=" + ",".join(f"full*{n},none*{n}" for n in range(10, 30))
    for width in (20, 36, 80):
        lines = lines_of(f"tp8 pp20 {placement} layers=5*20", width)
        assert max(map(len, lines)) <= width
        assert "".join(lines).replace(" ", "") == f"tp8pp20{placement}layers=5*20"
        assert all(line.endswith(",") or not line[-1].isalpha() for line in lines[:-1])
    assert wrapped("a b") == "a b"
    assert wrapped("  x " + "y" * 79, indent="    ").splitlines() == ["  x", "    " + "y" * 79]


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
