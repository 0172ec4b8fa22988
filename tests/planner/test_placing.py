"""One layout that was asked for: its blocks go where its step is shortest, or it is told why they cannot."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from small import small_question

from cost_models.errors import InputError
from cost_models.estimating import estimate
from cost_models.specs.layout import parse_layout
from planner.placement import TOLERANCE
from planner.placing import place
from planner.search import search


def test_place_finds_what_search_finds() -> None:
    question = small_question(memory="220 MiB")
    for found in search(question).estimates:
        open_layout = found.layout.model_copy(update={"layers": ()})
        placed = place(question, open_layout)
        assert estimate(question, placed).step_seconds == pytest.approx(
            found.step_seconds, rel=10 * TOLERANCE
        )


def test_place_keeps_what_is_placed_and_refuses_what_is_illegal() -> None:
    question = small_question()
    placed = parse_layout("pp2 dp2 zero1 recompute=full layers=3,1")
    assert place(question, placed) == placed
    with pytest.raises(InputError, match="uses 8 GPUs"):
        place(question, parse_layout("tp2 dp4"))


@pytest.mark.parametrize("layout", ["pp4 recompute=full", "pp2 dp2 recompute=full:1/selective"])
def test_place_answers_even_when_nothing_fits(layout: str) -> None:
    question = small_question(memory="20 MiB")
    placed = place(question, parse_layout(layout))
    assert sum(placed.layers) == 4
    assert not estimate(question, placed).fits


@pytest.mark.parametrize("chunks", ["pp3 vpp2", "pp3 schedule=zero-bubble", "pp3 schedule=zbv"])
def test_blocks_that_do_not_divide_are_placed_in_chunks(chunks: str) -> None:
    """Four stages of six a block smaller: the search leaves that out, but it may be asked for."""
    blocks = 31 if "zero" in chunks else 32
    question = small_question(gpus=3, memory="8 GiB", stack="meshwright", global_batch=6)
    question = replace(question, model=question.model.model_copy(update={"num_layers": blocks}))
    placed = place(question, parse_layout(f"{chunks} dp1"))
    assert sum(placed.layers) == blocks
    assert max(placed.layers) - min(placed.layers) == 1
    seconds = [
        estimate(question, placed.model_copy(update={"layers": layers})).step_seconds
        for layers in (placed.layers, sorted(placed.layers), sorted(placed.layers, reverse=True))
    ]
    assert seconds[0] == min(seconds)


@pytest.mark.parametrize("mixes", ["full:3/none,none", "none,full:2", "full:2/selective,full:1"])
def test_a_stage_has_the_blocks_that_its_recompute_names(mixes: str) -> None:
    question = small_question(memory="8 GiB")
    placed = place(question, parse_layout(f"pp2 dp2 recompute={mixes}"))
    possible = []
    for first in (1, 2, 3):
        with suppress(InputError):
            layout = parse_layout(f"pp2 dp2 recompute={mixes} layers={first},{4 - first}")
            possible.append(estimate(question, layout).step_seconds)
    assert estimate(question, placed).step_seconds == pytest.approx(min(possible))


@pytest.mark.parametrize(
    "text", ["pp2 dp2 recompute=full:3/none", "pp2 vpp2 dp2 recompute=full:2,none,none,none"]
)
def test_recompute_of_more_blocks_than_there_are(text: str) -> None:
    with pytest.raises(InputError, match="blocks; the model has 4"):
        place(small_question(), parse_layout(text))


def test_recompute_of_more_blocks_than_equal_stages_have() -> None:
    question = small_question(memory="8 GiB")
    question = replace(question, model=question.model.model_copy(update={"num_layers": 8}))
    with pytest.raises(InputError, match="than a stage of equal ones has") as caught:
        place(question, parse_layout("pp2 vpp2 dp2 recompute=full:4,none,none,none"))
    assert "layers=" in caught.value.hint
