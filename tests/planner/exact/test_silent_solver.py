"""The solver writes nothing where programs read: C++ writes to the output itself, so a process of its own is asked."""

from __future__ import annotations

import json
import subprocess
import sys

ASK = [
    "plan",
    "gpt2-small",
    "dgx-a100-80gb",
    "--gpus",
    "8",
    "--sequence",
    "1024",
    "--global-batch",
    "64",
    "--json",
]


def test_the_output_of_a_plan_is_its_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *ASK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "plans" in json.loads(done.stdout)
