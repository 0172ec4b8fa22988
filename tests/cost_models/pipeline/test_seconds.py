"""Seconds of a step by its parts and under scenarios, and overlap of links."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import ask, change, columns

from cost_models.axes.layout import parse_layout
from cost_models.compute.gemm import device_of
from cost_models.defaults import OWN_STACK
from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.measured.calibration.step_time_fit import COUNT, prior_widths, scenarios_of
from cost_models.pipeline.pricing import estimate, loss_part, seconds_under_scenarios, step_interval
from cost_models.pipeline.seconds import SLICE_SECONDS, Pieces, Terms, exposed_gathers_forward, sum_of_parts
from cost_models.pipeline.stage_costs import stage_costs, time_terms
from cost_models.question import Question
from cost_models.specs.hardware import Scenarios
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
        assert part.chunk == chunk
        assert 0.05 < priced.microbatches * part.seconds / priced.step_seconds < 0.5
        found.append((part.bytes, priced.peak_bytes))
    (few, peak), (many, before) = found
    words, hidden = 128_256, 2048 * 2
    assert few == pytest.approx(2 * 4 * 2048 * words + hidden * words + 8192 * hidden)
    assert many >= 3 * 4 * 8192 * words
    assert before - peak == pytest.approx(many - few, rel=0.1)


NAMES = ("gemm_efficiency", "memory_efficiency", "link_efficiency")
WIDTHS = prior_widths(NAMES)


@pytest.fixture(scope="module")
def question() -> Question:
    return ask("llama2-7b", "dgx-a100-80gb", 8, global_batch=64, sequence_length=4096)


def logs(told: Scenarios) -> np.ndarray:
    return np.log(np.array(list(told.by_constant.values())))


def test_their_mean_is_zero_and_their_covariance_is_what_is_known() -> None:
    covariance = np.array([[0.04, 0.01, 0.0], [0.01, 0.09, 0.0], [0.0, 0.0, 0.01]])
    flat = np.zeros((5, 3))  # runs that say nothing: sources differ by the pulls
    told = scenarios_of(NAMES, covariance, flat, np.full(5, 0.1), ["a"] * 5)
    drawn = logs(told)
    assert drawn.shape == (3, COUNT)
    assert drawn.mean(axis=1) == pytest.approx(np.zeros(3), abs=1e-3)
    assert drawn @ drawn.T / COUNT == pytest.approx(covariance + np.diag(WIDTHS**2), abs=1e-3)


def test_constants_that_differ_between_sources_are_less_sure() -> None:
    """Two constants of which the sources' errors show that one differs by 30 % and the other not at all."""
    rng = np.random.default_rng(3)
    slopes = rng.normal(size=(400, 3))
    sources = [str(row % 8) for row in range(400)]
    shift = {source: 0.3 * (-1) ** int(source) for source in set(sources)}
    errors = np.array([-shift[source] * slope[0] for source, slope in zip(sources, slopes, strict=True)])
    told = scenarios_of(NAMES, 1e-6 * np.eye(3), slopes, errors, sources)
    spread = logs(told).std(axis=1)
    assert spread[0] == pytest.approx(0.3, rel=0.1)
    assert max(spread[1:]) < 0.1
    assert told.unexplained < 0.02


def test_each_scenario_is_priced_as_a_profile_of_its_own(question: Question) -> None:
    told = question.hardware.scenarios
    layout = parse_layout("tp2 pp1 dp4 mbs1 zero1 sp")
    found = seconds_under_scenarios(question, layout)
    for place in (0, 5):
        values = {
            name: getattr(question.hardware, name) * own[place] for name, own in told.by_constant.items()
        }
        alone = estimate(change(question, hardware=values), layout).step_seconds
        assert found[place] == pytest.approx(alone)


def test_an_interval_holds_the_prediction_and_grows_with_its_share(question: Question) -> None:
    layout = parse_layout("dp8 mbs1 zero1")
    seconds = estimate(question, layout).step_seconds
    narrow, wide = (step_interval(question, layout, seconds, share) for share in (0.5, 0.9))
    assert wide[0] < narrow[0] < seconds < narrow[1] < wide[1] < 2 * seconds


def test_scenarios_of_a_file_are_checked() -> None:
    uneven = {"gemm_efficiency": "1", "link_efficiency": "1 1"}
    for factors in ({}, {"gemm": "1 1"}, {"gemm_efficiency": "1 x"}, uneven):
        with pytest.raises(InputError):
            Scenarios(factors=factors, unexplained=0.1)


def overlapped(**facts: Any) -> Question:
    """GPT-2 on two nodes whose stack overlaps nothing unless told, and all that it is told to."""
    job = {"global_batch": 64, "sequence_length": 1024}
    facts = {"overlaps": ("tp", "pp", "dp"), **facts}
    return ask("gpt2-small", "dgx-a100-80gb", 16, stack="megatron-2021", facts=facts, **job)


