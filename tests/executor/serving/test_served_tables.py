"""Tables served from cache, host memory and drive: their vectors, whatever lies where; hits and rows as planned."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from effort import few
from recommending import model as trained_model
from recommending import save_and_resume
from torch.utils._python_dispatch import TorchDispatchMode

from cost_models.defaults import OWN_STACK
from cost_models.errors import HostError, InputError
from cost_models.files.catalog import load_stack
from cost_models.files.loading import resolve_cluster
from cost_models.memory.device import USABLE
from cost_models.recommender.serving import ServingQuestion
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from executor.embeddings.bags import pooled
from executor.embeddings.exchanges import Slice
from executor.embeddings.holding import InitialRows
from executor.recommender.serving import ServedTables, draw_batches, serve
from planner.serving import ServingPlan, latencies, plan_cache, scaled

CPU = torch.device("cpu")
MODEL = RecommenderSpec(
    tables=(
        TableSpec(name="items", rows=40_000, width=8, pooling=4.0, zipf=1.0, count=2),
        TableSpec(name="shops", rows=900, width=4, pooling=3.0, zipf=0.9, combiner="mean"),
        TableSpec(name="words", rows=3000, width=8, pooling=2.0, zipf=1.1, combiner="concat"),
    ),
    interaction=Interaction(kind="none"),
)


def plan_of(policy: str = "hottest", *, share_on_host: float = 0.3, share_cached: float = 0.1) -> ServingPlan:
    """Tables of which the drive has most rows."""
    cluster = resolve_cluster("local", 1)
    question = ServingQuestion(
        model=MODEL,
        cluster=cluster,
        policy=policy,
        batches=(64, 256),
        drive_rate=1e9,  # type: ignore[arg-type]
    )
    size = question.tables.bytes
    host = cluster.model_copy(update={"host_memory": share_on_host * size / USABLE})
    return plan_cache(question.model_copy(update={"cluster": host}), cache_bytes=share_cached * size)


def whole(model: RecommenderSpec) -> dict[str, torch.Tensor]:
    """Every table as a run draws it."""
    found = {}
    for index, name in zip(model.class_of_table, model.table_names, strict=True):
        spec = model.classes[index]
        found[name] = torch.empty(spec.rows, spec.width)
        part = Slice(table=0, form="whole", rows=spec.rows, end=spec.width, bags=1)
        initial = InitialRows(name=name, rows=spec.rows, width=spec.width, seed=0)
        initial.fill(found[name], part, 0)
    return found


@pytest.mark.parametrize("policy", ["hottest", "lru"])
def test_vectors_are_those_of_the_tables_whatever_lies_where(policy: str) -> None:
    tables, rows = ServedTables(plan_of(policy), CPU), whole(MODEL)
    assert all(len(one.drive) > len(one.host) > 0 for one in tables.stored[:2])
    for batch in draw_batches(MODEL, 64, 3, seed=1):
        found = tables.look_up(batch)
        for at, (name, spec, bags) in enumerate(zip(tables.names, tables.specs, batch, strict=True)):
            wanted = pooled(rows[name], bags.concatenated(2) if spec.combiner == "concat" else bags)
            if spec.combiner == "mean":
                wanted = wanted / bags.lengths[:, None]
            torch.testing.assert_close(found[at], wanted.view(found[at].shape))
    assert found[-1].shape == (64, 2, 8)
    assert (tables.counts()[:2] > 0).all()


@few(1)
@pytest.mark.parametrize(("policy", "batch"), [("hottest", 256), ("lru", 256), ("lru", 4096)])
def test_hits_and_rows_of_every_tier_are_the_plans(policy: str, batch: int) -> None:
    """The largest batch names three times the rows that the cache has room for."""
    plan = plan_of(policy)
    (seen,) = serve(plan, (batch,), samples=40_000).answered
    priced, number = (
        latencies(plan.question.model_copy(update={"batches": (batch,)}), plan),
        len(seen.seconds),
    )
    ids, hits, host, drive = seen.counts.T
    hits = hits if policy == "hottest" else ids - host
    for table, index in enumerate(MODEL.class_of_table):
        assert hits[table] / ids[table] == pytest.approx(priced.hits[0, index], abs=0.01), table
    assert seen.samples == batch * number
    assert drive.sum() / number == pytest.approx(float(priced.drive_rows[0]), rel=0.02)
    near = (
        0.02 if policy == "hottest" else 0.03
    )  # rows used last lie in sets, of which some are full before others
    assert host.sum() / number == pytest.approx(float(priced.host_rows[0]), rel=near)
    assert seen.seconds.min() > 0


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls of torch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", ["hottest", "lru"])
def test_a_lookup_launches_as_many_operations_as_the_stack_says(policy: str) -> None:
    tables, facts = ServedTables(plan_of(policy, share_on_host=1.0), CPU), load_stack(OWN_STACK).recommender
    assert facts is not None
    assert facts.operations is not None
    (batch,) = draw_batches(MODEL, 64, 1, seed=1)
    for cache, bags in zip(tables.caches[:2], batch[:2], strict=True):
        with torch.inference_mode(), Calls() as seen:
            cache.look_up(bags)
        assert cache.counts["fetched"]
        assert seen.number == facts.operations.served[policy]


def test_a_smaller_plan_has_the_same_shares_in_every_tier() -> None:
    plan = plan_of()
    tenth = scaled(plan, 0.1)
    assert [one.rows for one in tenth.question.model.tables] == [4000, 90, 300]
    assert tenth.cache_bytes == pytest.approx(0.1 * plan.cache_bytes, rel=0.01)
    counted = TableSpec(name="a", rows=4, width=4, histogram=((1, 0.5), (3, 0.5)))
    changed = plan.question.model.model_copy(update={"tables": (counted,)})
    with pytest.raises(InputError, match="recorded histogram"):
        scaled(plan.model_copy(update={"question": plan.question.model_copy(update={"model": changed})}), 0.1)


def test_tables_of_a_checkpoint_are_served(processes, tmp_path) -> None:
    spec, job = trained_model(), partial(save_and_resume, resume=False, steps=2)
    _, trained, _ = processes.run(2, job, spec, "table:0-5=row", "sgd", tmp_path)[0]
    question = ServingQuestion(model=spec, cluster=resolve_cluster("local", 1), batches=(8,))
    plan = plan_cache(question, cache_bytes=2000)
    tables = ServedTables(plan, CPU, weights=tmp_path)
    for name, stored in zip(tables.names, tables.stored, strict=True):
        every = stored[torch.arange(stored.shape[0])].double().numpy()
        assert (every == trained[name]).all(), name
    assert (tables.caches[0].vectors == tables.stored[0][torch.arange(plan.cached_rows[0])]).all()
    with pytest.raises(InputError, match="has not the tables of this plan") as wrong:
        ServedTables(plan_of(), CPU, weights=tmp_path)
    assert "it has no `weights.tables.items.0`" in str(wrong.value)


def test_what_cannot_be_served_is_refused(tmp_path, monkeypatch) -> None:
    plan = plan_of()
    with pytest.raises(InputError, match="there is no checkpoint of a run"):
        ServedTables(plan, CPU, weights=tmp_path)
    with pytest.raises(HostError, match="no such file or directory"):
        ServedTables(plan, CPU, drive=tmp_path / "none")
    hashed = tuple(one.model_copy(update={"hashed": True}) for one in MODEL.tables)
    other: dict[str, Any] = {"model": MODEL.model_copy(update={"tables": hashed})}
    with pytest.raises(InputError, match="`items` is hashed"):
        ServedTables(plan.model_copy(update={"question": plan.question.model_copy(update=other)}), CPU)
    monkeypatch.setattr("executor.requirements.free_bytes", lambda device: 1e5)
    monkeypatch.setattr("executor.recommender.serving.free_bytes", lambda device: 1e5)
    with pytest.raises(HostError, match="are missing") as small:
        ServedTables(plan, CPU)
    assert "--scale 0.07" in small.value.hint
