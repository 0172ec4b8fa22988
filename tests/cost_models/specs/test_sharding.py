"""Shardings as text: what is written is read back, and what is wrong is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.specs.recommender.sharding import (
    FORMS,
    Option,
    Sharding,
    TablePlacement,
    parse_sharding,
    parse_words,
)


@st.composite
def options(draw: st.DrawFn) -> Option:
    form = draw(st.sampled_from(FORMS))
    tier = "device" if form == "copy" else draw(st.sampled_from(["device", "host"]))
    shares = st.sampled_from([0.0, 0.02, 0.5, 1e-06])
    return Option(
        form=form,
        shards=draw(st.integers(2, 64)) if form == "column" else 1,
        hot=0.0 if form == "copy" else draw(shares),
        tier=tier,  # type: ignore[arg-type]
        cached=draw(shares) if tier == "host" else 0.0,
    )


@st.composite
def placed(draw: st.DrawFn) -> TablePlacement:
    option = draw(options())
    count = option.shards if option.placed else 0
    return TablePlacement(option, tuple(draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))))


@given(st.lists(placed(), min_size=1, max_size=12))
def test_what_is_written_is_read_back(tables: list[TablePlacement]) -> None:
    sharding = Sharding(tuple(tables))
    assert parse_sharding(str(sharding), len(tables)) == sharding


def test_neighbours_with_one_option_share_a_word() -> None:
    tables = [
        TablePlacement(Option("column", 2), (0, 4)),
        TablePlacement(Option("column", 2), (1, 5)),
        TablePlacement(Option("row")),
    ]
    assert str(Sharding(tuple(tables))) == "table:0-1=column2@0,4,1,5 table:2=row"


def test_an_option_alone_is_read() -> None:
    (word,) = parse_words("table:0=hot(0.02)+row/cached(0.1)", 1)
    assert word.option == Option("row", hot=0.02, tier="host", cached=0.1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("table:0=row", "nothing is said of table:1"),
        ("table:0-1=row table:1=copy", "table:1 is said twice"),
        ("table:0-1=whole", "table:0 has no place"),
        ("table:0-1=whole@3", "names 1 places and has 2 shards"),
        ("table:0-2=row", "beyond 0 to 1"),
        ("table:0-1=rows", "no way to split a table"),
        ("0=row", "is no word of a sharding"),
        ("table:0-1=copy3", "have a number of slices"),
        ("table:0-1=copy/host", "a copy on every GPU is not in host memory"),
        ("table:0-1=column1@0,1", "two slices or more"),
    ],
)
def test_a_wrong_word_is_named(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_sharding(text, 2)
