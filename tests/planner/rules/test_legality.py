"""The rules say what users read, and the space is what they allow."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from asking import change
from effort import few
from small import MODEL, every_axis, small_question

from cost_models.axes.columns import COLUMNS, USUAL_CONTEXT, LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN, schedule_named
from cost_models.specs.choices import CONTEXTS, ORDERS, SCHEDULES
from cost_models.specs.training import TrainingSpec
from planner.rules.legality import check, legal_rows, require_legal
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import enumerate_layouts

TRAINING = TrainingSpec(global_batch=8, sequence_length=256)


def question(gpus: int) -> Question:
    """A small model on a stack that has everything."""
    return every_axis(small_question(gpus, stack="meshwright"))


def mixture(gpus: int) -> Question:
    """The same with a model of two experts."""
    model = MODEL.model_copy(update={"num_experts": 2, "experts_per_token": 1, "moe_ffn_hidden_size": 512})
    return replace(question(gpus), model=model.model_copy(update={"num_moe_layers": model.num_layers}))


def every_candidate(asked: Question) -> LayoutColumns:
    """All layouts of small degrees that can be written at all, most of them illegal."""
    gpus = asked.cluster.num_gpus
    degrees = range(1, gpus + 2)
    worlds = [own for own in product(degrees, repeat=4) if np.prod(own) in (gpus, gpus + 1)]
    pipelines = [
        (vpp, index)
        for (index, schedule), vpp in product(enumerate(SCHEDULES), range(1, MODEL.num_layers + 2))
        if schedule_named(schedule).runs_chunks(vpp)
    ]
    shares = list(product((1, 2), (1, 2))) if asked.model.has_experts else [(1, 0), (2, 0)]
    shards, ways = (2, gpus, gpus + 1), (USUAL_CONTEXT, CONTEXTS.index("all-to-all"))
    axes = (worlds, pipelines, shares, (1, 2, 3, 4, 8), range(4), shards, (0, 1), range(len(ORDERS)), ways)
    rows = np.array([(*world, *pipeline, *share, *rest) for world, pipeline, share, *rest in product(*axes)])
    names = ("tp", "pp", "cp", "dp", "vpp", "schedule", "ep", "etp", "mbs", "zero", "shard", "sp")
    named = dict(zip((*names, "order", "context"), np.ascontiguousarray(rows.T), strict=True))
    named["etp"] = np.where(named["etp"] == 0, named["tp"], named["etp"])
    named["shard"] = np.where(named["zero"] == 0, named["dp"] * named["cp"], named["shard"])
    whole = {name: np.full(len(rows), word.simplest) for name, word in COLUMNS.items()}
    return LayoutColumns(**whole | named)


def covered(layout: Layout) -> bool:
    """What the search leaves out: stages that neither are plain nor nearly divide the blocks, and experts split finer
    than the rest of the model."""
    stages, blocks = layout.num_stages, MODEL.num_layers
    placed = stages <= blocks or (layout.schedule == "interleaved" and stages <= blocks + 2)
    placed &= layout.schedule in PLAIN or -blocks % stages <= 2
    return placed and layout.tp % layout.expert_tp == 0


@pytest.mark.parametrize("asked", [question(1), question(2), question(4), mixture(2)])
@few(3)
def test_the_enumerated_space_is_exactly_what_the_rules_allow(asked: Question) -> None:
    columns = enumerate_layouts(asked, Restrictions())
    enumerated = [str(columns.layout(row)) for row in range(len(columns))]
    candidates = every_candidate(asked)
    fine = legal_rows(asked, candidates)
    legal = {str(layout): layout for layout in map(candidates.layout, np.flatnonzero(fine).tolist())}
    assert len(enumerated) == len(set(enumerated))
    assert set(enumerated) == {text for text, layout in legal.items() if covered(layout)}
    assert not any(check(asked, layout) for layout in legal.values())
    rng = np.random.default_rng(0)
    illegal = rng.choice(np.flatnonzero(~fine), 200, replace=False).tolist()
    assert all(check(asked, candidates.layout(row)) for row in illegal)


def test_a_broken_rule_speaks_in_the_users_numbers() -> None:
    for text, headline, hint in [
        ("tp4 dp4", "layout `tp4 pp1 dp4 mbs1 zero0` uses 16 GPUs; cluster `small` has 8", "dp2 fits"),
        ("tp8", "`tp8` splits 4 key/value heads", "tp1, tp2 or tp4 divide them"),
        ("dp8 mbs3", "global batch 8 is not a multiple of dp8 x mbs3", "24 is"),
        ("tp2 dp4 mbs3", "global batch 8 is not a multiple of dp4 x mbs3", "12 is"),
        ("pp8", "`pp8` makes 8 stages; the model has 4 blocks", "only the first stage and the last"),
        ("dp8 sp", "`sp` splits the sequence over tp, and tp1 has one rank", "leave out `sp`, or use tp2 or"),
        ("pp4 dp2 mbs2", "1f1b needs at least as many microbatches as pipeline ranks: 2 < pp4", ""),
        ("dp8 shard4", "`shard4` says what ZeRO shards over, and zero0 shards nothing", "write zero1"),
        ("dp8 zero1 shard3", "`shard3` does not divide the 8 ranks of dp x cp", ""),
        ("dp8 ep2", "`ep2` shares experts, and model `small` has none", "leave it out"),
        ("dp8 schedule=zero-bubble", "`schedule=zero-bubble` needs pp2 or more", "leave out `schedule`"),
        ("pp2 dp4 schedule=dualpipev", "dualpipev needs at least as many microbatches as stages: 2 < 4", ""),
        ("pp2 dp4 mbs1 zero3 schedule=zbv", "`zero3` gathers weights again", "use zero2, or"),
        ("pp2 dp4 schedule=zero-bubble recompute=full", "`recompute=full` does not go with", "leave out"),
        ("pp4 dp2 layers=2,0,2,0", "`layers` leaves stage 1 empty", "they have the embedding and the head"),
        ("pp4 dp2 layers=1,1,1,2", "`layers` places 5 blocks; the model has 4", "leave out `layers`"),
    ]:
        with pytest.raises(InputError) as caught:
            require_legal(question(8), parse_layout(text))
        assert caught.value.headline.startswith(headline)
        assert caught.value.hint.startswith(hint)


def test_a_ring_deals_a_sequence_in_two_pieces_a_rank() -> None:
    odd = replace(question(8), training=TrainingSpec(global_batch=8, sequence_length=250))
    (problem,) = check(odd, parse_layout("cp2 dp4"))
    assert problem.what == "`cp2` deals a sequence of 250 tokens in 4 pieces"
    assert not check(question(8), parse_layout("cp8"))
    problems = [problem.what for problem in check(odd, parse_layout("tp4 cp2 sp"))]
    assert "`sp` splits a sequence of 250 tokens over cp2 x tp4" in problems


def test_trading_heads_needs_heads() -> None:
    asked = question(8)
    asked = change(asked, stack={"context_parallel": "all-to-all"})
    (problem,) = check(asked, parse_layout("tp2 cp4"))
    assert problem.what.endswith("tp2 x cp4 ranks share 4 key/value heads")
    assert not check(asked, parse_layout("cp4 dp2"))


def test_all_broken_rules_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        require_legal(question(8), parse_layout("tp3 dp1 zero2 sp"))
    told = [problem.what for problem in caught.value.problems]
    assert len(told) == 6
    assert "`zero2` shards over dp, which is 1 here" in told
    assert "`sp` splits a sequence of 256 tokens over tp3" in told


def test_a_stack_is_offered_only_what_it_has() -> None:
    asked = replace(question(2), stack=load_stack("megatron-core"))
    for text, what in (("dp2 zero3", "`zero3`"), ("pp2 schedule=zbv", "`schedule=zbv`")):
        (problem,) = check(asked, parse_layout(text))
        assert problem.what == f"software stack `megatron-core` cannot run {what}"
    assert set(enumerate_layouts(asked, Restrictions()).zero.tolist()) <= {0, 1}
    for schedule in ("zero-bubble", "zbv", "dualpipev"):
        assert not check(question(2), parse_layout(f"pp2 schedule={schedule}"))


def test_weights_that_stay_gathered_may_be_sharded_under_a_split_backward_pass() -> None:
    asked = question(4)
    stays = change(asked, stack={"zero3_gathers_every_microbatch": False})
    layout = parse_layout("pp2 dp2 zero3 schedule=zbv")
    assert check(asked, layout)
    assert not check(stays, layout)
    assert not check(asked, parse_layout("pp2 dp2 zero2 schedule=zbv"))


def test_a_policy_that_drops_nothing_is_searched_where_it_is_asked_for_alone() -> None:
    """Megatron Core's selective recompute is of mixtures and latent attention: a dense model with a flash kernel has
    nothing to drop."""
    dense = small_question(4)
    experts = replace(dense, model=mixture(4).model)
    assert parse_restrictions().recompute(dense) == ("none", "full")
    assert parse_restrictions().recompute(experts) == ("none", "selective", "full")
    assert parse_restrictions(["recompute=selective"]).recompute(dense) == ("selective",)


def test_forbidding_every_policy_is_an_input_error() -> None:
    limits = parse_restrictions(forbid=["recompute=none,selective"])
    with pytest.raises(InputError, match="every recompute policy"):
        limits.recompute(replace(question(4), training=TRAINING.model_copy(update={"recompute": ("none",)})))
    with pytest.raises(InputError, match="contradict one another"):
        parse_restrictions(forbid=["recompute=none", "recompute=selective", "recompute=full"])


def test_experts_and_stages_are_shared_as_rules_say() -> None:
    """Six experts of 512 columns, and stages of the embedding and the head alone besides those of four blocks."""
    asked = replace(question(8), model=mixture(8).model.model_copy(update={"num_experts": 6}))
    for text, what in (
        ("dp8 ep4", "`ep4` shares 6 experts"),
        ("pp4 dp2 ep6", "tp x cp x dp has 2"),
        ("dp8 etp3 ep2", "`etp3` splits 512 columns of an expert"),
        ("pp2 vpp4 dp4", "makes 8 stages; the model has 4 blocks"),
    ):
        assert any(what in problem.what for problem in check(asked, parse_layout(text))), text
    for text in ("dp8 ep2", "dp8 etp4 ep2", "pp2 vpp3 dp4 schedule=interleaved"):
        assert not check(asked, parse_layout(text)), text
