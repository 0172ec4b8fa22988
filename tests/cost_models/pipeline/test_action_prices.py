"""What an action of a pipeline costs beyond its blocks, and what chunks that take turns leave in sight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.compute.gemm import device_of
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.seconds import Terms
from cost_models.pipeline.stage_costs import stage_costs, time_terms
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

HOST = 1e-3


def asked(**facts: Any) -> Question:
    """A 1.3B model on two nodes whose stack blocks its senders and overlaps nothing unless told."""
    training = TrainingSpec(global_batch=64, sequence_length=2048)
    cluster = resolve_cluster("dgx-a100-80gb", 16)
    question = complete_question(catalog.load_model("gpt2-xl"), cluster, training, stack="megatron-2021")
    constants = {"action_host_seconds": HOST, "host_layer_seconds": 1e-6, "overlap_slowdown": 0.0}
    return replace(
        question,
        stack=question.stack.model_copy(update={"broadcasts_every_batch": False, **facts}),
        hardware=question.hardware.model_copy(update=constants),
    )


def priced(question: Question, *words: str) -> Terms:
    return time_terms(question, LayoutColumns.of([parse_layout(one) for one in words]))


def test_a_hand_over_that_blocks_has_the_device_wait_for_its_host() -> None:
    """For as long again as the host has for every action."""
    for question, words, host in (
        (asked(), "pp2 dp8", 2 * HOST),
        (asked(overlap_pipeline_sends=True), "pp2 dp8", HOST),
        (asked(), "dp16", 0.0),
    ):
        terms = priced(question, words)
        assert terms["stage_forward"]["host"] == terms["stage_backward"]["host"] == host
        assert (terms["stage_forward"]["pp_comm"] > 0) == (host == 2 * HOST)
        assert (terms["p2p"]["pp_comm"] > 0) == (host == HOST)


@pytest.mark.parametrize("words", ["pp2 dp8", "tp2 pp2 dp4", "tp8 dp2"])
def test_batches_sent_on_every_stage_come_before_every_forward_pass(words: str) -> None:
    """17 bytes a pair of positions for the mask, two broadcasts among tensor ranks, and the host has waited."""
    without, question = priced(asked(), words), asked(broadcasts_every_batch=True)
    terms = priced(question, words)
    more = {
        part: terms["stage_forward"][part] - without["stage_forward"].get(part, 0.0)
        for part in terms["stage_forward"]
    }
    kernels = 3 * question.hardware.kernel_seconds
    assert more["compute"][0] == pytest.approx(17 * 2048**2 / device_of(question).memory_rate + kernels)
    assert more["host"][0] == (0.0 if "pp2" in words else HOST), "a host that waits waits once"
    assert (more["tp_comm"][0] > 0) == words.startswith("tp")
    for part, seconds in terms["stage_backward"].items():
        np.testing.assert_array_equal(seconds, without["stage_backward"][part])


def test_chunks_but_the_last_hide_behind_a_round_of_passes() -> None:
    """Of three chunks two have the passes of four microbatches to hide behind, the third has nothing."""
    overlapping = asked(overlap_gradient_reduce=True, reduces_chunks_in_turn=True)
    slow = overlapping.hardware.model_copy(update={"network_efficiency": 0.02})
    question = replace(overlapping, hardware=slow)
    layouts = [parse_layout(f"pp4 vpp{vpp} dp4 zero1 order=tp-cp-pp-dp") for vpp in (1, 3)]
    plain, turns = (time_terms(question, LayoutColumns.of([one])) for one in layouts)
    backward = sum(turns["layer_backward"][part][0, 0] for part in ("compute", "tp_comm", "host"))
    sent = plain["layer_sync"]["dp_comm"][0] + plain["layer_sync"]["dp_hidden"][0]
    assert sent > backward, "one pass does not hide it"
    shown = [sent - backward, (sent + 2 * max(0.0, sent - 4 * backward)) / 3]
    jitter = 1 + plain["layer_sync"]["jitter"][0] / plain["layer_sync"]["dp_comm"][0]
    for terms, expected in zip((plain, turns), shown, strict=True):
        assert terms["layer_sync"]["dp_comm"][0] == pytest.approx(expected, rel=1e-6)
        assert terms["layer_sync"]["dp_comm"][0] + terms["layer_sync"]["dp_hidden"][0] == pytest.approx(sent)
    together = stage_costs(question, LayoutColumns.of(layouts))
    np.testing.assert_allclose(together.layer_sync, np.array(shown) * jitter, rtol=1e-6)


@pytest.mark.parametrize("facts", [{}, {"overlap_gradient_reduce": True}, {"reduces_chunks_in_turn": True}])
def test_chunks_change_nothing_where_the_stack_does_not_take_them_in_turn(facts: dict[str, bool]) -> None:
    plain, turns = (priced(asked(**facts), f"pp4 vpp{vpp} dp4 zero1") for vpp in (1, 3))
    np.testing.assert_array_equal(plain["layer_sync"]["dp_comm"], turns["layer_sync"]["dp_comm"])
