"""`calibrate --from-run`: reports of this machine move its profile; others, and older ones, are refused in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from run_reports import rank_report, run_report_of

import meshwright as mw
from cost_models.axes.layout import parse_layout
from cost_models.files.catalog import load_profile
from executor.measure.report import RunReport, save_report
from meshwright.demo import another_layout, errors_of

PARTS = (
    *("compute", "host", "optimizer", "tp_comm", "cp_comm", "ep_comm"),
    *("dp_comm", "pp_comm", "bubble", "other"),
)
MakeReport = Callable[..., Path]


def report_of(layout: str, *, slower: float = 1.2, torch: str = "2.13.0") -> RunReport:
    """A run of `gpt2-tiny` on this machine's CPU that took longer than the defaults say, alike in all steps."""
    job = {"global_batch": 8, "sequence": 128, "precision": "fp32"}
    plan = mw.estimate("gpt2-tiny", "local", None, layout, gpus=parse_layout(layout).num_gpus, **job).plan
    time = plan.prediction.time
    work = slower * (time["compute"] + time["host"])
    parts = dict.fromkeys(PARTS, 0.0) | {"compute": 0.9 * work, "host": 0.1 * work}
    parts |= {"optimizer": slower * time["optimizer"], "dp_comm": time["dp_comm"]}
    walls = tuple(share * sum(parts.values()) for share in (1.0, 1.01, 0.99))
    ranks = [rank_report(rank, parts, steps=3, wall_seconds=walls) for rank in range(plan.layout.num_gpus)]
    return run_report_of(plan, ranks, torch=torch, stack="meshwright")


@pytest.fixture
def saved(tmp_path) -> MakeReport:
    def save(name: str, layout: str, **how: object) -> Path:
        path = tmp_path / f"{name}.json"
        save_report(report_of(layout, **how), path)
        return path

    return save


def test_a_run_moves_the_profile_and_the_next_plan_follows_it(meshwright, saved, tmp_path) -> None:
    report, profile = saved("dp2", "dp2 mbs2"), tmp_path / "profile.yaml"
    answer = meshwright.done("calibrate", "--from-run", str(report), "-o", str(profile))
    assert max(map(len, answer.out.splitlines())) <= 80
    assert answer.err.startswith(f"Wrote {profile}. Next: ")
    document = meshwright.json("calibrate", "--from-run", str(report), "-o", str(profile))
    by_quantity = {record["quantity"]: record for record in document["runs"]}
    for record in by_quantity.values():
        assert record["before"] < -0.1
        assert abs(record["after"]) < 0.03
    assert set(by_quantity) == {"step_seconds", "thread_cpu_seconds"}
    assert load_profile(str(profile)).model_dump(mode="json") == document["profile"]


def test_python_says_the_same(meshwright, saved, tmp_path) -> None:
    report, profile = saved("dp2", "dp2 mbs2"), tmp_path / "profile.yaml"
    found = mw.calibrate_from_run(report, out=profile)
    document = meshwright.json("calibrate", "--from-run", str(report), "-o", str(profile))
    assert json.loads(json.dumps(found.runs())) == document["runs"]
    assert json.loads(json.dumps(found.factors())) == document["factors"]
    assert list(found.to_frame().columns) == list(document["runs"][0])
    assert "-16." in repr(found)
    assert mw.calibrate_from_run(report_of("dp2 mbs2")).profile == load_profile(str(profile))


def test_several_runs_of_one_machine_are_fitted_together(meshwright, saved, tmp_path) -> None:
    two = [str(saved("dp2", "dp2 mbs2")), str(saved("mbs4", "mbs4"))]
    profile = str(tmp_path / "profile.yaml")
    plain = meshwright("calibrate", "--from-run", *two, "-o", profile, "--json")
    repeated = meshwright("calibrate", "--from-run", two[0], "--from-run", two[1], "-o", profile, "--json")
    assert plain.out == repeated.out
    assert json.loads(plain.out)["profile"]["validated_runs"] == 2


def test_runs_of_other_machines_are_named_and_refused(meshwright, saved, tmp_path) -> None:
    new, old = saved("new", "mbs4"), saved("old", "mbs4", torch="2.11.0")
    answer = meshwright("calibrate", "--from-run", str(new), str(old), "-o", str(tmp_path / "profile.yaml"))
    assert answer.code == 2
    assert answer.err.startswith("error: 2 runs are of 2 kinds")
    assert f"{old}: cpu, 2 cores, torch 2.11.0, fp32, stack meshwright" in answer.err
    assert not (tmp_path / "profile.yaml").exists()


def test_what_is_no_report_of_this_version_is_refused(meshwright, saved, tmp_path) -> None:
    report = saved("dp2", "dp2 mbs2")
    older = json.loads(report.read_text())
    del older["plan"]
    report.write_text(json.dumps(older))
    answer = meshwright("calibrate", "--from-run", str(report), str(tmp_path / "none.json"), "-q")
    assert answer.code == 2
    assert "older version" in answer.err
    assert "none.json" in answer.err
    table = meshwright("calibrate", "--from-run", str(tmp_path / "runs.csv"), "-q")
    assert table.err.endswith("hint: tables: --from-runs FILE.csv\n")


@pytest.mark.parametrize(
    "damage",
    [
        {"thread_seconds": []},
        {"parts": {"compute": 1.0}},
        {"parts": dict.fromkeys(PARTS, 0.0)},
        {"wall_seconds": [1.0]},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_damaged_report_is_told_of_and_writes_nothing(meshwright, saved, tmp_path, damage) -> None:
    report, profile = saved("mbs4", "mbs4"), tmp_path / "profile.yaml"
    document = json.loads(report.read_text())
    document["ranks"][0] |= damage
    report.write_text(json.dumps(document))
    answer = meshwright("calibrate", "--from-run", str(report), "-o", str(profile), "-q")
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert not profile.exists()


@pytest.mark.parametrize("seconds", [1e-9, 1e9])
def test_times_that_cannot_be_leave_a_profile_that_can_be_read(meshwright, saved, tmp_path, seconds) -> None:
    report, profile = saved("mbs4", "mbs4"), tmp_path / "profile.yaml"
    document = json.loads(report.read_text())
    document["ranks"][0] |= {"thread_seconds": [seconds] * 3, "wall_seconds": [seconds] * 3}
    document["step_seconds"] = seconds
    report.write_text(json.dumps(document))
    meshwright.done("calibrate", "--from-run", str(report), "-o", str(profile), "-q")
    assert load_profile(str(profile)).moved is not None


@pytest.mark.parametrize("processes", [1, 2, 4, 8, 16])
def test_the_layout_that_never_ran_takes_every_process(processes) -> None:
    layout = parse_layout(another_layout(processes))
    assert layout.num_gpus == processes
    assert 16 % (layout.dp * layout.mbs) == 0


def test_it_ends_on_errors_beside_the_noise(tmp_path) -> None:
    report = tmp_path / "run-report.json"
    save_report(report_of("dp2 mbs2", slower=1.25), report)
    step, thread = errors_of(report).split(", ")
    assert step.startswith("step -1")
    assert step.endswith(" % (noise 1.0 %)")
    assert thread == "thread cpu -20.0 % (noise 0.0 %)"
