"""The verbs for recommenders: planned with a proof, priced, explained, advised, emulated, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import SHOP, sharded_shop

import meshwright as mw
from cost_models.errors import InputError
from cost_models.recommender.prices import estimate
from meshwright.families.recommender.plan import Imported, ShardingEstimated, no_slower
from meshwright.verbs.validate.accuracy import validate_recommenders
from planner.explain.advice import LEAST_GAIN
from planner.plan import load_any_plan

ASKED = ("dgx-h100", "--gpus", "2", "--global-batch", "8K")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("recommenders") / "shop.yaml"
    path.write_text(SHOP)
    return str(path)


@pytest.fixture
def plan(meshwright, model, tmp_path) -> str:
    path = str(tmp_path / "plan.yaml")
    meshwright.done("plan", model, *ASKED, "-o", path)
    return path


def test_a_plan_file_is_asked_again(meshwright, plan, tmp_path) -> None:
    assert meshwright.json("explain", plan)["certificate"]["gap"] == 0
    again = tmp_path / "again.yaml"
    meshwright.done("plan", "--replay", plan, "-o", str(again))
    assert again.read_bytes() == Path(plan).read_bytes()


def test_the_best_beside_what_runs_today_is_never_slower(model) -> None:
    """Where a search ended before it found what runs today, that is the best; what does not fit never is."""
    job = {"gpus": 2, "global_batch": "8K"}
    best = mw.plan(model, "dgx-h100", **job)
    slower = mw.estimate(model, "dgx-h100", None, "table:0-3=row", **job)
    found = replace(
        best,
        estimate=slower.estimate,
        sharding=slower.sharding,
        certificate=best.certificate.model_copy(update={"gap": 0.5, "value": slower.estimate.step_seconds}),
    )
    today = ShardingEstimated(question=best.question, estimate=best.estimate, sharding=best.sharding)
    imported = Imported(today=today, planned=no_slower(found, today))
    assert imported.best.estimate.step_seconds == today.estimate.step_seconds < slower.estimate.step_seconds
    assert imported.best.certificate.gap == pytest.approx(best.certificate.gap, abs=1e-9)
    assert imported.gain == 0
    assert no_slower(best, slower) is best
    small = replace(best.estimate, device_memory=1.0)
    assert no_slower(found, replace(today, estimate=small)) is found


def test_why_not_prices_a_table_held_otherwise(meshwright, plan) -> None:
    refused = meshwright.done("explain", plan, "--why-not", "table:0=column7")
    assert "user has 64 columns, which 7 slices do not divide" in refused.said
    document = meshwright.json("explain", plan, "--why-not", "table:0=row")
    assert document["placed_anew"]["step_seconds"] >= document["plan"]["step_seconds"] * (1 - 1e-9)
    assert meshwright("explain", plan, "--why-not", "table:9=row").code == 2


def test_python_answers_as_the_command_line_does(model) -> None:
    planned = mw.plan(model, "dgx-h100", gpus=2, global_batch=8192, forbid=["copy"])
    assert isinstance(planned, mw.ShardingPlanned)
    assert planned.certificate.gap == 0
    assert len(planned.to_frame()) == 4
    job = mw.RecommenderTraining(global_batch=8192)
    priced = mw.estimate(planned.question.model, "dgx-h100", job, str(planned.sharding), gpus=2)
    assert isinstance(priced, mw.ShardingEstimated)
    assert priced.estimate.step_seconds == planned.estimate.step_seconds
    with pytest.raises(mw.InputError, match="--tokens does not go with a recommender"):
        mw.plan(model, "dgx-h100", job, gpus=2, tokens="1T")


def test_tables_of_cpus_lie_in_one_memory(meshwright) -> None:
    asked = ("plan", "dlrm-tiny", "local", "--gpus", "2", "--global-batch", "512")
    answer = meshwright.done(*asked)
    assert not {"/host", "of each host"} & {*answer.said.split()}
    refused = meshwright.refusal(*asked, "--fix", "table:0=whole@1/host")
    assert "its devices' memory is the host's" in refused


def test_a_dry_run_builds_every_rank_as_large_as_predicted(meshwright, model, tmp_path) -> None:
    """Every form and both tiers, on two nodes that are not here; states of Adam, twice a row in fp32."""
    job, layout = tmp_path / "job.yaml", "table:0=hot(0.1)+column2@0,9 table:1=node-row@1 table:2=row/host"
    job.write_text("{kind: recommender-training, global_batch: 8192, table_dtype: fp16, optimizer: adam}")
    held = ("--layout", f"{layout} table:3=whole@5/cached(0.1)")
    asked = ("dgx-h100", "--gpus", "16", "--training", str(job), *held)
    plan = str(tmp_path / "plan.yaml")
    meshwright.done("estimate", model, *asked, "-o", plan)
    answer = meshwright("run", plan, "--dry-run")
    assert "shop on 16 ranks: built without devices" in answer.out
    ranks = meshwright.json("run", plan, "--dry-run")["ranks"]
    assert [one["rank"] for one in ranks] == list(range(16))
    for one in ranks:
        assert one["table_bytes"] == pytest.approx(one["predicted_table_bytes"], rel=1e-4)
        assert one["state_bytes"] == pytest.approx(one["predicted_state_bytes"], rel=1e-4)
    assert ranks[5]["host_bytes"] == (1250 + 18000) * 64 * (2 + 8)


MODEL = SHOP.replace("pooling: 2.0", "pooling: 2.0, zipf: 1.05").replace("g: 8.0", "g: 8.0, zipf: 1.1")
TODAY, JOB = "table:0-1=whole@0,0 table:2-3=row", "--gpus 16 --global-batch 64K"


@pytest.fixture
def today(meshwright, tmp_path) -> Path:
    """All large tables on one of sixteen GPUs."""
    return sharded_shop(meshwright, tmp_path, TODAY, JOB, MODEL)


def test_each_change_fits_and_gains_alone_and_with_those_before_it(today) -> None:
    advised = mw.advise(today)
    assert isinstance(advised, mw.ShardingAdvised)
    advice, before = advised.advice, advised.advice.today
    assert advice.changes
    assert advice.today.step_seconds == load_any_plan(today).prediction.step_seconds
    for one in advice.changes:
        assert one.by_itself.fits
        assert one.by_itself.step_seconds < advice.today.step_seconds
        assert one.with_earlier.step_seconds < before.step_seconds * (1 - LEAST_GAIN)
        assert estimate(advice.question, one.sharding).step_seconds == one.with_earlier.step_seconds
        before = one.with_earlier
    assert advice.best.step_seconds <= before.step_seconds
    assert advice.best.step_seconds == pytest.approx(advice.answer.certificate.value)


def test_advice_in_words_and_as_a_document(meshwright, today, tmp_path) -> None:
    answer = meshwright.done("advise", str(today), "-o", str(tmp_path / "best.yaml"))
    assert max(map(len, answer.out.splitlines())) <= 80
    document = meshwright.json("advise", str(today))
    assert document["layout"] == TODAY
    assert "25 % more device memory" in {one["change"] for one in document["further"]}
    assert {one["trouble"] for one in document["further"]} >= {"other links", "other GPUs", "other hosts"}
    best = load_any_plan(tmp_path / "best.yaml")
    assert best.layout == document["best_layout"]
    assert document["certificate"]["value"] == pytest.approx(document["best"]["step_seconds"])
    meshwright.done("verify", str(tmp_path / "best.yaml"))
    again = meshwright("advise", str(tmp_path / "best.yaml"))
    assert "Nothing to change: no sharding is faster." in again.out


def test_from_what_does_not_fit_the_first_change_makes_room(meshwright, tmp_path) -> None:
    large = MODEL.replace("rows: 4000000", "rows: 400000000")
    advice = mw.advise(sharded_shop(meshwright, tmp_path, TODAY, JOB, large)).advice
    assert not advice.today.fits
    assert advice.changes[0].with_earlier.fits


LAYOUT = "table:0=row table:1=column4@3,8,17,37 table:2=node-row@4 table:3=node-row@4 table:4=whole@37 table:5-7=copy"


def test_one_of_sixty_four_gpus(tmp_path, meshwright) -> None:
    """Its rows to the byte, text, JSON and file alike; its compute is left out, as this is no H100."""
    path, out = tmp_path / "plan.yaml", tmp_path / "rank.json"
    words = ("dgx-h100", "--gpus", "64", "--global-batch", "4096")
    meshwright.done("estimate", "dlrm-tiny", *words, "--layout", LAYOUT, "-o", str(path))
    rows = -(-(20000 - 37) // 64) * 16 + 2000 * 4 + 2 * 250 * 16 + 100 * 16 + 3 * 100 * 16
    said = meshwright.done("emulate", str(path), "--rank", "37", "--steps", "1", "-o", str(out))
    assert "dlrm-tiny: rank 37 of 64 alone on cpu" in said.out
    assert "Compute is left out" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    report = json.loads(out.read_text())
    assert report["memory"]["tables"] == 4 * rows
    assert report["step_seconds"] is None
    (tables,) = [one for one in mw.emulate(path, 37, steps=1).rows if one["quantity"] == "tables memory"]
    assert tables["emulated"] == 4 * rows
    assert abs(tables["predicted"] / (4 * rows) - 1) < 0.01


def test_sizes_alone_are_for_transformers(tmp_path, meshwright) -> None:
    path = tmp_path / "plan.yaml"
    words = ("local", "--gpus", "2", "--global-batch", "64", "--precision", "fp32")
    meshwright.done("estimate", "dlrm-tiny", *words, "--layout", "table:0-7=row", "-o", str(path))
    refused = meshwright("emulate", str(path), "--fake")
    assert refused.code == 2
    assert "--fake does not go with a recommender" in refused.err


def test_a_table_of_others_runs_is_refused(tmp_path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("row_id,gpu\n1,H100\n")
    with pytest.raises(InputError, match="has no column"):
        validate_recommenders(path)
    columns = "row_id,source_cite,model,framework,gpu,num_gpus,global_batch,step_time_s"
    path.write_text(f"{columns}\n1,x,DeepFM,PyTorch,H100,8,64,0.1\n")
    with pytest.raises(InputError, match="nobody says how `PyTorch` shards"):
        validate_recommenders(path)
