"""`run_plan` from a file to a report, and what it says when this host cannot or a rank fails."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import first_of
from training import GPT, LLAMA, MOE, plan_for, reported

from cost_models.defaults import OWN_COMPILED, OWN_STACK
from cost_models.errors import HostError, InputError, RunError
from cost_models.files import catalog
from executor.emulate.dry_run import build_without_devices
from executor.launch.environment import LOOPBACK
from executor.launch.launch import run_plan
from executor.measure.report import RunReport, load_any_report
from executor.run_config import RunConfig
from meshwright.verbs.ran import start_line
from planner.plan import Plan, save_plan


def test_two_processes_train_and_report(tmp_path) -> None:
    """Every step is told once, the report is on disk, it holds what was said, and no other machine could take part."""
    save_plan(plan_for("dp2 mbs2 zero1"), tmp_path / "plan.yaml")
    told: list[dict[str, Any]] = []
    listening: set[str] = set()

    def hear(step: dict[str, Any]) -> None:
        told.append(step)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                sockets = process.net_connections("inet")
                listening.update(one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN)

    report = run_plan(
        tmp_path / "plan.yaml",
        RunConfig(steps=3, warm_up=1, out=tmp_path / "run", backend="gloo"),
        on_step=hear,
    )
    assert listening == {LOOPBACK}
    assert [step["step"] for step in told] == [1, 2, 3, 4]
    assert [step["measured"] for step in told] == [False, True, True, True]
    assert tuple(step["loss"] for step in told) == report.losses
    assert report.losses[-1] < report.losses[0]
    assert load_any_report(tmp_path / "run" / "run-report.json") == report
    assert [rank.rank for rank in report.ranks] == [0, 1]
    assert all(len(rank.wall_seconds) == 3 for rank in report.ranks)
    assert report.quickest_step_seconds <= report.step_seconds
    assert report.peak_bytes == max(rank.peak_bytes for rank in report.ranks)
    assert report.environment.world_size == 2
    assert report.start is not None
    assert set(report.start.parts) >= {"processes", "groups", "weights", "first_step"}
    assert start_line(report.start).startswith("start ")


def _two_steps(plan: Plan, folder: Path) -> RunReport:
    return reported(plan, folder, steps=2, warm_up=1)


def test_routers_are_reported(processes, tmp_path) -> None:
    """Every mixture of the model, with the load that its experts got over all ranks."""
    report, _ = processes.run(2, _two_steps, plan_for("dp2 ep2 mbs2", MOE), tmp_path)
    assert [router.layer for router in report.routers] == [1, 2, 3]  # the first block is dense
    for router in report.routers:
        assert router.mean_load == 8 * 16 * 2 / 4  # tokens of a step, two experts each, four experts
        assert 0 <= router.smallest_load < 1 < router.largest_load <= 4
        assert 0 < router.entropy < 1
    assert load_any_report(tmp_path / "run-report.json") == report


def test_a_plan_for_gpus_is_refused_here_with_both_numbers() -> None:
    local = plan_for("mbs2")
    cluster = catalog.load_cluster("dgx-a100-80gb").model_copy(update={"nodes": 8})
    layout = local.layout.model_copy(update={"dp": 64})
    of_gpus = {"cluster": cluster, "hardware": catalog.load_profile("datasheet-gpu"), "layout": layout}
    plan = local.model_copy(update=of_gpus)
    with pytest.raises(HostError, match=r"plan needs 64 GPUs; this host has \d+"):
        run_plan(plan, RunConfig())


@pytest.mark.parametrize(("started", "said"), first_of(1, [("3", "3 were started"), ("1", "1 was started")]))
def test_a_rank_of_another_number_of_processes(started: str, said: str, tmp_path, monkeypatch) -> None:
    """torchrun with the wrong `--nproc-per-node` is told so before anything is joined."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", started)
    save_plan(plan_for("dp2 mbs2 zero1"), tmp_path / "plan.yaml")
    with pytest.raises(HostError, match=rf"plan.yaml needs 2 processes; {said}"):
        run_plan(tmp_path / "plan.yaml", RunConfig(backend="gloo"))
    files = (str(tmp_path / "plan.yaml"), str(tmp_path / "run.json"))
    command = [sys.executable, "-m", "executor.launch.rank", *files]
    (tmp_path / "run.json").write_text(RunConfig(backend="gloo", out=tmp_path).model_dump_json())
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: plan.yaml needs 2 processes; {said}\n")


@pytest.mark.parametrize(("stack", "compiled"), [(OWN_STACK, False), (OWN_COMPILED, True)])
def test_blocks_are_compiled_as_the_plan_has_it(stack: str, compiled: bool, monkeypatch) -> None:
    """A plan for compiled blocks needs no flag."""
    given: list[RunConfig] = []

    def not_now(plan: Plan, config: RunConfig, *_: object) -> None:
        given.append(config)
        raise RunError("not now")

    monkeypatch.setattr("executor.launch.launch.run_ranks", not_now)
    plan = plan_for("mbs2").model_copy(update={"stack": catalog.load_stack(stack)})
    with pytest.raises(RunError, match="not now"):
        run_plan(plan, RunConfig(backend="gloo"))
    assert [config.compile for config in given] == [compiled]


