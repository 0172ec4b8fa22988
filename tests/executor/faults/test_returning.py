"""After a failure the ranks that come back are checked: one that gives wrong results does not train on."""

from __future__ import annotations

import pytest

from cost_models.errors import HostError
from executor.launch.launch import require_not_left_out
from executor.run_config import FAILED_CHECKS


def test_a_host_that_failed_twice_is_not_let_in_again(tmp_path, monkeypatch) -> None:
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
