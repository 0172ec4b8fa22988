"""The working window as data: the 12 blocks and window of 4 of STRONGHOLD's artifact by hand, and laws for all."""

from __future__ import annotations

from itertools import product

import pytest

from cost_models.axes.layout import parse_layout
from cost_models.axes.offload.residency import Turn, residencies, residency_of_blocks, turns_of_rank


def turns_of(resident: int, streamed: int, ring: int, microbatches: int = 1) -> list[Turn]:
    layout = parse_layout(f"mbs1 layers={resident + streamed} offload=streamed:{streamed} ring={ring}")
    return turns_of_rank(layout, [0], microbatches)


def moves(turns: list[Turn], what: str, kind: str) -> list[tuple[int, int]]:
    """(block at work, block moved) in passes of a kind."""
    return [
        (turn.use.block, move.block)
        for turn in turns
        if turn.use.kind == kind
        for move in (*turn.before, *turn.after)
        if move.what == what
    ]


def test_twelve_blocks_and_a_window_of_four() -> None:
    """The first four stay; of the others each comes when a buffer is free, once each way; the last four stay for their
    backward passes. (The artifact has twice the buffers, and gives those of the first four away meanwhile.)"""
    turns = turns_of(4, 8, ring=4)
    first, rest = [(0, 4), (0, 5), (0, 6), (0, 7)], [(5, 8), (6, 9), (7, 10), (8, 11)]
    assert moves(turns, "load", "F") == first + rest
    assert moves(turns, "drop", "F") == [(4, 4), (5, 5), (6, 6), (7, 7)]
    assert moves(turns, "load", "B") == [(10, 7), (9, 6), (8, 5), (7, 4)]
    gone = [(block, block) for block in range(11, 3, -1)]
    assert moves(turns, "drop", "B") == moves(turns, "down", "B") == moves(turns, "update", "B") == gone


def test_the_artifacts_own_window() -> None:
    """All twelve streamed, a buffer for the pass and four for what comes: block i + 4 comes before block i runs, block
    j − 5 before j runs backward, as its buffer then is the one that the artifact still keeps."""
    turns = turns_of(0, 12, ring=5)
    ahead = [(block, block + 4) for block in range(1, 8)]
    assert moves(turns, "load", "F") == [(0, block) for block in range(5)] + ahead
    assert moves(turns, "drop", "F") == [(block, block) for block in range(7)]
    assert moves(turns, "load", "B") == [(block, block - 4) for block in range(10, 3, -1)]


@pytest.mark.parametrize(
    ("resident", "streamed", "ring", "microbatches"), [*product((0, 2), (1, 5), (1, 2, 4), (1, 3))]
)
def test_the_ring_holds_what_runs_and_no_more_than_it_has(
    resident: int, streamed: int, ring: int, microbatches: int
) -> None:
    loaded: set[int] = set()
    for turn in turns_of(resident, streamed, ring, microbatches):
        for move in turn.before:
            assert move.what == "load"
            assert move.block not in loaded
            loaded.add(move.block)
        assert len(loaded) <= ring
        assert turn.use.block in loaded or turn.use.block < resident
        loaded -= {move.block for move in turn.after if move.what == "drop"}
    assert not loaded


def test_every_block_is_updated_once_after_its_last_pass() -> None:
    turns = turns_of(1, 3, ring=2, microbatches=2)
    updates = [(turn.use, move.block) for turn in turns for move in turn.after if move.what == "update"]
    assert [(use.microbatch, use.block, block) for use, block in updates] == [(1, 3, 3), (1, 2, 2), (1, 1, 1)]
    assert len(moves(turns, "down", "B")) == 6  # gradients go down after every backward pass


def test_pipelines_have_a_window_too() -> None:
    """Of two chunks of an interleaved schedule, in the order of its passes."""
    layout = parse_layout("pp2 vpp2 mbs1 layers=2,2,2,2 offload=streamed:3 ring=2")
    lives = residency_of_blocks(layout, [1, 3])
    assert lives == {2: "resident", 3: "streamed", 6: "streamed", 7: "streamed"}
    turns = turns_of_rank(layout, [1, 3], 4)
    assert [turn.use for turn in turns if turn.use.microbatch == 0 and turn.use.kind == "F"] == [
        ("F", 2, 0),
        ("F", 3, 0),
        ("F", 6, 0),
        ("F", 7, 0),
    ]
    assert sum(move.what == "update" for turn in turns for move in turn.after) == 3


def test_blocks_that_stay_are_the_first() -> None:
    of = residencies
    layout = parse_layout("offload=states:1/parked:1/streamed:2")
    assert of(layout, 6) == ["resident", "resident", "states", "parked", "streamed", "streamed"]
    assert of(layout, 2) == ["streamed", "streamed"]
    assert of(parse_layout("offload=states:1/streamed"), 3) == ["states", "streamed", "streamed"]
    assert of(parse_layout("offload=activations"), 2) == ["resident", "resident"]
