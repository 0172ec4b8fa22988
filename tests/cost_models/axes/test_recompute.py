"""Mixes of recompute policies: how they are written, and the blocks they give each policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.axes.layout import parse_layout
from cost_models.axes.stages import blocks_by_policy, mix_of, policies_in, policy_of_blocks
from cost_models.errors import InputError

COUNTS = st.tuples(*(st.integers(0, 9),) * 3)


@given(COUNTS)
def test_a_mix_says_what_it_was_made_from(counts: tuple[int, ...]) -> None:
    assert blocks_by_policy((sum(counts),), (mix_of(counts),))[0].tolist() == list(counts)
    assert len(policy_of_blocks(sum(counts), mix_of(counts))) == sum(counts)


@given(st.lists(COUNTS.filter(any), min_size=4, max_size=4))
def test_layouts_with_mixes_round_trip(stages: list[tuple[int, ...]]) -> None:
    layers = ",".join(str(sum(counts)) for counts in stages)
    recompute = ",".join(mix_of(counts) for counts in stages)
    layout = parse_layout(f"pp4 recompute={recompute} layers={layers}")
    assert parse_layout(str(layout)) == layout
    assert blocks_by_policy(layout.layers, layout.stage_recompute).tolist() == [list(c) for c in stages]


def test_by_hand() -> None:
    assert mix_of((5, 0, 3)) == "full:3"
    assert mix_of((0, 5, 3)) == "full:3/selective"
    assert mix_of((2, 5, 3)) == "full:3/selective:5"
    assert policies_in("full:3") == ("full", "none")
    assert policies_in("full:3/selective") == ("full", "selective")
    assert policy_of_blocks(4, "full:1/selective:2") == ("full", "selective", "selective", "none")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("full:x", "`full:x` is not none / selective / full"),
        ("full:2/full", "names full twice"),
        ("full/selective", "leaves the number of blocks open for full and selective"),
    ],
)
def test_what_is_no_mix_is_said(word: str, told: str) -> None:
    with pytest.raises(InputError, match="is not a layout") as caught:
        parse_layout(f"pp2 recompute={word}")
    assert told in str(caught.value.problems[0])


def test_a_mix_cannot_name_more_blocks_than_the_stage_has() -> None:
    with pytest.raises(InputError, match="names more blocks than the 2 of stage 0"):
        blocks_by_policy((2,), ("full:3",))
