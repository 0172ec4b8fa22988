"""One layout that was asked for: its blocks go where its step is shortest, or it is told why they cannot."""

from __future__ import annotations

from contextlib import suppress

import pytest
from asking import change
from small import small_question

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError
from cost_models.pipeline.pricing import estimate
from planner.placement.leaf import TOLERANCE
from planner.search.search import place_layout, search
from planner.space.restrictions import parse_restrictions


def test_place_finds_what_search_finds() -> None:
    question = small_question(memory="220 MiB")
    for found in search(question).estimates:
        open_layout = found.layout.model_copy(update={"layers": ()})
        placed = place_layout(question, open_layout)
        assert estimate(question, placed).step_seconds == pytest.approx(
            found.step_seconds, rel=10 * TOLERANCE
        )


def test_place_keeps_what_is_placed_and_refuses_what_is_illegal() -> None:
    question = small_question()
    placed = parse_layout("pp2 dp2 zero1 recompute=full layers=3,1")
    assert place_layout(question, placed) == placed
    with pytest.raises(InputError, match="uses 8 GPUs"):
        place_layout(question, parse_layout("tp2 dp4"))


@pytest.mark.parametrize("layout", ["pp4 recompute=full", "pp2 dp2 recompute=full:1/selective"])
def test_place_answers_even_when_nothing_fits(layout: str) -> None:
    question = small_question(memory="20 MiB")
    placed = place_layout(question, parse_layout(layout))
    assert sum(placed.layers) == 4
    assert not estimate(question, placed).fits


@pytest.mark.parametrize("chunks", ["pp3 vpp2", "pp3 schedule=zero-bubble", "pp3 schedule=zbv"])
def test_blocks_that_do_not_divide_are_placed_in_chunks(chunks: str) -> None:
    """Four stages of six a block smaller: the search leaves that out, but it may be asked for."""
    blocks = 31 if "zero" in chunks else 32
    question = small_question(gpus=3, memory="8 GiB", stack="meshwright", global_batch=6)
    question = change(question, model={"num_layers": blocks})
    placed = place_layout(question, parse_layout(f"{chunks} dp1"))
    assert sum(placed.layers) == blocks
    assert max(placed.layers) - min(placed.layers) == 1
    rising = sorted(placed.layers)
    seconds = [
        estimate(question, placed.model_copy(update={"layers": layers})).step_seconds
        for layers in (placed.layers, tuple(rising), tuple(reversed(rising)))
    ]
    assert seconds[0] == min(seconds)


@pytest.mark.parametrize("mixes", ["full:3/none,none", "none,full:2", "full:2/selective,full:1"])
def test_a_stage_has_the_blocks_that_its_recompute_names(mixes: str) -> None:
    question = small_question(memory="8 GiB")
    placed = place_layout(question, parse_layout(f"pp2 dp2 recompute={mixes}"))
    possible = []
    for first in (1, 2, 3):
        with suppress(InputError):
            layout = parse_layout(f"pp2 dp2 recompute={mixes} layers={first},{4 - first}")
            possible.append(estimate(question, layout).step_seconds)
    assert estimate(question, placed).step_seconds == pytest.approx(min(possible))


@pytest.mark.parametrize(
    ("text", "layers"),
    [("pp2 vpp3 dp2", "0,1*4,0"), ("pp2 vpp3 dp2 schedule=zero-bubble", "0,1*4,0"), ("pp5 dp1", None)],
)
def test_stages_of_the_embedding_and_the_head_alone(text: str, layers: str | None) -> None:
    """A stage or two more than blocks: one end is without, or both, and so they may be asked for."""
    gpus = 5 if "pp5" in text else 4
    question = small_question(gpus, memory="8 GiB", stack="meshwright")
    placed = place_layout(question, parse_layout(text))
    priced = estimate(question, placed)
    if layers is not None:
        assert placed == parse_layout(f"{text} layers={layers}")
    assert sorted(placed.layers)[-4:] == [1, 1, 1, 1]
    assert 0 not in placed.layers[1:-1]
    assert priced.time.total == pytest.approx(priced.step_seconds)


def test_the_search_finds_stages_without_blocks() -> None:
    """Blocks that take a third of the head: the last stage is best left to that alone."""
    question = small_question(memory="8 GiB", sequence_length=512)
    wide = {"num_layers": 3, "hidden_size": 256, "vocab_size": 16000}
    question = change(question, model=wide)
    limits = parse_restrictions(["pp=2", "vpp=2"], ["recompute=none"])
    found = search(question, restrictions=limits)
    assert found.best.layout.layers == (1, 1, 1, 0)
    assert found.best.layout.recompute == ("selective",)
    assert "or none" in found.certificate.space
