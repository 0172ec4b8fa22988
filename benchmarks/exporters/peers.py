"""Trainers' own parsers, each in a process of its own, where this machine has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MEGATRON = "MESHWRIGHT_MEGATRON"
"""Environment variable: a checkout of NVIDIA/Megatron-LM."""
PYTHON = "MESHWRIGHT_PEERS_PYTHON"
"""Environment variable: an interpreter that has the trainers' packages, where this one has not."""


def python() -> str:
    """The interpreter that has the trainers' packages."""
    return os.environ.get(PYTHON, sys.executable)


def lacking(target: str) -> str:
    """Why a target's parser cannot be asked here; empty: it can."""
    if (
        target == "megatron"
        and not Path(os.environ.get(MEGATRON, "/nowhere"), "megatron", "training").is_dir()
    ):
        return f"{MEGATRON} names no checkout of Megatron-LM"
    if target in ("torchtitan", "deepspeed"):
        found = subprocess.run(
            [python(), "-c", f"import importlib.metadata as m; m.version({target!r})"], capture_output=True
        )
        if found.returncode:
            return f"{target} is not installed (pip install -e '.[peers]', or {PYTHON} names an interpreter)"
    return ""


def read_back(target: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the target's parser makes of each case: {"values": ..} or {"refused": why}."""
    checkout = [os.environ[MEGATRON]] if target == "megatron" else []
    done = subprocess.run(
        [python(), str(HERE / f"read_{target}.py"), *checkout],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
