"""Whole replicas in several pools: the search is brute force, bounds are below every price, stages compete."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from effort import THOROUGH
from hypothesis import given, settings
from hypothesis import strategies as st
from several_pools import mixed_question, pool

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.errors import InfeasibleError, InputError
from cost_models.estimate import Estimate
from cost_models.pipeline.pools import in_pools
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from planner.explain.reasons import why_not
from planner.placement.leaf import TOLERANCE, Placement
from planner.placement.patterns import best_pattern, chunk_patterns
from planner.rules.legality import check
from planner.search.branching import BranchAndBound, SearchSettings
from planner.search.pools import PoolCandidates, ReplicaLeaf, ReplicaSpace, count_layouts, replica_layouts
from planner.search.search import search
from planner.space.restrictions import Restrictions, parse_restrictions

ALLOWED = ("replicas",)


def legal_layouts(question: Question, zeros: tuple[int, ...], sps: tuple[bool, ...]) -> list[Layout]:
    """Every layout of some switches that breaks no rule; found one by one."""
    gpus, batch = question.cluster.num_gpus, question.training.global_batch
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    found = []
    for tp, pp in product((1, 2, 4), range(1, question.model.num_layers + 1)):
        if any(one.cluster.num_gpus % (tp * pp) for one in question.pools):
            continue
        dp = gpus // (tp * pp)
        shards = [shard for shard in range(1, dp + 1) if dp % shard == 0]
        order = "tp-cp-pp-dp" if pp > 1 else "tp-cp-dp-pp"
        for mbs, zero, sp, schedule, shard in product(sizes, zeros, sps, ("1f1b", "gpipe"), shards):
            if (zero == 0 and shard < dp) or (zero and shard == 1) or (pp == 1 and schedule == "gpipe"):
                continue
            layout = Layout(
                tp=tp, pp=pp, dp=dp, mbs=mbs, zero=zero, sp=sp, schedule=schedule, shard=shard, order=order
            )
            layout = in_pools(question, layout)
            found += [layout] * (not check(question, layout))
    return found


def leaf_of(question: Question, layout: Layout) -> ReplicaLeaf:
    """One layout with its costs."""
    return ReplicaSpace(question, LayoutColumns.of([layout]), Restrictions()).leaf(0)


def search_replicas(question: Question, limits: Restrictions, *, top: int) -> BranchAndBound:
    """A finished search of replicas alone."""
    replicas = replica_layouts(question, limits)
    candidates = PoolCandidates(question, limits, replicas.rows(np.empty(0, dtype=np.int64)), replicas)
    finished = BranchAndBound(candidates, SearchSettings(top=top))
    finished.run()
    return finished


def estimates(finished: BranchAndBound) -> list[Estimate]:
    """The best layouts of a search, fastest first."""
    placed = [
        placement.on(finished.candidates.layout(row))
        for row, (placement, _) in sorted(finished.best.items(), key=lambda item: item[1][1])
    ]
    return [estimate(finished.candidates.question, layout) for layout in placed[: finished.top]]


def prices(question: Question, layout: Layout) -> list[tuple[float, bool]]:
    """What every covered placement of a layout takes, and whether it fits, each priced in full."""
    found = []
    for blocks in chunk_patterns(leaf_of(question, layout)):
        placement = Placement.of(blocks)
        update = {"layers": placement.layers, "recompute": placement.recompute}
        priced = estimate(question, layout.model_copy(update=update))
        found.append((priced.step_seconds, priced.fits))
    return found


def asked(
    sizes: tuple[int, ...],
    speeds: list[float],
    memories: list[str],
    *,
    layers: int = 4,
    batch: int = 8,
    stack: str = "megatron-core",
    recompute: tuple[str, ...] = ("none", "full"),
) -> Question:
    pools = [pool(f"p{k}", gpus=gpus, speed=speeds[k], memory=memories[k]) for k, gpus in enumerate(sizes)]
    return mixed_question(*pools, layers=layers, stack=stack, global_batch=batch, recompute=recompute)


@pytest.mark.parametrize("sizes", [(2, 2), (1, 1), (1, 2), (2, 4), (1, 1, 1)])
@given(
    st.lists(st.floats(0.5, 4.0), min_size=3, max_size=3),
    st.lists(st.sampled_from(["120 MiB", "160 MiB", "220 MiB", "400 MiB", "1 GiB"]), min_size=3, max_size=3),
    st.sampled_from([3, 4, 5]),
    st.sampled_from([6, 8, 9]),
    st.sampled_from([("none",), ("none", "full"), ("selective", "full"), ("none", "selective", "full")]),
    st.sampled_from(["megatron-core", "nemo", "fsdp"]),
    st.sampled_from([(0,), (0, 1)]),
    st.sampled_from([(False,), (True, False)]),
)
@settings(max_examples=30 if THOROUGH else 3, deadline=None, derandomize=True)
def test_search_is_brute_force(
    sizes: tuple[int, ...],
    speeds: list[float],
    memories: list[str],
    layers: int,
    batch: int,
    recompute: tuple[str, ...],
    stack: str,
    zeros: tuple[int, ...],
    sps: tuple[bool, ...],
) -> None:
    question = asked(sizes, speeds, memories, layers=layers, batch=batch, stack=stack, recompute=recompute)
    fixed = ["cp=1", f"zero={','.join(map(str, zeros))}", f"sp={','.join(str(int(sp)) for sp in sps)}"]
    within = parse_restrictions(fixed, allow=ALLOWED)
    layouts = legal_layouts(question, zeros, sps)
    every = [min((s for s, fits in prices(question, one) if fits), default=math.inf) for one in layouts]
    exact = sorted(seconds for seconds in every if math.isfinite(seconds))[:3]
    found = search_replicas(question, within, top=3)
    assert [one.step_seconds for one in estimates(found)] == pytest.approx(exact, rel=10 * TOLERANCE)
    proof = found.certificate()
    assert (proof.layouts, proof.undecided) == (len(layouts), 0)
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved
    for one in estimates(found):
        assert one.fits
        assert estimate(question, parse_layout(str(one.layout))).step_seconds == one.step_seconds


@pytest.mark.parametrize("stack", ["megatron-core", "meshwright"])  # the latter keeps a tensor a microbatch
def test_no_bound_is_above_a_price(stack: str) -> None:
    question = asked((2, 4), [1.0, 2.3], ["300 MiB"] * 2, layers=5, batch=12, stack=stack)
    columns = replica_layouts(question, parse_restrictions(["cp=1"], allow=ALLOWED))
    space = ReplicaSpace(question, columns, Restrictions())
    bounds = space.bounds()
    gaps = []
    for row in range(0, len(columns), 3):
        leaf = space.leaf(row)
        every = prices(question, leaf.layout)
        fitting = [seconds for seconds, fits in every if fits]
        own = leaf.busy_seconds(chunk_patterns(leaf))
        assert all(least <= s * (1 + TOLERANCE) for least, (s, _) in zip(own, every, strict=True))
        may = leaf.fits(chunk_patterns(leaf))
        assert all(maybe for maybe, (_, fits) in zip(may, every, strict=True) if fits)
        if fitting:
            assert bounds[row] <= min(fitting) * (1 + TOLERANCE)
            gaps.append(1 - bounds[row] / min(fitting))
            placed = best_pattern(leaf)
            assert placed is not None
            assert placed[1] == pytest.approx(min(fitting), rel=10 * TOLERANCE)
    assert np.mean(gaps) < 0.15  # worth having


def test_a_pool_that_holds_its_own_share_only_is_not_ruled_out() -> None:
    """Where every microbatch leaves a tensor, a slow pool holds fewer of them than the mean."""
    pools = [pool("fast", speed=4.0, memory="8 GiB"), pool("slow", speed=0.5, memory="250 MiB")]
    training = {"global_batch": 512, "sequence_length": 512, "recompute": ("full",)}
    question = mixed_question(*pools, stack="meshwright", **training)
    only = ["pp=2", "tp=1", "mbs=1", "zero=1", "sp=0", "schedule=1f1b"]
    (best,) = estimates(search_replicas(question, parse_restrictions(only, allow=ALLOWED), top=1))
    assert best.fits
    fast, slow = (one.microbatches[0] for one in best.replicas)
    assert slow < best.layout.microbatches(512) < fast


def test_stages_and_replicas_compete_in_one_answer() -> None:
    question = asked((4, 2), [1.0, 2.0], ["1 GiB"] * 2, batch=24)
    stages = search(question, top=3)
    both = search(question, top=3, restrictions=parse_restrictions(allow=ALLOWED))
    alone = search_replicas(question, parse_restrictions(allow=ALLOWED), top=3)
    every = sorted(one.step_seconds for one in (*stages.estimates, *estimates(alone)))
    assert [one.step_seconds for one in both.estimates] == pytest.approx(every[:3])
    assert both.best.replicas
    proof = both.certificate
    assert (proof.gap, proof.undecided, proof.settled) == (0, 0, None)
    assert proof.layouts == stages.certificate.layouts + len(alone.candidates)
    assert proof.layouts == count_layouts(question, parse_restrictions(allow=ALLOWED))
    assert "whole replicas in every pool" in proof.space
    assert stages.best.step_seconds == search(question, top=1).best.step_seconds
    assert not stages.best.replicas


def test_where_only_one_kind_fits_that_is_the_answer() -> None:
    question = asked((2, 2), [1.0, 1.0], ["1 GiB"] * 2)
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


def test_why_not_places_replicas_at_their_best() -> None:
    question = asked((4, 2), [1.0, 2.0], ["1 GiB"] * 2, batch=24)
    best = search(question, top=1).best
    told = why_not(question, best, "tp1 pp1 mbs3 zero1 replicas=p0*4,p1*2")
    assert told.reason == "faster"
    assert told.estimate is not None
    assert told.estimate.layout.replicas == ("p0",) * 4 + ("p1",) * 2
    refused = why_not(question, best, "tp1 pp1 zero2 replicas=p0*4,p1*2")
    assert refused.reason == "illegal"


def test_columns_of_layouts_read_back() -> None:
    question = asked((4, 2), [1.0, 2.0], ["1 GiB"] * 2, batch=24)
    columns = replica_layouts(question, parse_restrictions(allow=ALLOWED))
    layouts = [in_pools(question, columns.layout(row)) for row in range(len(columns))]
    assert len(set(map(str, layouts))) == len(layouts)
    assert all(parse_layout(str(one)) == one for one in layouts)
    assert not any(check(question, one) for one in layouts)
    assert (LayoutColumns.of(layouts).dp == columns.dp).all()
