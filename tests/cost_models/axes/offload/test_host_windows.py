"""What binds of a host, how long a ring must be, and from how many tokens on nothing is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.axes.layout import parse_layout
from cost_models.axes.offload.channels import HostWindows, host_windows, smallest_ring, update_seconds
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

STREAMED = "mbs1 zero0 offload=streamed"


def asked(sequence: int = 2048) -> Question:
    cluster = catalog.load_cluster("hgx-h200").model_copy(update={"gpus_per_node": 1})
    training = TrainingSpec(global_batch=8, sequence_length=sequence)
    return complete_question(catalog.load_model("llama2-13b"), cluster, training, stack="stronghold")


def windows(question: Question, layout: str = STREAMED) -> HostWindows:
    found = host_windows(question, estimate(question, parse_layout(layout)))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("transfer", "streamed", "before", "ring"),
    [
        (0.5, 8, 0, 2),  # shorter than a pass: one computes, one comes
        (1.0, 8, 0, 2),
        (1.5, 3, 1, None),  # the first comes in 1.5 while the block before takes 1
        (1.5, 3, 2, None),  # they come at 1.5, 3.0 and 4.5; the third is wanted at 4, whatever the ring
        (
            1.25,
            4,
            2,
            3,
        ),  # at 1.25, 2.5, 3.75, 5.0; wanted at 2, 3, 4, 5: no buffer may wait for one to be free
        (2.0, 8, 0, None),
    ],
)
def test_rings_by_hand(transfer: float, streamed: int, before: int, ring: int | None) -> None:
    assert smallest_ring(1.0, transfer, streamed, before) == ring


@given(st.floats(0.1, 3.0), st.integers(1, 20), st.integers(0, 20))
def test_a_ring_of_two_suffices_where_transfers_are_shorter(
    transfer: float, streamed: int, before: int
) -> None:
    ring = smallest_ring(1.0, transfer, streamed, before)
    if transfer <= 1 and streamed:
        assert ring == 2
    if ring is not None:
        assert 2 <= ring <= max(2, streamed)


def test_break_even_tokens_hide_what_they_say() -> None:
    """Beyond the tokens that break even a block's weights come faster than it computes."""
    now = windows(asked())
    assert now.ring is None
    assert now.forward_tokens is not None
    assert now.transfer is not None
    enough = windows(asked(1 << (int(now.forward_tokens) - 1).bit_length()))
    assert enough.ring == 2
    assert enough.transfer == pytest.approx(now.transfer)  # however many tokens there are


def test_the_update_breaks_even_where_its_time_is_the_passes() -> None:
    """u · F / 6 over the share of the passes that hides anything: 6 FLOPs a parameter and token there and back."""
    question, now = (
        asked(),
        windows(asked(), "mbs8 zero0 offload=streamed"),
    )  # one microbatch: no sums on the CPU
    assert now.update_tokens is not None
    passes = now.hidden / question.hardware.host_overlap
    blocks = 40 * (4 * 5120**2 + 3 * 5120 * 13824)
    rate = 6 * blocks * now.microbatch_tokens / passes
    by_rule = update_seconds(question) * rate / 6 / question.hardware.host_overlap
    assert now.update_tokens == pytest.approx(by_rule, rel=0.02)


def test_what_binds_is_what_is_waited_for() -> None:
    assert windows(asked()).binding in ("host link up", "host link down")
    long = asked(8192)
    assert windows(long, "mbs4 zero0 recompute=full offload=streamed").binding == "nothing"
    # all passes would hide the updates, but they wait for the last microbatch's
    one = windows(long, "mbs1 zero0 recompute=full offload=streamed")
    assert one.late_hidden == pytest.approx(one.hidden / 8)
    assert (one.binding, one.update < one.hidden) == ("CPU update", True)
    slow = replace(long, hardware=long.hardware.model_copy(update={"host_update_seconds": 5e-9}))
    assert windows(slow, "mbs4 zero0 recompute=full offload=streamed").binding == "CPU update"


def test_a_stack_that_updates_afterwards_hides_nothing() -> None:
    question = asked()
    stack = question.stack.model_copy(update={"overlaps_host": False})
    assert windows(replace(question, stack=stack)).update_tokens is None


def test_what_stays_on_the_device_has_no_channels() -> None:
    assert host_windows(asked(), estimate(asked(), parse_layout("mbs1 zero0"))) is None
