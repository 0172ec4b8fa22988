"""Planning needs no torch: every verb that plans, explains, draws or reports answers without it, the others say so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

_PROGRAM = """
import json, sys
for package in ("torch", "safetensors", "torchao"):
    sys.modules[package] = None  # as if it were not installed
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from meshwright.cli import main

found = {}
for command in json.load(open("commands.json")):
    told = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(told):
        try:
            main(command.split())
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    found[command] = [code, told.getvalue()]
json.dump(found, open("found.json", "w"))
"""

PLAN = "plan gpt2-tiny local --gpus 2 --global-batch 16 --sequence 128 --precision fp32 -o plan.yaml"
WITHOUT = [
    PLAN,
    "estimate gpt2-tiny local --gpus 2 --global-batch 16 --sequence 128 --layout tp2 -o other.yaml",
    "plan dlrm-dcnv2 dgx-h100 --gpus 8 --global-batch 55296 --time-limit 1 -o sharding.yaml",
    "explain plan.yaml",
    "explain sharding.yaml",
    "compare plan.yaml other.yaml",
    "advise other.yaml",
    "verify plan.yaml",
    "forecast plan.yaml --tokens 1B --operations llama3",
    "plot memory plan.yaml -o memory.svg",
    "export plan.yaml --to torchrun -o run.sh",
    "report plan.yaml -o plan.html",
    f"validate --runs {ROOT}/cost_models/data/published/a100/korthikanti22.csv",
    "catalog gpus",
    "cluster --help",
]
WITH = [
    "run plan.yaml", "run plan.yaml --dry-run", "run sharding.yaml", "run sharding.yaml --dry-run",
    "emulate plan.yaml --rank 0", "emulate sharding.yaml --rank 0", "doctor", "calibrate -o profile.yaml",
]  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, tuple[int, str]]:
    """Exit code and stderr of every command, run one after another in one process without torch."""
    folder = tmp_path_factory.mktemp("without-torch")
    (folder / "commands.json").write_text(json.dumps(WITHOUT + WITH), "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", _PROGRAM], cwd=folder, env=environment, check=True)
    return {
        command: (code, told)
        for command, (code, told) in json.loads((folder / "found.json").read_text("utf-8")).items()
    }


def test_planning_works_and_running_says_what_to_install(found) -> None:
    assert [(command, found[command]) for command in WITHOUT if found[command][0]] == []
    for command in WITH:
        code, told = found[command]
        assert code == 2, command
        assert "needs torch and safetensors, which are not installed" in told, command
        assert "hint: pip install 'torch>=2.11' 'safetensors>=0.5'" in told, command