def test_more_processes_than_the_cores_bear() -> None:
    plan = plan_for("mbs2")
    crowd = plan.model_copy(update={"layout": plan.layout.model_copy(update={"dp": 4096})})
    with pytest.raises(HostError, match="needs 4,096 processes"):
        run_plan(crowd, RunConfig(backend="gloo"))


@pytest.mark.parametrize(
    ("change", "words"),
    [({"precision": "fp16"}, "fp32, bf16 or fp8, not in fp16"), ({}, "needs a vocabulary of 256")],
)
def test_what_cannot_be_trained_is_refused(change: dict[str, str], words: str) -> None:
    plan = plan_for("mbs2", GPT if change else GPT | {"vocab_size": 100})
    training = plan.training.model_copy(update=change)
    with pytest.raises(InputError, match=words):
        run_plan(plan.model_copy(update={"training": training}), RunConfig())


def test_memory_that_runs_out_is_told_part_by_part(tmp_path) -> None:
    """A rank with too little memory for its activations: exit code 1, and what held how much beside the prediction."""
    model = GPT | {"hidden_size": 256, "max_positions": 1024}
    plan = plan_for("mbs64", model, sequence_length=1024, global_batch=64)
    unlimited = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1100 * 2**20, unlimited[1]))  # its processes inherit it
    try:
        with pytest.raises(
            RunError, match=r"rank 0 \(stage 0\) ran out of memory at .+; predicted .+ GiB"
        ) as failed:
            run_plan(plan, RunConfig(steps=1, warm_up=0, out=tmp_path, backend="gloo"))
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, unlimited)
    assert failed.value.exit_code == 1
    assert failed.value.hint == "plan again with a smaller --max-memory"
    assert [problem.where for problem in failed.value.problems] == [
        "weights",
        "gradients",
        "optimizer",
        "rest",
    ]
    told = json.loads((tmp_path / "failure-0.json").read_text("utf-8"))
    assert told["allocated"]["weights"] == told["predicted"]["weights"]
    assert told["allocated"]["gradients"] == told["predicted"]["gradients"]
    assert 0 < told["allocated"]["rest"] < told["predicted"]["rest"]


@pytest.mark.parametrize(
    "layout",
    [
        "tp2 pp2 vpp2 dp2 mbs1 zero3 sp",
        "pp2 dp2 mbs1 zero2 schedule=zbv",
        "cp4 pp2 dp2 mbs1 zero1 shard4 context=all-gather",
    ],
)
def test_a_dry_run_builds_what_the_ranks_would_hold(layout: str) -> None:
    """Every block once over the stages, and the stages' shares are the model's."""
    plan = plan_for(layout, LLAMA)
    built = build_without_devices(plan)
    assert [rank.rank for rank in built] == [
        stage * plan.layout.tp * plan.layout.data_ranks for stage in range(plan.layout.pp)
    ]
    assert sum(sum(rank.blocks) for rank in built) == plan.model.num_layers
    whole = sum(rank.parameters for rank in build_without_devices(plan_for("mbs2", LLAMA)))
    shares = plan.layout.tp * (plan.layout.shard_group if plan.layout.zero >= 2 else 1)
    norms = LLAMA["hidden_size"] * (2 * LLAMA["num_layers"] + 1)  # not split over tp
    assert (
        sum(rank.parameters for rank in built) == (whole - norms) // shares + norms * plan.layout.tp // shares
    )
    # ZeRO-1's shares are whole vectors of 16, which pads the last one
    padding = range(4 * 16 * plan.layout.shard_group if plan.layout.zero == 1 else 1)
    assert all(rank.weights_bytes - 4 * rank.parameters in padding for rank in built)


@pytest.mark.parametrize(("layout", "held"), [("dp4 ep2 mbs1", 2), ("tp2 dp4 ep4 etp1 sp mbs1 zero1", 4)])
def test_a_dry_run_builds_the_experts_of_a_rank(layout: str, held: int) -> None:
    """Experts are made where they are held, never all of them and then some dropped."""
    model = MOE | {"num_moe_layers": 4, "tied_embeddings": False}
    (rank,) = build_without_devices(plan_for(layout, model))
    (other,) = build_without_devices(plan_for(layout, model | {"moe_ffn_hidden_size": 24}))
    assert rank.parameters - other.parameters == 4 * 4 // held * 3 * 32 * 24


def test_a_dry_run_says_what_cannot_be_built() -> None:
    """Seven microbatches are not whole rounds of an interleaved schedule over two ranks."""
    plan = plan_for("pp2 vpp2 mbs1")
    odd = plan.training.model_copy(update={"global_batch": 7})
    with pytest.raises(RunError, match=r"rank 0 \(stage 0\) cannot be built: .*microbatches"):
        build_without_devices(plan.model_copy(update={"training": odd}))
