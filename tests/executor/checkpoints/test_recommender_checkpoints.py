"""Checkpoints of recommenders: bit for bit on the same sharding, equal on any other."""

from __future__ import annotations

import pytest
from effort import few
from recommending import model, save_and_resume

ALONE = "table:0-5=whole@0,0,0,0,0,0"
MIXED = (
    "table:0=hot(0.1)+row table:1=row/cached(0.3) table:2-3=column2@1,0,0,0 table:4=copy table:5=whole@1/host"
)
NODES = (
    "table:0=row table:1=row2@2,2 table:2=node-row2@1,0 table:3=node-row@1 table:4=hot(0.3)+column3@3,0,1"
    " table:5=row"
)
TOLERANCE = 1e-6


@few(2)
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise-adagrad", "adagrad", "adam"])
def test_any_sharding_goes_on_where_another_stopped(optimizer: str, processes, tmp_path) -> None:
    """One process → two → four in two nodes → one, against one process throughout; and the second once more."""
    spec, folder = model("mean"), tmp_path / "saved"
    expected, _, _ = processes.run(1, save_and_resume, spec, ALONE, optimizer, tmp_path / "alone", False, 8)[
        0
    ]
    curve = processes.run(1, save_and_resume, spec, ALONE, optimizer, folder, False, 2)[0][0]
    two = processes.run(2, save_and_resume, spec, MIXED, optimizer, folder, True, 2)[0]
    four = processes.run(4, save_and_resume, spec, NODES, optimizer, folder, True, 2, 2)[0]
    curve += two[0] + four[0]
    last = processes.run(1, save_and_resume, spec, ALONE, optimizer, folder, True, 2)[0]
    curve += last[0]
    assert curve == pytest.approx(expected, abs=TOLERANCE)
    assert two[2][0].endswith(f"after step 2, saved as {ALONE} on 1 GPUs")


def test_resuming_is_exact(processes, tmp_path) -> None:
    """The same ranks and sharding, stopped in the middle: every loss and every row to the bit."""
    spec = model("sum")
    whole = processes.run(4, save_and_resume, spec, NODES, "adam", tmp_path / "whole", False, 6, 2)[0]
    first = processes.run(4, save_and_resume, spec, NODES, "adam", tmp_path / "parts", False, 3, 2)[0]
    then = processes.run(4, save_and_resume, spec, NODES, "adam", tmp_path / "parts", True, 3, 2)[0]
    assert first[0] + then[0] == whole[0]
    assert all((then[1][name] == rows).all() for name, rows in whole[1].items())