def data(terms: Terms, kind: str = "dp_comm") -> np.ndarray:
    """(N,) seconds of a block's data-parallel communication once a step."""
    return np.asarray(terms["layer_sync"][kind] + terms["layer_optimizer"][kind])


@pytest.mark.parametrize("rest", ["pp2 dp8 zero0", "pp2 vpp2 dp8 zero1", "tp2 sp dp8 mbs2 zero1"])
def test_what_is_named_hides_and_nothing_is_lost(rest: str) -> None:
    terms = priced(overlapped(), f"{rest} overlap=none", f"{rest} overlap=dp")
    none, named = data(terms)
    sent = data(terms) + data(terms, "dp_hidden")
    assert 0 < named < none
    np.testing.assert_allclose(sent, none)


@pytest.mark.parametrize("vpp", [1, 2, 3])
def test_one_block_is_never_hidden(vpp: int) -> None:
    """Its share of what a rank has stays in sight, however much compute there is to hide behind."""
    question = change(overlapped(), hardware={"overlap_slowdown": 0.0})
    terms = priced(question, f"pp2 vpp{vpp} dp8 mbs8 zero1 overlap=dp")
    sent = data(terms) + data(terms, "dp_hidden")
    np.testing.assert_allclose(data(terms) / sent, 2 / 12)


def test_where_no_layout_says_it_is_as_the_stack_has_it() -> None:
    always = overlapped(
        overlap_gradient_reduce=True, overlap_parameter_gather=True, overlap_tensor_parallel=0.5
    )
    words = "tp2 sp pp2 dp4 zero1"
    unsaid, none = (priced(always, words), priced(always, f"{words} overlap=none"))
    both = priced(always, words, f"{words} overlap=none")
    for term in ("layer_forward", "layer_sync", "stage_forward", "p2p"):
        for part, seconds in unsaid[term].items():
            np.testing.assert_array_equal(both[term][part], [seconds[0], none[term][part][0]])
    assert unsaid["layer_forward"]["tp_comm"] == pytest.approx(0.5 * none["layer_forward"]["tp_comm"])
    assert none["layer_sync"]["dp_hidden"] == 0


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_products_hide_all_chunks_but_one(tp: int) -> None:
    """Behind products that take longer than what is sent; what is sent is the same."""
    question = change(overlapped(), hardware={"overlap_slowdown": 0.0})
    large = f"tp{tp} sp dp{16 // tp} mbs4"
    terms = priced(question, f"{large} overlap=none", f"{large} overlap=tp")
    for term in (terms["layer_forward"], terms["layer_backward"]):
        shown, hidden = term["tp_comm"], term["tp_hidden"]
        np.testing.assert_allclose((shown + hidden)[0], (shown + hidden)[1])
        assert (shown[1] < shown[0]).all()
        assert (shown[1] >= shown[0] / tp * (1 - 1e-9)).all()


def test_a_sender_waits_unless_its_sends_go_on() -> None:
    none, named = (priced(overlapped(), "pp2 dp8 overlap=none"), priced(overlapped(), "pp2 dp8 overlap=pp"))
    assert none["stage_forward"]["pp_comm"] == named["p2p"]["pp_comm"] > 0
    assert none["p2p"]["pp_comm"] == named["stage_forward"]["pp_comm"] == 0


def test_layouts_that_differ_in_chunks_alone_are_priced_apart() -> None:
    """Prices are worked out once for rows that are alike, and these are not."""
    words = [f"pp2 vpp{vpp} dp8 mbs8 zero1 overlap=dp" for vpp in (1, 2, 3)]
    question = overlapped(reduces_chunks_in_turn=True)
    costs = stage_costs(question, columns(*words))
    np.testing.assert_allclose(costs.layer_sync, sum_of_parts(priced(question, *words)["layer_sync"]))
    assert (np.diff(costs.layer_sync) != 0).all()


QUESTION = ask("llama3-8b", "dgx-h100", 64, global_batch=64, sequence_length=8192)


def test_the_axis_inside_the_node_is_the_cheap_one() -> None:
    """tp2 pp4 in a node: boundaries on NVLink, gradients over the network; by default the other way round."""
    data, stages = (
        estimate(QUESTION, parse_layout(f"tp2 pp4 dp8 zero1 sp order={order}"))
        for order in ("tp-cp-dp-pp", "tp-pp-dp-cp")
    )
    assert stages.time["pp_comm"] < data.time["pp_comm"]
    reduced = [one.time["dp_comm"] + one.hidden_comm["dp_comm"] for one in (data, stages)]
    assert reduced[0] < reduced[1]
    assert data.rank_memory == stages.rank_memory
    assert data.time["compute"] == stages.time["compute"]
