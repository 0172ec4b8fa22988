"""Whole replicas in several pools: the search is brute force, bounds are below every price, each refusal has words."""

from __future__ import annotations

import numpy as np
import pytest
from calling import refusal
from small import mixed_question, pool, replica_prices

from cost_models.axes.layout import parse_layout
from cost_models.errors import InfeasibleError, InputError
from cost_models.question import Question
from planner.placement.leaf import TOLERANCE
from planner.placement.patterns import best_pattern, chunk_patterns
from planner.rules.legality import check, require_legal
from planner.search.pools import ReplicaSpace, count_layouts, replica_layouts
from planner.search.search import place_layout, search
from planner.space.restrictions import Restrictions, parse_restrictions

ALLOWED = ("replicas",)


def asked(
    sizes: tuple[int, ...],
    speeds: list[float],
    memory: str,
    *,
    layers: int = 4,
    batch: int = 8,
    stack: str = "megatron-core",
) -> Question:
    pools = [pool(f"p{k}", gpus=gpus, speed=speeds[k], memory=memory) for k, gpus in enumerate(sizes)]
    return mixed_question(*pools, layers=layers, stack=stack, global_batch=batch, recompute=("none", "full"))


@pytest.mark.parametrize("stack", ["megatron-core", "meshwright"])  # the latter keeps a tensor a microbatch
def test_no_bound_is_above_a_price(stack: str) -> None:
    question = asked((2, 4), [1.0, 2.3], "300 MiB", layers=5, batch=12, stack=stack)
    columns = replica_layouts(question, parse_restrictions(["cp=1"], allow=ALLOWED))
    space = ReplicaSpace(question, columns, Restrictions())
    bounds = space.bounds()
    gaps = []
    for row in range(0, len(columns), 3):
        leaf = space.leaf(row)
        every = replica_prices(question, leaf.layout)
        fitting = [seconds for seconds, fits in every if fits]
        own = leaf.busy_seconds(chunk_patterns(leaf))
        assert all(least <= s * (1 + TOLERANCE) for least, (s, _) in zip(own, every, strict=True))
        may = leaf.fits(chunk_patterns(leaf))
        assert all(maybe for maybe, (_, fits) in zip(may, every, strict=True) if fits)
        if fitting:
            assert bounds[row] <= min(fitting) * (1 + TOLERANCE)
            gaps.append(1 - bounds[row] / min(fitting))
            placed = best_pattern(leaf)
            assert placed[1] == pytest.approx(min(fitting), rel=10 * TOLERANCE)
    assert np.mean(gaps) < 0.15  # worth having


def test_a_pool_that_holds_its_own_share_only_is_not_ruled_out() -> None:
    """Where every microbatch leaves a tensor, a slow pool holds fewer of them than the mean."""
    pools = [pool("fast", speed=4.0, memory="8 GiB"), pool("slow", speed=0.5, memory="250 MiB")]
    training = {"global_batch": 512, "sequence_length": 512, "recompute": ("full",)}
    question = mixed_question(*pools, stack="meshwright", **training)
    only = ["pp=2", "tp=1", "mbs=1", "zero=1", "sp=0", "schedule=1f1b"]
    found = search(question, top=9, restrictions=parse_restrictions(only, allow=ALLOWED)).estimates
    best = next(one for one in found if one.replicas)
    assert best.fits
    fast, slow = (one.microbatches[0] for one in best.replicas)
    assert slow < best.layout.microbatches(512) < fast


def test_stages_and_replicas_compete_in_one_answer() -> None:
    question = asked((4, 2), [1.0, 2.0], "1 GiB", batch=24)
    stages = search(question, top=3)
    both = search(question, top=3, restrictions=parse_restrictions(allow=ALLOWED))
    alone = replica_layouts(question, parse_restrictions(allow=ALLOWED))
    assert both.best.replicas
    proof = both.certificate
    assert (proof.gap, proof.undecided, proof.settled) == (0, 0, None)
    assert proof.layouts == stages.certificate.layouts + len(alone)
    assert proof.layouts == count_layouts(question, parse_restrictions(allow=ALLOWED))
    assert "whole replicas in every pool" in proof.space
    assert stages.best.step_seconds == search(question, top=1).best.step_seconds
    assert not stages.best.replicas


def test_where_only_one_kind_fits_that_is_the_answer() -> None:
    question = asked((2, 2), [1.0, 1.0], "1 GiB")
    narrow = parse_restrictions(["pp=1"], allow=ALLOWED)  # stages need a pipeline
    best = search(question, restrictions=narrow).best
    assert best.layout.pp == 1
    assert best.replicas
    tight = parse_restrictions(["pp=1"], max_memory=0.8 * best.peak_bytes, allow=ALLOWED)
    smaller = search(question, restrictions=tight).best
    assert smaller.peak_bytes <= 0.8 * best.peak_bytes
    with pytest.raises(InfeasibleError, match=r"the closest, tp1 pp1 .* in pool `p0`"):
        search(question, restrictions=parse_restrictions(["pp=1"], max_memory=1e6, allow=ALLOWED))
    with pytest.raises(InputError, match="cannot be read"):
        parse_restrictions([], ["replicas"], allow=ALLOWED)


def question_of_batch(batch: int = 24, **training: object) -> Question:
    return mixed_question(pool("old", gpus=4), pool("new", gpus=2, speed=2.0), global_batch=batch, **training)


def test_what_replicas_cannot_do_is_told_with_a_hint() -> None:
    for text, told, hint in [
        ("tp1 replicas=old*3,new*3", "is not how replicas of 1 GPU divide", "dp6 replicas=old*4,new*2"),
        ("tp4 pp1 dp2 replicas=old,new", "does not divide pool", "all GPUs"),
        ("replicas=old*4,new*2 zero2", "`zero2` may communicate after each", "use zero1"),
        ("pp2 vpp2 replicas=old*2,new", "`vpp2` runs in whole rounds of them", "1f1b or gpipe"),
        ("pp2 replicas=old*2,new order=tp-cp-dp-pp", "spreads each replica", "order=tp-cp-pp-dp"),
        ("replicas=old*4,new*2 mbs5", "global batch 24 is not a multiple of mbs5", "another mbs"),
        ("replicas=old*4,new*2 mbs6", "4 microbatches of 6 are too few for 6", "smaller mbs"),
        ("pp2 replicas=old*2,new mbs6", "4 microbatches of 6 are too few for 3 replicas, each with 2", "mbs"),
    ]:
        asked = question_of_batch()
        layout = parse_layout(text)
        assert any(told in problem.what for problem in check(asked, layout)), check(asked, layout)
        if len(check(asked, layout)) == 1:
            assert hint in refusal(require_legal, asked, layout)


def test_replicas_are_placed_where_all_pools_are_quickest() -> None:
    asked = mixed_question(pool("old", gpus=4), pool("new", gpus=2, speed=2.0), layers=5, global_batch=24)
    placed = place_layout(asked, parse_layout("pp2 replicas=old*2,new zero1"))
    assert sorted(placed.layers) == [2, 3]
    assert placed.replicas == ("old", "old", "new")
