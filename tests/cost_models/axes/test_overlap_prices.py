"""What `overlap=` and the order of the mesh axes do to prices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asking import ask, change, columns

from cost_models.axes.layout import parse_layout
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.seconds import Terms, sum_of_parts
from cost_models.pipeline.stage_costs import stage_costs, time_terms
from cost_models.question import Question


def asked(**facts: Any) -> Question:
    """GPT-2 on two nodes whose stack overlaps nothing unless told, and all that it is told to."""
    job = {"global_batch": 64, "sequence_length": 1024}
    facts = {"overlaps": ("tp", "pp", "dp"), **facts}
    return ask("gpt2-small", "dgx-a100-80gb", 16, stack="megatron-2021", facts=facts, **job)


def priced(question: Question, *words: str) -> Terms:
    return time_terms(question, columns(*words))


def data(terms: Terms, kind: str = "dp_comm") -> np.ndarray:
    """(N,) seconds of a block's data-parallel communication once a step."""
    return np.asarray(terms["layer_sync"][kind] + terms["layer_optimizer"][kind])


@pytest.mark.parametrize("rest", ["pp2 dp8 zero0", "pp2 vpp2 dp8 zero1", "tp2 sp dp8 mbs2 zero1"])
def test_what_is_named_hides_and_nothing_is_lost(rest: str) -> None:
    terms = priced(asked(), f"{rest} overlap=none", f"{rest} overlap=dp")
    none, named = data(terms)
    sent = data(terms) + data(terms, "dp_hidden")
    assert 0 < named < none
    np.testing.assert_allclose(sent, none)


@pytest.mark.parametrize("vpp", [1, 2, 3])
def test_one_block_is_never_hidden(vpp: int) -> None:
    """Its share of what a rank has stays in sight, however much compute there is to hide behind."""
    question = change(asked(), hardware={"overlap_slowdown": 0.0})
    terms = priced(question, f"pp2 vpp{vpp} dp8 mbs8 zero1 overlap=dp")
    sent = data(terms) + data(terms, "dp_hidden")
    np.testing.assert_allclose(data(terms) / sent, 2 / 12)


def test_where_no_layout_says_it_is_as_the_stack_has_it() -> None:
    always = asked(overlap_gradient_reduce=True, overlap_parameter_gather=True, overlap_tensor_parallel=0.5)
    words = "tp2 sp pp2 dp4 zero1"
    unsaid, none = priced(always, words), priced(always, f"{words} overlap=none")
    both = priced(always, words, f"{words} overlap=none")
    for term in ("layer_forward", "layer_sync", "stage_forward", "p2p"):
        for part, seconds in unsaid[term].items():
            np.testing.assert_array_equal(both[term][part], [seconds[0], none[term][part][0]])
    assert unsaid["layer_forward"]["tp_comm"] == pytest.approx(0.5 * none["layer_forward"]["tp_comm"])
    assert none["layer_sync"]["dp_hidden"] == 0


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_products_hide_all_chunks_but_one(tp: int) -> None:
    """Behind products that take longer than what is sent; what is sent is the same."""
    question = change(asked(), hardware={"overlap_slowdown": 0.0})
    large = f"tp{tp} sp dp{16 // tp} mbs4"
    terms = priced(question, f"{large} overlap=none", f"{large} overlap=tp")
    for term in (terms["layer_forward"], terms["layer_backward"]):
        shown, hidden = term["tp_comm"], term["tp_hidden"]
        np.testing.assert_allclose((shown + hidden)[0], (shown + hidden)[1])
        assert (shown[1] < shown[0]).all()
        assert (shown[1] >= shown[0] / tp * (1 - 1e-9)).all()


def test_a_sender_waits_unless_its_sends_go_on() -> None:
    none, named = priced(asked(), "pp2 dp8 overlap=none"), priced(asked(), "pp2 dp8 overlap=pp")
    assert none["stage_forward"]["pp_comm"] == named["p2p"]["pp_comm"] > 0
    assert none["p2p"]["pp_comm"] == named["stage_forward"]["pp_comm"] == 0


def test_layouts_that_differ_in_chunks_alone_are_priced_apart() -> None:
    """Prices are worked out once for rows that are alike, and these are not."""
    words = [f"pp2 vpp{vpp} dp8 mbs8 zero1 overlap=dp" for vpp in (1, 2, 3)]
    question = asked(reduces_chunks_in_turn=True)
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
