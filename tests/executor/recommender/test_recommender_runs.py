"""Plans of recommenders that are run: bytes sent are those of the formula, and kills lose nothing that was saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cost_models.errors import InputError
from cost_models.files.catalog import load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.options import STAGES
from cost_models.recommender.question import complete_recommender
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from executor.launch.launch import run_plan
from executor.measure.report import save_report
from executor.recommender.training import RecommenderReport
from executor.run_config import RunConfig
from meshwright.families.recommender import RecommenderVerbs
from meshwright.records.runs import read_any_report, read_report
from planner.recommender.plan import RecommenderPlan, make_recommender_plan

MIXED = (
    "table:0=hot(0.01)+row/cached(0.2) table:1=column2@1,0 table:2=whole@1 table:3=copy table:4-5=row"
    " table:6=row2@1,0 table:7=node-row@0"
)


def plan_of(layout: str, ranks: int = 2, nodes: int = 1, **training: Any) -> RecommenderPlan:
    """A plan of the demo on processes of this machine, which may stand for nodes of a few."""
    cluster = resolve_cluster("local", ranks)
    if nodes > 1:
        links = cluster.links.model_copy(update={"inter_node": cluster.links.intra_node})
        cluster = cluster.model_copy(update={"nodes": nodes, "gpus_per_node": ranks // nodes, "links": links})
    job = RecommenderTraining(**({"global_batch": 64, "precision": "fp32"} | training))
    question = complete_recommender(load_recommender("dlrm-tiny"), cluster, job)
    return make_recommender_plan(question, parse_sharding(layout, question.model.num_tables))


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (4, 2)])
def test_ranks_send_what_the_formula_says(ranks: int, nodes: int, processes) -> None:
    """To the byte, in every stage of a sharding that has a table of every kind; and host memory as the plan has it."""
    plan = plan_of(MIXED, ranks, nodes, optimizer="adagrad")
    report = processes.run(ranks, _trained, plan)[0]
    for one in report.ranks:
        assert one.sent_bytes == one.formula_bytes
        assert one.sent_bytes[STAGES.backward_exchange] > one.sent_bytes[STAGES.index_exchange] > 0
        assert one.hits <= one.lookups
        assert one.memory["tables"] > 0
    assert sum(one.host_bytes for one in report.ranks) == pytest.approx(
        sum(plan.prediction.host_bytes), rel=0.02
    )


def test_ranks_that_hold_keys_send_what_the_formula_says(processes) -> None:
    """Copies send the keys that they met, whatever their size."""
    plan = plan_of("table:0=copy table:1=row table:2-3=column2@1,0,0,1 table:4-7=whole@0,1,0,1/host")
    tables = tuple(one.model_copy(update={"hashed": True}) for one in plan.model.tables)
    question = replace(plan.question, model=plan.model.model_copy(update={"tables": tables}))
    for one in processes.run(2, _trained, make_recommender_plan(question, plan.sharding))[0].ranks:
        assert one.sent_bytes == one.formula_bytes
        assert one.memory["tables"] > 0


def _trained(plan: RecommenderPlan, how: dict[str, Any] | None = None) -> RecommenderReport:
    import torch

    from executor.recommender.train import train
    from executor.steps import Watcher

    config = RunConfig(**(how or {"steps": 2, "warm_up": 0, "learning_rate": 0.05}))
    report = train(plan, torch.device("cpu"), config, Watcher())
    assert isinstance(report, RecommenderReport)
    return report


def test_a_kept_report_is_read_and_told_again(processes, tmp_path) -> None:
    plan = plan_of("table:0-7=row")
    report, path = processes.run(2, _trained, plan)[0], tmp_path / "run-report.json"
    save_report(report, path)
    assert read_any_report(path) == report
    again = RecommenderVerbs().ran(report)
    assert list(again.record()) == ["schema", "comparison", "operations", "report"]
    assert list(again.to_frame()["quantity"]) == [row["quantity"] for row in again.rows]
    assert "samples/s" in again.text[0]
    with pytest.raises(InputError, match="another kind of model; a transformer's is needed"):
        read_report(path)
    (tmp_path / "cut.json").write_text(path.read_text("utf-8")[:-9], "utf-8")
    with pytest.raises(InputError, match="is no run report"):
        read_any_report(tmp_path / "cut.json")


def test_a_report_beyond_all_bounds_is_not_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("meshwright.records.runs.MAX_REPORT_BYTES", 1_000_000)
    (tmp_path / "large.json").write_text(" " * 1_000_001)
    with pytest.raises(InputError, match="larger than 1 MB"):
        read_any_report(tmp_path / "large.json")


def test_what_cannot_be_trained_is_refused(tmp_path) -> None:
    for plan, flags, what in (
        (plan_of("table:0-7=row", global_batch=63), {}, "63 is not a multiple of 2"),
        (plan_of("table:0-7=row"), {"compile": True}, "not compiled"),
        (plan_of("table:0-7=row"), {"data": str(tmp_path / "a.tsv")}, "no such file of clicks"),
    ):
        with pytest.raises(InputError, match=what):
            run_plan(plan, RunConfig(**flags))
