"""What seconds of a stage are made of beyond its blocks: actions, gathers, sums of Megatron's years, LAMB, the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import ask, change, columns

from cost_models.axes.layout import parse_layout
from cost_models.compute.gemm import device_of
from cost_models.defaults import OWN_STACK
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.measured.calibration.profile_fits import under_nearest
from cost_models.measured.calibration.step_time_fit import errors_of
from cost_models.measured.runs.cases import timed_cases
from cost_models.pipeline.pricing import estimate, loss_part
from cost_models.pipeline.seconds import SLICE_SECONDS, Pieces, Terms, exposed_gathers_forward
from cost_models.pipeline.stage_costs import stage_costs, time_terms
from cost_models.question import Question
from cost_models.specs.training import OptimizerName, TrainingSpec

HOST = 1e-3


def asked(**facts: Any) -> Question:
    """A 1.3B model on two nodes whose stack blocks its senders and overlaps nothing unless told."""
    job = {"global_batch": 64, "sequence_length": 2048}
    facts = {"broadcasts_every_batch": False, **facts}
    constants = {"action_host_seconds": HOST, "host_layer_seconds": 1e-6, "overlap_slowdown": 0.0}
    question = ask("gpt2-xl", "dgx-a100-80gb", 16, stack="megatron-2021", facts=facts, **job)
    return change(question, hardware=constants)


def priced(question: Question, *words: str) -> Terms:
    return time_terms(question, columns(*words))


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
    question = change(overlapping, hardware={"network_efficiency": 0.02})
    layouts = [f"pp4 vpp{vpp} dp4 zero1 order=tp-cp-pp-dp" for vpp in (1, 3)]
    plain, turns = (priced(question, layout) for layout in layouts)
    backward = sum(turns["layer_backward"][part][0, 0] for part in ("compute", "tp_comm", "host"))
    sent = plain["layer_sync"]["dp_comm"][0] + plain["layer_sync"]["dp_hidden"][0]
    assert sent > backward, "one pass does not hide it"
    shown = [sent - backward, (sent + 2 * max(0.0, sent - 4 * backward)) / 3]
    jitter = 1 + plain["layer_sync"]["jitter"][0] / plain["layer_sync"]["dp_comm"][0]
    for terms, expected in zip((plain, turns), shown, strict=True):
        assert terms["layer_sync"]["dp_comm"][0] == pytest.approx(expected, rel=1e-6)
        assert terms["layer_sync"]["dp_comm"][0] + terms["layer_sync"]["dp_hidden"][0] == pytest.approx(sent)
    together = stage_costs(question, columns(*layouts))
    np.testing.assert_allclose(together.layer_sync, np.array(shown) * jitter, rtol=1e-6)


def deepspeed_question(model: str = "gpt3-175b", gpus: int = 64, **facts: Any) -> Question:
    """Nothing slows down what overlaps."""
    hardware = catalog.load_profile("datasheet-gpu").model_copy(update={"overlap_slowdown": 0.0})
    return Question(
        model=catalog.load_model(model),
        cluster=catalog.load_cluster("dgx-a100-80gb").model_copy(update={"nodes": gpus // 8}),
        training=TrainingSpec(global_batch=gpus, sequence_length=2048),
        stack=catalog.load_stack("deepspeed-v0.5").model_copy(update=facts),
        hardware=hardware,
    )


def test_each_matrix_hides_the_gather_of_the_next_and_no_other() -> None:
    """Of 12 h² weights the four matrices have 3, 1, 4 and 4; what is gathered for the next outlasts some."""
    question = deepspeed_question()
    pieces = Pieces(question, columns("dp64 zero3"), True)
    gather, window = float(pieces.links.block.gather[0]), float(pieces.forward_window[0])
    products, core = float(pieces.block.matrices_forward[0]), float(pieces.block.core_forward[0])
    compute = np.array([3, 1, 4, 4]) / 12 * (window - core) + [core, 0, 0, 0]
    assert products > 0.8 * (window - core)
    wanted = 4 * 64 * SLICE_SECONDS + np.maximum(0, gather * np.array([1, 4, 4, 3]) / 12 - compute).sum()
    shown, hidden = exposed_gathers_forward(pieces)
    assert shown[0] == pytest.approx(wanted, rel=0.05)
    assert shown[0] + hidden[0] == pytest.approx(gather + 4 * 64 * SLICE_SECONDS)
    at_once, _ = exposed_gathers_forward(
        Pieces(deepspeed_question(zero3_waits_for_device=False), pieces.columns, True)
    )
    assert at_once[0] == pytest.approx(max(0.0, gather - window))


@pytest.mark.parametrize(("model", "gathers"), [("gpt3-175b", 2 + 8 / 12), ("llama2-7b", 2)])
def test_what_is_recomputed_is_gathered_again_unless_it_was_kept(model: str, gathers: float) -> None:
    """Of GPT-3 the last matrix alone is used again before 1e9 parameters pass, of 7B everything is."""
    question = deepspeed_question(model, zero3_waits_for_device=False)
    moved = []
    for policy in ("none", "full"):
        priced = estimate(question, parse_layout(f"dp64 zero3 recompute={policy}"))
        moved.append(priced.time["dp_comm"] + priced.hidden_comm["dp_comm"])
    block = Pieces(question, columns("dp64 zero3"), True).links.block
    more = question.model.num_layers * float(block.gather[0]) * (gathers - 2)
    assert moved[1] - moved[0] == pytest.approx(more, rel=1e-4, abs=1e-9)


def test_zero3_of_2021_collapses_with_few_tokens_a_gpu() -> None:
    """Table 2 of Narayanan et al. 2021: half the tokens a GPU on twice the GPUs take as long."""
    cases = [one for one in timed_cases() if one.question.stack.name == "deepspeed-v0.5"]
    assert len(cases) == 6
    errors = errors_of(under_nearest([catalog.load_profile("a100-deepspeed")], cases))
    assert np.median(np.abs(errors)) < 0.1
    assert np.abs(errors).max() < 0.2


def gpt2_estimate(layout: str, optimizer: OptimizerName, **facts: object) -> Estimate:
    job = {"global_batch": 64, "sequence_length": 1024, "optimizer": optimizer}
    question = ask("gpt2-xl", "dgx-h100", 8, stack="megatron-core", facts=facts, **job)
    return estimate(question, parse_layout(layout))


def test_norms_are_added_up_where_parameters_are_split() -> None:
    def communication(layout: str, optimizer: OptimizerName) -> float:
        time = gpt2_estimate(layout, optimizer).time
        return time.get("dp_comm", 0.0) + time.get("tp_comm", 0.0)

    for layout, split in (
        ("dp8 mbs1 zero0", False),
        ("pp8 mbs1 zero0", False),
        ("dp8 mbs1 zero1", True),
        ("tp8 mbs1 zero0", True),
    ):
        more = communication(layout, "lamb") - communication(layout, "adamw")
        assert (0 < more < 1e-3) is split


def test_chunks_hold_what_is_planned_less() -> None:
    """8,192 tokens of Llama 3.2 1B (docs/concepts/executor.md): 4.2 GB of fp32 logits held three times, or a chunk of
    2,048 twice with the gradient of the output matrix and of the hidden states."""
    question = ask("llama3.2-1b", "dgx-h100", 1, stack=OWN_STACK, global_batch=8, sequence_length=8192)
    layout, found = parse_layout("mbs1"), []
    for chunk in (2048, None):
        asked = change(question, stack={"loss_chunk": chunk})
        part, priced = loss_part(asked, layout), estimate(asked, layout)
        assert part is not None
        assert part.chunk == chunk
        assert 0.05 < priced.microbatches * part.seconds / priced.step_seconds < 0.5
        found.append((part.bytes, priced.peak_bytes))
    (few, peak), (many, before) = found
    words, hidden = 128_256, 2048 * 2
    assert few == pytest.approx(2 * 4 * 2048 * words + hidden * words + 8192 * hidden)
    assert many >= 3 * 4 * 8192 * words
    assert before - peak == pytest.approx(many - few, rel=0.1)
