"""Options that change what is legal change what is searched: what is found is legal, and nothing legal is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from several_pools import mixed_question, pool
from small import MODEL, every_axis, small_cluster, small_question

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import InfeasibleError
from cost_models.question import Question
from cost_models.specs.cluster import Links, LinkSpec
from cost_models.specs.training import TrainingSpec
from planner.answers.optimum import optimise, split_by_padding
from planner.answers.recommend import count_near
from planner.formats.trainers import TRAINERS
from planner.objectives import Objective
from planner.rules.legality import check
from planner.search.pools import count_layouts, replica_layouts
from planner.search.search import Budget, search
from planner.space.limits import tried_tensor_degrees
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.sizes import plain_layouts
from planner.space.space import enumerate_layouts


def fast_network() -> Question:
    """Two nodes of two GPUs whose links are as fast as those inside; the vocabulary is padded otherwise by each tp."""
    link = LinkSpec(kind="nvlink", bandwidth="300 GB/s", latency="2 us")  # type: ignore[arg-type]
    cluster = small_cluster(2, "8 GiB").model_copy(
        update={"nodes": 2, "links": Links(intra_node=link, inter_node=link)}
    )
    model = MODEL.model_copy(update={"vocab_size": 7001, "hidden_size": 128})
    return complete_question(model, cluster, TrainingSpec(global_batch=4, sequence_length=256))


def test_updates_in_the_backward_pass_go_with_every_microbatch_that_is_the_whole_batch() -> None:
    question = small_question(2, "8 GiB", stack="torchtitan", optimizer_in_backward=True)
    layouts = enumerate_layouts(question, Restrictions())
    assert set((layouts.mbs * layouts.dp).tolist()) == {8}
    assert search(question, top=1).best.layout.mbs * search(question, top=1).best.layout.dp == 8
    assert plain_layouts(question, 2) == (2, 2)  # tp2, and dp2


def test_offload_goes_with_the_schedules_that_rules_allow_it() -> None:
    """Backward passes that are split leave no room for blocks that come and go."""
    question = small_question(2, "1 GiB", stack="meshwright")
    cluster = question.cluster.model_copy(update={"host_memory": 1e12})
    gpu = cluster.gpu.model_copy(update={"host_bandwidth": 1e10})
    question = replace(question, cluster=cluster.model_copy(update={"gpu": gpu}))
    for limits in (
        parse_restrictions(["pp=2"], allow=["offload"]),
        parse_restrictions(["pp=2", "offload_streamed=1"]),
    ):
        layouts = enumerate_layouts(question, limits)
        assert len(layouts) == len({str(layouts.layout(row)) for row in range(len(layouts))})
        refused = [str(one) for one in map(layouts.layout, range(len(layouts))) if check(question, one)]
        assert not refused, refused[:3]
        assert limits.only.get("offload_streamed") or {"zbv", "zero-bubble"} & {
            layouts.layout(row).schedule for row in range(len(layouts))
        }


@pytest.mark.parametrize("restricted", [(), ("tp>=2",), ("tp=1,4",)])
def test_the_highest_utilisation_is_sought_at_every_tensor_degree_that_is_searched(
    restricted: tuple[str, ...],
) -> None:
    question, limits = fast_network(), parse_restrictions(restricted)
    covered = set(enumerate_layouts(question, limits).tp.tolist())
    assert 4 in covered
    assert covered == set(tried_tensor_degrees(question, limits))
    assert covered == {
        tp for part in split_by_padding(question, limits) for tp in enumerate_layouts(question, part).tp
    }
    found = optimise(question, Objective(name="mfu"), restrictions=limits)
    assert found.result.certificate.layouts == count_layouts(question, limits)
    each = [
        search(question, top=1, restrictions=replace(limits, only={"tp": frozenset({tp})})) for tp in covered
    ]
    assert found.value == max(one.best.mfu for one in each)


@pytest.mark.parametrize("trainer", list(TRAINERS))
def test_a_trainer_with_several_recompute_policies_counts_and_lists_a_layout_once(trainer: str) -> None:
    question = every_axis(small_question(2, "1 GiB", stack=TRAINERS[trainer].stack))
    limits = parse_restrictions(["mbs=2"], trainer=trainer)
    layouts = count_layouts(question, limits)
    found = search(question, top=2 * layouts, restrictions=limits)
    proof = found.certificate
    assert proof.layouts == layouts == proof.infeasible + proof.pruned + proof.solved
    named = [
        str(one.layout.model_copy(update={"layers": (), "recompute": ("none",)})) for one in found.estimates
    ]
    assert len(named) == len(set(named)) <= layouts
    within = count_near(question, limits, found, Budget())
    assert within is not None
    assert within <= layouts
    for one in limits.by_recompute(question):
        for other in search(question, top=layouts, restrictions=one).estimates:
            name = str(
                parse_layout(str(other.layout)).model_copy(update={"layers": (), "recompute": ("none",)})
            )
            if name in named:
                assert found.estimates[named.index(name)].step_seconds <= other.step_seconds


def test_what_is_answered_on_pools_their_hosts_hold() -> None:
    """A reference model whose blocks come from host memory is no layout of pools that have none."""
    pools = [pool("a", gpus=1, memory="2 GiB"), pool("b", gpus=1, memory="2 GiB")]
    for allow in ((), ("replicas",)):
        limits = parse_restrictions(allow=allow)
        with pytest.raises(InfeasibleError):
            search(mixed_question(*pools, reference="host"), restrictions=limits)
        held = [one.model_copy(update={"host_memory": 1e12}) for one in pools]
        question = mixed_question(*held, reference="host")
        best = search(question, top=1, restrictions=limits).best
        assert not check(question, best.layout)


@pytest.mark.parametrize(("batch", "replicas"), [(2, 1), (3, 0), (4, 1)])
def test_replicas_that_update_in_the_backward_pass_have_one_microbatch_each(
    batch: int, replicas: int
) -> None:
    """Of unlike speed they would take more of them as they are fast, and none may take two."""
    pools = [pool("a", gpus=1, memory="2 GiB"), pool("b", gpus=1, memory="2 GiB", speed=3.0)]
    question = mixed_question(*pools, stack="deepspeed", global_batch=batch, optimizer_in_backward=True)
    limits = parse_restrictions(["zero=0"], allow=["replicas"])
    layouts = replica_layouts(question, limits)
    assert len(layouts) == replicas
    assert all(layouts.mbs * layouts.dp == batch)
    refused = check(question, parse_layout("tp1 pp1 dp2 mbs1 zero0 replicas=a,b"))
    assert bool(refused) == (batch > 2)
