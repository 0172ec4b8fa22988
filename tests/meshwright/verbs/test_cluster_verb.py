"""`meshwright cluster --discover` asks the tools of this machine, without a shell and not for ever."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest
import typer

from cost_models.files import local
from cost_models.files.loading import resolve_cluster
from cost_models.files.local import Machine

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
    answer = meshwright("cluster", "--discover", *link, "-o", "here.yaml")
    assert answer.code == 0, answer.err
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
    assert meshwright("cluster", "--template", "-o", str(file)).code == 0
    lines = file.read_text("utf-8").splitlines()
    assert (len(lines), sum("#" in line for line in lines)) == (15, 11)
    assert resolve_cluster(str(file)).num_gpus == 16
    file.write_text("name: mine\nnodez: 2\n", "utf-8")
    refused = meshwright("plan", "gpt2-small", str(file), "--global-batch", "8", "--sequence", "128")
    assert refused.err.splitlines()[-1].endswith("meshwright cluster --template -o my-cluster.yaml")
