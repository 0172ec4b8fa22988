"""`measure`: another trainer's log and traces beside the plan, as a report that the other verbs take."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import pytest
from command_line import SHOP
from gpu_traces import write_trace
from trainer_logs import WORK, megatron

import meshwright as mw
from executor.measure.report import load_any_report
from planner.plan import load_plan

SECONDS = [2.0, *[0.1, 0.1005, 0.0995] * 20]
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path) -> Write:
    def written(lines: Sequence[str], name: str = "train.log") -> str:
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return str(tmp_path / name)

    return written


def test_a_log_becomes_the_report_that_the_other_verbs_take(meshwright, plan_file, write, tmp_path) -> None:
    plan = load_plan(plan_file)
    log = write(megatron(SECONDS))
    report = tmp_path / "measured.json"
    answer = meshwright.done("measure", str(plan_file), "--log", log, "-o", str(report))
    assert max(len(line) for line in answer.out.splitlines() if log not in line) <= 80  # a path is not broken
    assert "61 lines of steps of Megatron-LM" in answer.said
    assert "Left out: 1 warm-up" in answer.out
    assert answer.err == f"Wrote {report}. Next: meshwright calibrate --from-run {report} -o profile.yaml\n"
    kept = load_any_report(report)
    assert kept.step_seconds == pytest.approx(0.1)
    assert kept.mfu == pytest.approx(plan.prediction.mfu * plan.prediction.step_seconds / 0.1)
    assert kept.plan == plan
    page, chart = tmp_path / "page.html", tmp_path / "accuracy.svg"
    meshwright.done("plot", "accuracy", str(report), "-o", str(chart))
    meshwright.done("report", str(plan_file), str(report), "-o", str(page), "--time-limit", "1")
    assert "Predicted beside measured" in page.read_text()
    moved = meshwright.done("calibrate", "--from-run", str(report), "-o", str(tmp_path / "p.yaml"), "--json")
    (run,) = json.loads(moved.out)["runs"]
    assert run["quantity"] == "step_seconds"
    assert abs(run["after"]) < abs(run["before"])
    answer = meshwright("plot", "ranks", str(report), "-o", str(chart))
    assert answer.code == 2
    assert "tells nothing of what each rank did" in answer.err


def test_traces_put_every_part_beside_its_own(meshwright, plan_file, write, tmp_path) -> None:
    plan = load_plan(plan_file)
    parts = {"compute": 0.06, "host": 0.005, "dp": 0.03, "optimizer": 0.005}
    traces = [
        write_trace(tmp_path / f"trace_rank{rank}.json.gz", plan.layout, rank, parts) for rank in (0, 3)
    ]
    report = tmp_path / "measured.json"
    words = ("measure", str(plan_file), "--log", write(megatron(SECONDS)), "--trace", *map(str, traces))
    answer = meshwright.done(*words, "-o", str(report))
    assert "What explains most of it:" in answer.out
    assert "dp comm takes" in answer.out
    document = meshwright.json(*words)
    told = {line["quantity"]: line["measured"] for line in document["comparison"]}
    for part, seconds in parts.items():
        name = f"{part}_comm_seconds" if part == "dp" else f"{part}_seconds"
        assert told[name] == pytest.approx(seconds, abs=0.001)
    first, *_ = document["explained"]
    assert first["share"] == pytest.approx((first["measured"] - first["predicted"]) / 0.1)
    assert load_any_report(report).ranks[1].rank == 3
    alone = mw.measure(plan, trace=traces)
    assert alone.report.step_seconds == pytest.approx(0.1, rel=0.01)


def test_wrong_input_is_refused_in_words(meshwright, plan_file, write, tmp_path) -> None:
    shop = tmp_path / "shop.yaml"
    shop.write_text(SHOP)
    wanted = ("--global-batch", "8192", "-o", str(tmp_path / "shop-plan.yaml"))
    meshwright.done("plan", str(shop), "dgx-h100", "--gpus", "2", *wanted)
    log = write(megatron(SECONDS))
    refused = {
        ("measure", str(plan_file)): "there is nothing to measure",
        ("measure", str(tmp_path / "shop-plan.yaml"), "--log", log): "does not take a recommender",
        ("measure", str(plan_file), "--trace", log): "is no whole trace",
        ("measure", str(plan_file), "--log", str(tmp_path)): "is a folder\n\nhint: name the files in it",
        ("measure", str(plan_file), "--trace", str(tmp_path)): "is a folder\n\nhint: name the files in it",
    }
    for words, said in refused.items():
        answer = meshwright(*words)
        assert (answer.code, said in answer.err) == (2, True), (words, answer.err)
    assert WORK.gpus == load_plan(plan_file).layout.num_gpus


@pytest.mark.timeout(20)
@pytest.mark.parametrize("flag", ["--log", "--trace"])
def test_what_may_never_end_is_refused(meshwright, plan_file, tmp_path, flag: str) -> None:
    """A pipe without a writer, which opens for ever; devices, of which some give zeros for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, said in ((pipe, "is a pipe that nobody writes to"), ("/dev/zero", "is a device")):
        answer = meshwright("measure", str(plan_file), flag, str(path))
        assert answer.code == 2
        assert f"`{path}` {said}" in answer.err
        assert "hint: name a file" in answer.err


def test_a_pipe_with_a_writer_is_read(meshwright, plan_file, write, tmp_path) -> None:
    pipe, log = tmp_path / "pipe", Path(write(megatron(SECONDS)))
    os.mkfifo(pipe)
    writer = Thread(target=pipe.write_bytes, args=(log.read_bytes(),))
    writer.start()
    answer = meshwright("measure", str(plan_file), "--log", str(pipe))
    writer.join()
    assert answer.code == 0, answer.err
    assert "61 lines of steps" in answer.said
