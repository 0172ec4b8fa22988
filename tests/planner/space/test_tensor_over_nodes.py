"""Tensor groups over nodes: priced by the links that they cross, searched where these are fast or where asked."""

from __future__ import annotations

import pytest
from asking import ask, change
from small import MODEL

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import time_terms
from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec
from planner.search.search import search
from planner.space.limits import tensor_degrees
from planner.space.restrictions import parse_restrictions
from planner.space.space import SpaceCache, legal_space

GPT = TransformerSpec(name="gpt-162b", num_layers=32, hidden_size=20480, num_heads=128, vocab_size=51200)
"""The model of section 5.4.1 of Narayanan et al. 2021, which compares degrees of tensor and pipeline parallelism."""


def published(batch: int = 32) -> Question:
    job = {"global_batch": batch, "sequence_length": 2048}
    return ask(GPT, "dgx-a100-80gb", 64, stack="megatron-2021", **job)


def test_the_best_tensor_group_of_the_published_study_fills_a_node() -> None:
    """Figure 13 there: 64 A100, tp x pp = 64, and tp8, the GPUs of a node, is best at both batches."""
    for batch in (32, 128):
        question = published(batch)
        steps = {
            tp: estimate(question, parse_layout(f"tp{tp} pp{64 // tp} dp1 mbs1 recompute=full")).step_seconds
            for tp in (2, 4, 8, 16, 32)
        }
        assert min(steps, key=steps.__getitem__) == 8
        assert steps[8] < steps[16] < steps[32]


def test_kernels_that_send_while_they_multiply_are_of_one_node() -> None:
    overlapping = change(published(), stack={"overlap_tensor_parallel": 0.5, "overlaps": ("tp",)})
    for words in ("tp{} pp{} dp1 mbs1", "tp{} pp{} dp1 mbs1 overlap=tp"):
        layouts = [parse_layout(words.format(tp, 64 // tp)) for tp in (8, 16)]
        hidden = time_terms(overlapping, LayoutColumns.of(layouts))["layer_forward"]["tp_hidden"]
        assert hidden[0] > 0
        assert hidden[1] == 0


def test_it_is_searched_where_asked_and_where_links_are_fast() -> None:
    """Both solvers agree on a cluster whose network is as fast as its nodes' links."""
    cluster = resolve_cluster("dgx-a100-80gb", 16)
    assert tensor_degrees(cluster) == [1, 2, 4, 8]
    model = MODEL.model_copy(update={"num_heads": 16, "num_kv_heads": 16})
    slow = ask(model, cluster, global_batch=8, sequence_length=256)
    asked = search(slow, top=1, restrictions=parse_restrictions(["tp=16"], ()))
    assert asked.best.layout.tp == 16
    links = cluster.links.model_copy(update={"inter_node": cluster.links.intra_node})
    fast = change(slow, cluster={"links": links})
    assert tensor_degrees(fast.cluster) == [1, 2, 4, 8, 16]
    limits = parse_restrictions(["tp>=4", "pp=1", "zero=1", "mbs=1"], ())
    found, again = (search(fast, top=1, restrictions=limits, proof=proof) for proof in ("search", "ilp"))
    assert found.best.step_seconds == pytest.approx(again.best.step_seconds)


def test_a_degree_over_nodes_is_not_selected_from_a_space_without_it() -> None:
    question, asked = published(), parse_restrictions(["tp=8,16"])
    alone = legal_space(question, asked)
    with SpaceCache().shared():
        assert max(legal_space(question, parse_restrictions()).cores.tp) == 8
        assert len(legal_space(question, asked)) == len(alone)
    assert set(alone.cores.tp.tolist()) == {8, 16}
