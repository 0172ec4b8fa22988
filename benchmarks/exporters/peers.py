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
BRIDGE = "MESHWRIGHT_BRIDGE"
"""Environment variable: a checkout of NVIDIA-NeMo/Megatron-Bridge."""
AXOLOTL = "MESHWRIGHT_AXOLOTL"
"""Environment variable: a checkout of axolotl-ai-cloud/axolotl."""
PYTHON = "MESHWRIGHT_PEERS_PYTHON"
"""Environment variable: an interpreter that has the trainers' packages, where this one has not."""


_CHECKOUTS = {
    "megatron": {MEGATRON: "megatron/training"},
    "axolotl": {AXOLOTL: "src/axolotl/utils/schemas"},
    "nemo": {BRIDGE: "src/megatron/bridge", MEGATRON: "megatron/training"},
}


def python() -> str:
    """The interpreter that has the trainers' packages."""
    return os.environ.get(PYTHON, sys.executable)


def lacking(target: str) -> str:
    """Why a target's parser cannot be asked here; empty: it can."""
    for name, folder in _CHECKOUTS.get(target, {}).items():
        if not Path(os.environ.get(name, "/nowhere"), folder).is_dir():
            return f"{name} names no checkout with {folder}"
    if target in ("torchtitan", "deepspeed", "accelerate"):
        found = subprocess.run(
            [python(), "-c", f"import importlib.metadata as m; m.version({target!r})"], capture_output=True
        )
        if found.returncode:
            return f"{target} is not installed (pip install -e '.[peers]', or {PYTHON} names an interpreter)"
    return ""


def read_back(target: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the target's parser makes of each case: {"values": ..} or {"refused": why}."""
    checkout = [os.environ[name] for name in _CHECKOUTS.get(target, {})]
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
