"""The verbs for recommenders: planned with a proof, priced, explained, compared and verified, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import SHOP

import meshwright as mw
from meshwright.families.recommender.planned import Imported, ShardingEstimated, no_slower

ASKED = ("dgx-h100", "--gpus", "2", "--global-batch", "8K")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("recommenders") / "shop.yaml"
    path.write_text(SHOP)
    return str(path)


@pytest.fixture
def plan(meshwright, model, tmp_path) -> str:
    path = str(tmp_path / "plan.yaml")
    done = meshwright("plan", model, *ASKED, "-o", path)
    assert done.code == 0, done.err
    return path


def test_a_plan_file_is_explained_verified_and_asked_again(meshwright, plan, tmp_path) -> None:
    explained = meshwright("explain", plan)
    assert "Bottleneck: " in explained.out
    assert "step then" in explained.out
    assert json.loads(meshwright("explain", plan, "--json").out)["certificate"]["gap"] == 0
    verified = meshwright("verify", plan)
    assert verified.code == 0, verified.out
    assert "shop on 2 x h100-sxm" in verified.out
    again = tmp_path / "again.yaml"
    assert meshwright("plan", "--replay", plan, "-o", str(again)).code == 0
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


def test_verify_names_what_differs_beside_the_step(meshwright, plan, tmp_path) -> None:
    changed = tmp_path / "changed.yaml"
    before, said, after = Path(plan).read_text().partition("  fullest_moment:")
    changed.write_text(before + "  fullest_moment: []\n" + after[after.index("  device_memory:") :])
    told = " ".join(meshwright("verify", str(changed)).out.split())
    assert said
    assert "`fullest_moment.entries` says 0, computed again it is " in told


def test_why_not_prices_a_table_held_otherwise(meshwright, plan) -> None:
    told = " ".join(meshwright("explain", plan, "--why-not", "table:0=row").out.split())
    assert "user is held as" in told
    assert "With this change alone: step " in told
    assert "It fits: " in told
    assert "With the other tables re-planned: " in told
    refused = meshwright("explain", plan, "--why-not", "table:0=column7")
    assert refused.code == 0
    assert "user has 64 columns, which 7 slices do not divide" in " ".join(refused.out.split())
    document = json.loads(meshwright("explain", plan, "--why-not", "table:0=row", "--json").out)
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
    answer = meshwright(*asked)
    assert "/host" not in answer.out
    assert "of each host" not in answer.out
    refused = meshwright(*asked, "--fix", "table:0=whole@1/host")
    assert refused.code == 2
    assert "its devices' memory is the host's" in refused.err
    assert "fix it as `whole`" in refused.err


def test_a_dry_run_builds_every_rank_as_large_as_predicted(meshwright, model, tmp_path) -> None:
    """Every form and both tiers, on two nodes that are not here; states of Adam, twice a row in fp32."""
    job, layout = tmp_path / "job.yaml", "table:0=hot(0.1)+column2@0,9 table:1=node-row@1 table:2=row/host"
    job.write_text("{kind: recommender-training, global_batch: 8192, table_dtype: fp16, optimizer: adam}")
    asked = (
        "dgx-h100",
        "--gpus",
        "16",
        "--training",
        str(job),
        "--layout",
        f"{layout} table:3=whole@5/cached(0.1)",
    )
    plan = str(tmp_path / "plan.yaml")
    assert meshwright("estimate", model, *asked, "-o", plan).code == 0
    answer = meshwright("run", plan, "--dry-run")
    assert "shop on 16 ranks: built without devices" in answer.out
    ranks = json.loads(meshwright("run", plan, "--dry-run", "--json").out)["ranks"]
    assert [one["rank"] for one in ranks] == list(range(16))
    for one in ranks:
        assert one["table_bytes"] == pytest.approx(one["predicted_table_bytes"], rel=1e-4)
        assert one["state_bytes"] == pytest.approx(one["predicted_state_bytes"], rel=1e-4)
    assert ranks[5]["host_bytes"] == (1250 + 18000) * 64 * (2 + 8)
