"""Moves of a step at priced seconds: lanes add up to the price, nothing moves before it can, the step lasts as long."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.axes.offload.channels import channel_seconds
from cost_models.axes.offload.moves import MoveSpan, predicted_moves
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate, predicted_spans
from cost_models.question import Question
from cost_models.specs.cluster import DriveSpec
from cost_models.specs.training import TrainingSpec

LAYOUTS = (
    "mbs2 zero0 offload=states:31",
    "mbs1 zero0 offload=streamed ring=3",
    "mbs8 zero0 recompute=full offload=streamed",
    "mbs2 zero0 offload=states:2/parked:4/streamed:6",
    "mbs2 zero0 offload=states/drive",
    "mbs1 pp2 vpp2 zero0 layers=10,10,10,10 offload=streamed:8/states:3 ring=2",
    "mbs1 dp2 zero3 offload=streamed:30",
)


def asked(stack: str = "meshwright") -> Question:
    drive = DriveSpec.model_validate({"capacity": "8 TB", "read": "7 GB/s", "write": "4 GB/s"})
    cluster = catalog.load_cluster("hgx-h200").model_copy(update={"gpus_per_node": 2, "drive": drive})
    training = TrainingSpec(global_batch=8, sequence_length=2048)
    return complete_question(catalog.load_model("llama2-13b"), cluster, training, stack=stack)


def moves_of(words: str, stack: str = "meshwright") -> tuple[MoveSpan, ...]:
    return predicted_moves(asked(stack), parse_layout(words))


@pytest.mark.parametrize("stack", ["meshwright", "deepspeed"])
@pytest.mark.parametrize("words", LAYOUTS)
def test_lanes_add_up_to_the_price(words: str, stack: str) -> None:
    busy: dict[tuple[int, str], list[MoveSpan]] = defaultdict(list)
    for move in moves_of(words, stack):
        busy[move.rank, move.lane].append(move)
    layout = parse_layout(words)
    channels = channel_seconds(asked(stack), LayoutColumns.of([layout]))
    priced = {
        "down": channels.down + channels.park,
        "up": channels.up + channels.back,
        "update": channels.update,
        "drive": channels.read + channels.write,
    }
    for rank in range(layout.pp):
        for lane, seconds in priced.items():
            own = sorted(busy[rank, lane], key=lambda move: move.start)
            assert sum(move.end - move.start for move in own) == pytest.approx(float(seconds[0]))
            assert all(one.end <= other.start + 1e-9 for one, other in pairwise(own))  # one at a time


@pytest.mark.parametrize("words", LAYOUTS)
def test_a_step_lasts_as_long_as_its_moves(words: str) -> None:
    """What is priced as one sum is what the moves make of it, where passes hide all that they can."""
    question, layout = asked(), parse_layout(words)
    question = replace(question, hardware=question.hardware.model_copy(update={"host_overlap": 1.0}))
    ends = max(move.end for move in predicted_moves(question, layout))
    step = estimate(question, layout).step_seconds
    passes = max(span.end for span in predicted_spans(question, layout) if span.microbatch >= 0)
    assert max(ends, passes) == pytest.approx(step, rel=0.17)


def test_gradients_go_down_after_their_pass_and_before_their_update() -> None:
    moves = moves_of("mbs2 zero0 offload=states:31")
    passes = list(predicted_spans(asked(), parse_layout("mbs2 zero0 offload=states:31")))
    last = max((span for span in passes if span.kind == "B"), key=lambda span: span.start)
    down = {move.block: move for move in moves if move.lane == "down"}
    update = {move.block: move for move in moves if move.lane == "update"}
    up = {move.block: move for move in moves if move.lane == "up"}
    assert set(down) == set(update) == set(up) == set(range(9, 40))
    for block in down:
        assert last.start < down[block].start < down[block].end <= update[block].start
        assert max(update[block].end, last.end) <= up[block].start


def test_weights_come_for_their_passes() -> None:
    """One load a block for the forward passes of a microbatch, one for the backward ones, but for those that stay."""
    loads = [
        move.block for move in moves_of("mbs8 zero0 recompute=full offload=streamed") if move.lane == "up"
    ]
    assert loads == [*range(40), *reversed(range(38))]
    again = [move.block for move in moves_of("mbs4 dp2 zero3 offload=streamed") if move.lane == "up"]
    assert sorted(again) == sorted(2 * list(range(40)))  # `fully_shard` keeps none


def test_activations_go_down_and_come_back() -> None:
    moves = list(moves_of("mbs4 zero0 recompute=full offload=activations"))
    assert {(move.lane, move.what) for move in moves} == {("down", "activations"), ("up", "activations")}
    assert len(moves) == 2 * 2 * 40


def test_nothing_moves_without_offload() -> None:
    assert moves_of("mbs2 zero0") == ()
