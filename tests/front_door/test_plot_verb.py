"""`plot`: every kind of picture from a plan file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import QUICK


@pytest.mark.parametrize("kind", ["time", "memory", "timeline", "frontier", "scaling"])
def test_plot(meshwright, plan_file: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"{kind}.svg"
    more = ("--gpus", "4,8") if kind == "scaling" else ()
    answer = meshwright("plot", kind, str(plan_file), "-o", str(path), *more)
    assert answer.code == 0, answer.err
    assert path.read_text().startswith("<?xml")
    assert answer.out.endswith(f"Wrote {path}\n")


def test_plot_accuracy_from_csv(meshwright, tmp_path: Path) -> None:
    rows = tmp_path / "runs.csv"
    rows.write_text("label,quantity,predicted,measured\na,step_seconds,1.0,1.1\nb,step_seconds,2.0,1.9\n")
    path = tmp_path / "accuracy.png"
    answer = meshwright("plot", "accuracy", str(rows), "-o", str(path), "--json")
    document = json.loads(answer.out)
    assert document["title"] == "Step time: median error 7.2 %; 2 of 2 runs within 10 %"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_unconnected_nodes_do_not_scale(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    small = ("gpt2-tiny", "local", "--gpus", "2", "--global-batch", "8", "--sequence", "128")
    assert meshwright("plan", *small, *QUICK, "-o", str(path)).code == 0
    answer = meshwright("plot", "scaling", str(path), "--gpus", "1,4,6", "-o", str(tmp_path / "x.png"))
    assert answer.code == 2
    assert (
        "\n  4 GPUs are more than a node, and nodes are not connected; a node has 2\n  6 GPUs" in answer.err
    )
