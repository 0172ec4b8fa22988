"""The layout notation: it reads back to the same layout, and every wrong word is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.errors import InputError
from cost_models.specs.choices import CONTEXTS, ORDERS, RECOMPUTE_POLICIES

degrees = st.integers(1, 16)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any layout the notation can say, placed or not."""
    pp, vpp = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    chunked = {1: ["1f1b", "gpipe"], 2: ["interleaved", "zbv", "dualpipev"], 3: ["interleaved"]}
    stages = pp * vpp
    count = draw(st.sampled_from([1, stages]))
    return Layout(
        tp=draw(degrees),
        pp=pp,
        vpp=vpp,
        cp=draw(degrees),
        dp=draw(degrees),
        ep=draw(degrees),
        etp=draw(st.one_of(st.none(), degrees)),
        mbs=draw(degrees),
        zero=draw(st.integers(0, 3)),
        shard=draw(st.one_of(st.none(), degrees)),
        sp=draw(st.booleans()),
        schedule=draw(st.sampled_from([*chunked[vpp], "zero-bubble"])),
        order=draw(st.sampled_from(ORDERS)),
        context=draw(st.sampled_from([None, *CONTEXTS])),
        recompute=tuple(draw(st.lists(st.sampled_from(RECOMPUTE_POLICIES), min_size=count, max_size=count))),
        layers=tuple(
            draw(st.one_of(st.just([]), st.lists(st.integers(0, 9), min_size=stages, max_size=stages)))
        ),
    )


@given(layouts())
def test_the_notation_round_trips(layout: Layout) -> None:
    assert parse_layout(str(layout)) == layout


@given(layouts())
def test_the_order_of_words_does_not_matter(layout: Layout) -> None:
    assert parse_layout(" ".join(reversed(str(layout).split()))) == layout


@given(st.lists(layouts(), min_size=1, max_size=5))
def test_columns_give_back_their_layouts(rows: list[Layout]) -> None:
    columns = LayoutColumns.of(rows)
    for index, layout in enumerate(rows):
        assert columns.layout(index) == layout.model_copy(update={"recompute": ("none",), "layers": ()})


def test_by_hand() -> None:
    layout = parse_layout("tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective")
    assert layout.num_gpus == 8 * 16 * 8
    assert layout.num_stages == 32
    assert layout.schedule == "interleaved"
    assert layout.stage_recompute == ("selective",) * 32
    assert layout.microbatches(1536) == 192
    assert str(layout) == "tp8 pp16 vpp2 dp8 mbs1 zero1 sp recompute=selective"
    assert parse_layout("tp1") == Layout()
    assert parse_layout("tp=2 pp=2 layers=3,1").layers == (3, 1)


def test_degrees_at_their_default_are_not_written() -> None:
    layout = parse_layout("tp4 pp8 cp2 dp16 ep8 etp1 shard8 zero1")
    assert (layout.num_gpus, layout.data_ranks, layout.shard_group, layout.expert_tp) == (1024, 32, 8, 1)
    assert str(layout) == "tp4 pp8 cp2 dp16 ep8 etp1 mbs1 zero1 shard8"
    assert parse_layout("tp4 cp2 dp4 etp4 shard8 zero1") == parse_layout("tp4 cp2 dp4 zero1")
    assert parse_layout("tp4 cp2 dp4 etp4 shard8").model_copy(update={"tp": 2, "dp": 8}).shard_group == 16


def test_a_schedule_is_written_where_it_is_not_the_usual_one() -> None:
    assert str(parse_layout("pp4 schedule=1f1b")) == "tp1 pp4 dp1 mbs1 zero0"
    assert str(parse_layout("pp4 vpp3 schedule=interleaved")) == "tp1 pp4 vpp3 dp1 mbs1 zero0"
    assert str(parse_layout("pp4 schedule=zero-bubble")).endswith(" schedule=zero-bubble")
    assert str(parse_layout("pp4 schedule=zbv")) == "tp1 pp4 vpp2 dp1 mbs1 zero0 schedule=zbv"


def test_an_order_is_written_where_it_seats_ranks_otherwise() -> None:
    layout = parse_layout("tp8 pp4 cp2 dp2 order=tp-pp-cp-dp context=all-to-all")
    assert str(layout) == "tp8 pp4 cp2 dp2 mbs1 zero0 order=tp-pp-cp-dp context=all-to-all"
    assert parse_layout("tp8 pp4 dp2 order=tp-pp-cp-dp").order == "tp-cp-pp-dp"
    assert parse_layout("tp8 dp2 cp2 order=tp-pp-cp-dp") == parse_layout("tp8 dp2 cp2")
    assert parse_layout("tp8 dp2 context=ring") == parse_layout("tp8 dp2")


def test_runs_are_written_short() -> None:
    layout = parse_layout("pp4 layers=12*3,11 recompute=full*2,none*2")
    assert layout.layers == (12, 12, 12, 11)
    assert str(layout).endswith("recompute=full*2,none*2 layers=12*3,11")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tp8 ddp2", "`ddp2`: not part of a layout"),
        ("zer1", "`zer1`: not part of a layout; did you mean `zero`?"),
        ("tp8 tp4", "`tp4`: `tp` is given twice"),
        ("tp0", "`tp`: must be above zero, not `0`"),
        ("zero4", "`zero`: must be at most 3, not `4`"),
        ("vpp2 schedule=1f1b", "schedule 1f1b does not go with vpp2"),
        ("schedule=interleaved", "schedule interleaved does not go with vpp1"),
        ("vpp3 schedule=zbv", "schedule zbv does not go with vpp3"),
        ("vpp1 schedule=dualpipev", "schedule dualpipev does not go with vpp1"),
        ("order=pp-tp-cp-dp", "`order`: "),
        ("cp2 context=rings", "`context`: "),
        ("pp2 layers=1,2,3", "layers names 3 stages; the layout has 2"),
        ("pp4 recompute=full,none", "recompute names 2 stages; the layout has 4"),
        ("layers=a", "`a` is not a list like `12*7,11`"),
        ("layers=3*999999999", "is not a list like"),
        ("tp99999999999999999", "not part of a layout"),
    ],
)
def test_wrong_words_are_named(text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layout(text)
    assert problem in str(caught.value)
    assert "write it like" in caught.value.hint


def test_all_wrong_words_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_layout("tp8 foo pp2 bar tp2")
    assert len(caught.value.problems) == 3


@given(st.text(max_size=40))
def test_any_text_is_a_layout_or_an_input_error(text: str) -> None:
    try:
        layout = parse_layout(text)
    except InputError:
        return
    assert parse_layout(str(layout)) == layout


def test_layouts_are_strict_and_frozen() -> None:
    with pytest.raises(InputError, match="tp: `8` is not a whole number"):
        Layout(tp="8")  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Layout(tp=8).tp = 4  # type: ignore[misc]
