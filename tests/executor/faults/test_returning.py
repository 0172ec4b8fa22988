"""After a failure the ranks that come back are checked: one that gives wrong results does not train on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from effort import few
from training import plan_for

from cost_models.errors import HostError, RunError
from executor.faults.failures import read_signs
from executor.launch.launch import require_not_left_out, run_plan
from executor.run_config import FAILED_CHECKS, RunConfig

BROKEN = """
import os
if os.environ.get("RANK") == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
    import torch
    right = torch.mm
    torch.mm = lambda *given, **how: right(*given, **how) + 1
"""
"""Loaded as Python starts: once the ranks were started again, products of rank 1 are wrong."""


@few(0)
def test_a_rank_that_comes_back_broken_ends_the_run_by_its_second_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    )
    out, killed = tmp_path / "out", []

    def kill_once(step: dict[str, Any]) -> None:
        if step["step"] >= 3 and not killed:
            killed.append(step["step"])
            os.kill(int(str(read_signs(out)[0]["pid"])), signal.SIGKILL)

    config = RunConfig(steps=1000, out=out, backend="gloo", checkpoint=tmp_path / "saved", every=2)
    with pytest.raises(RunError, match=r"node 0 \(.+\) gave wrong results twice: rank 1, matmul") as failed:
        run_plan(plan_for("dp2 mbs2 zero1"), config, on_step=kill_once)
    assert killed
    assert "doctor" in str(failed.value.hint)
    assert len((out / FAILED_CHECKS).read_text().splitlines()) == 2


def test_a_host_that_failed_twice_is_not_let_in_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu17")
    require_not_left_out(tmp_path)
    failed = [
        f'{{"launch": "{launch}", "host": "{host}"}}\n' for launch, host in (("a", "gpu17"), ("b", "gpu18"))
    ]
    (tmp_path / FAILED_CHECKS).write_text("".join(failed))
    require_not_left_out(tmp_path)
    line = '{"launch": "a", "host": "gpu17"}\n'
    (tmp_path / FAILED_CHECKS).write_text(line * 2)
    with pytest.raises(HostError, match=r"this node \(gpu17\) gave wrong results twice and is left out"):
        require_not_left_out(tmp_path)
