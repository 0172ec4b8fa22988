"""`advise`, `forecast`, `cluster` and `doctor`: what they answer, as a document and in Python."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path

import pytest
import typer
from command_line import ASKED

import meshwright as mw
from cost_models.files import local
from cost_models.files.catalog import load_operations
from cost_models.files.loading import resolve_cluster
from cost_models.files.local import Machine
from executor.doctor import examine as examining
from executor.doctor.examine import MATMUL, Examination, HostFacts, Reading
from meshwright import Forecasted, InputError, estimate, forecast
from meshwright.verbs.forecast.forecasted import steps_between_checkpoints
from meshwright.verbs.plot import PlotOptions, plot
from planner.plan import load_plan

LAYOUT = "tp2 dp4 mbs1 zero1 sp recompute=full"


@pytest.fixture
def today(meshwright, tmp_path) -> Path:
    """What is run today, as `estimate -o` writes it."""
    path = tmp_path / "today.yaml"
    meshwright.done("estimate", *ASKED, "--layout", LAYOUT, "-o", str(path))
    return path


def test_the_document_and_python_say_the_same(meshwright, today, tmp_path) -> None:
    told = json.loads(meshwright("advise", str(today), "--json", "--csv", str(tmp_path / "a.csv")).out)
    advised = mw.advise(today)
    assert [one["change"] for one in told["changes"]] == [one.words for one in advised.advice.changes]
    assert told["best"]["step_seconds"] == pytest.approx(advised.best.step_seconds)
    assert told["certificate"]["gap"] == 0
    assert told["today"]["layout"].startswith("tp2 pp1 dp4 mbs1 zero1 sp recompute=full")
    frame = advised.to_frame()
    assert frame["change"].iloc[0] == "today"
    assert frame["step_seconds"].is_monotonic_decreasing
    assert len((tmp_path / "a.csv").read_text().splitlines()) == len(frame) + 1
    assert "Proved optimal" in repr(advised)
    assert "<table" in advised._repr_html_()


def test_the_best_plan_is_written_and_true(meshwright, today, tmp_path) -> None:
    best = tmp_path / "best.yaml"
    meshwright.done("advise", str(today), "-q", "-o", str(best))
    assert load_plan(best).prediction.step_seconds < load_plan(today).prediction.step_seconds
    meshwright.done("verify", str(best))
    again = meshwright("advise", str(best))
    assert "Nothing to change: no plan is faster." in again.out
    assert "+ " not in again.out


def test_a_layout_that_does_not_fit_is_told_what_does(meshwright, tmp_path) -> None:
    path = tmp_path / "large.yaml"
    asked = ("gpt2-xl", "gce-g2", *ASKED[2:], "--layout", "dp8 mbs2 zero0")
    assert meshwright("estimate", *asked, "-o", str(path)).code == 1
    answer = meshwright.done("advise", str(path))
    assert ", which does not fit" in answer.said
    (row,) = [line for line in answer.out.splitlines() if line.startswith("+ ")][:1]
    assert row.split().count("fits") == 2


@pytest.fixture(scope="module")
def plan(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("forecast") / "plan.yaml"
    estimate(
        "gpt3-175b", "dgx-h100", None, "tp8 pp16 dp64 mbs1 zero1", gpus=8192, global_batch=3072, sequence=2048
    ).save(path)
    return path


def test_the_curve_has_its_least_at_the_answer(plan) -> None:
    drawn = plot("forecast", plan, options=PlotOptions(tokens="3T", operations="llama3")).drawing
    curve = drawn.frame[drawn.frame["what"] == "interval"]
    (own,) = curve[curve["chosen"]].to_dict(orient="records")
    assert own["seconds"] == curve["seconds"].min()
    assert (curve["early_seconds"] < curve["late_seconds"]).all()
    assert "Saving every" in drawn.title
    assert isinstance(forecast(plan, "3T"), Forecasted)


def test_a_run_saves_as_often_as_the_forecast_finds_best(plan) -> None:
    loaded = load_plan(plan)
    every, known = steps_between_checkpoints(loaded, 100_000, "rsc1")
    tokens = 100_000 * loaded.training.tokens_per_step
    assert (every, known) == (forecast(plan, tokens, operations="rsc1").outlook.interval, "rsc1")


def test_a_run_that_nothing_starts_again_has_no_best_interval(plan) -> None:
    """Neither a spare node nor --restarts: the first failure is the end."""
    loaded = load_plan(plan)
    none = load_operations("llama3").model_copy(update={"spares": 0})
    with pytest.raises(InputError, match="the first failure ends the run"):
        steps_between_checkpoints(loaded, 100_000, none, restarts=0)
    assert steps_between_checkpoints(loaded, 100_000, none, restarts=3)[0] > 0
    assert steps_between_checkpoints(loaded, 100_000, "llama3", restarts=0)[0] > 0


DRIVER = """#!/bin/sh
case "$*" in
*query-gpu*) printf '0, NVIDIA L40S, 46068, 350.00, 4, 16, [N/A]\\n1, NVIDIA L40S, 46068, 350.00, 4, 16, [N/A]\\n' ;;
*topo*) printf '\\tGPU0\\tGPU1\\tCPU Affinity\\nGPU0\\t X \\tPIX\\t0-15\\nGPU1\\tPIX\\t X \\t0-15\\n' ;;
*) exit 3 ;;
esac
"""


@pytest.fixture
def driver(tmp_path, monkeypatch) -> Path:
    """A machine whose driver has two L40S."""
    tools = tmp_path / "tools"
    tools.mkdir()
    file = tools / "nvidia-smi"
    file.write_text(DRIVER)
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "NCCL_TOPO_FILE", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return file


@pytest.fixture
def no_network(monkeypatch) -> None:
    """Whatever adapters this machine has."""
    monkeypatch.setattr(Machine, "names", lambda self, path: ())


def test_a_file_is_written_that_plans_take(meshwright, driver) -> None:
    link = ("--link", "inter_node=infiniband,100Gb/s", "--nodes", "2")
    answer = meshwright.done("cluster", "--discover", *link, "-o", "here.yaml")
    assert "said by" in answer.out
    assert "assumed: links.intra_node: latency" in answer.err
    found = resolve_cluster("here.yaml")
    assert (found.num_gpus, found.gpus_per_host_link) == (4, 2)


def test_what_is_open_ends_with_1_and_plan_says_where(meshwright, driver, no_network) -> None:
    answer = meshwright("cluster", "--discover", "--nodes", "2", "-o", "here.yaml")
    assert answer.code == 1
    assert "say a link with --link" in answer.out
    assert "links.inter_node.bandwidth: `unknown` is not a bandwidth" in meshwright.refusal(
        "plan", "gpt2-small", "here.yaml", "--global-batch", "8", "--sequence", "128"
    )


def test_questions_are_asked_of_a_person_until_they_are_answered(driver, no_network, monkeypatch) -> None:
    said = iter(["fast", "infiniband,400Gb/s"])
    verb = import_module("meshwright.verbs.cluster")
    monkeypatch.setattr(typer, "prompt", lambda *words, **flags: next(said))
    answer = verb._ask(verb.ClusterFlags(nodes=2), {}, may_ask=True)
    assert answer.complete
    assert answer.cluster.links.inter_node.bandwidth == 50e9
    assert not verb._ask(verb.ClusterFlags(nodes=2), {}, may_ask=False).complete


def test_tools_that_fail_or_hang_are_said(driver, monkeypatch) -> None:
    here = Machine()
    assert here.run("nvidia-smi", "nonsense") is None
    assert here.run("no-such-tool-anywhere") is None
    monkeypatch.setattr(local, "_SECONDS", 0.05)
    assert here.run("sleep", "5") is None
    assert [one.replace("`", "") for one in here.unsaid] == [
        "nvidia-smi nonsense ended with 3",
        "no-such-tool-anywhere is not installed",
        "sleep 5 said nothing in 0 s",
    ]


def test_the_template_is_fifteen_commented_lines_that_load(meshwright, tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    meshwright.done("cluster", "--template", "-o", str(file))
    lines = file.read_text("utf-8").splitlines()
    assert (len(lines), sum("#" in line for line in lines)) == (15, 11)
    assert resolve_cluster(str(file)).num_gpus == 16
    file.write_text("name: mine\nnodez: 2\n", "utf-8")
    refused = meshwright("plan", "gpt2-small", str(file), "--global-batch", "8", "--sequence", "128")
    assert refused.err.splitlines()[-1].endswith("meshwright cluster --template -o my-cluster.yaml")


@pytest.fixture
def found(monkeypatch) -> list[int]:
    """Numbers of processes that were examined; the last of them multiplies 1.3 times as slowly."""
    asked: list[int] = []

    def examine(processes: int, *, device: str) -> Examination:
        asked.append(processes)
        slow = [1.0] * (processes - 1) + [1.3 if processes > 2 else 1.0]
        return Examination(
            backend="gloo",
            hosts=tuple(
                HostFacts(rank=rank, host="here", device="cpu", cores=2, free_bytes=2**33)
                for rank in range(processes)
            ),
            readings=tuple(
                Reading(check=MATMUL, ranks=(rank,), seconds=(time, 1.01 * time), work=1e9)
                for rank, time in enumerate(slow)
            ),
        )

    monkeypatch.setattr(examining, "examine", examine)
    return asked


def test_a_slow_process_is_named_and_the_answer_is_no(meshwright, found) -> None:
    answer = meshwright("doctor", "--processes", "4", "--json")
    assert (answer.code, found) == (1, [4])
    record = json.loads(answer.out)
    assert record["passed"] is False
    assert [one["sentence"] for one in record["findings"]] == [
        "rank 3 (here): matmul 30.0 % slower than the median"
    ]
