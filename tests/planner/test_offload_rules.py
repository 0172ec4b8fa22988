"""States in host memory: planned only where the host holds them, and never run by an executor that keeps none there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import small_question

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.defaults import OWN_STACK
from cost_models.errors import InfeasibleError, InputError
from cost_models.memory.host import host_bytes
from cost_models.question import Question, mixed_question
from cost_models.specs.pools import MixedCluster
from planner.rules.legality import check, require_legal
from planner.rules.stack import require_runnable
from planner.search.search import search
from planner.space.layouts import Restrictions, enumerate_layouts

WHOLE = Layout(dp=4, zero=0)


def offloading(host_memory: float | None, stack: str = "deepspeed") -> Question:
    """Four GPUs of one host of that memory, their optimizer states offloaded."""
    asked = small_question(4, stack=stack)
    return replace(
        asked,
        stack=asked.stack.model_copy(update={"offloads": "optimizer"}),
        cluster=asked.cluster.model_copy(update={"host_memory": host_memory}),
    )


def test_a_layout_needs_hosts_that_hold_what_it_offloads() -> None:
    needed = float(host_bytes(offloading(None), LayoutColumns.of([WHOLE]))[0])
    require_legal(offloading(needed), WHOLE)
    (problem,) = check(offloading(0.99 * needed), WHOLE)
    assert "offloads" in problem.what
    assert "to the memory of each host" in problem.what


def test_a_host_of_unknown_memory_is_asked_about() -> None:
    with pytest.raises(InputError, match="does not say how much one has") as refused:
        require_legal(offloading(None), WHOLE)
    assert refused.value.hint == "add `host_memory`"


def test_the_search_stays_within_the_host() -> None:
    """Half of what whole copies need leaves the layouts that share them, and the smallest host none."""
    needed = float(host_bytes(offloading(None), LayoutColumns.of([WHOLE]))[0])
    half = offloading(0.5 * needed)
    covered = enumerate_layouts(half, Restrictions())
    assert 0 < len(covered) < len(enumerate_layouts(offloading(1e15), Restrictions()))
    assert (host_bytes(half, covered) <= 0.5 * needed).all()
    with pytest.raises(InfeasibleError, match="to the memory of each host; a host of"):
        search(offloading(1.0))


def test_every_pool_needs_hosts_that_hold_it() -> None:
    pools = [
        replace(asked, cluster=asked.cluster.model_copy(update={"name": name, "host_memory": host}))
        for name, host, asked in (("big", 1e15, offloading(1e15)), ("small", 1.0, offloading(1.0)))
    ]
    link = pools[0].cluster.links.intra_node
    mixed = MixedCluster.model_construct(pools=tuple(pool.cluster for pool in pools), between=link)
    (problem,) = check(mixed_question(mixed, tuple(pools)), Layout(pp=2, dp=4))
    assert "a host of `small`" in problem.what


def test_the_executor_refuses_what_it_would_train_without() -> None:
    for stack in ("deepspeed", OWN_STACK):
        with pytest.raises(InputError, match="keeps all states on the device"):
            require_runnable(offloading(1e15, stack), WHOLE)
    with pytest.raises(InfeasibleError, match="keeps all states on the device"):
        search(offloading(1e15, OWN_STACK))
