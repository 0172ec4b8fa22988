"""`plot`: curves between any two objectives and over many points; every kind is among the frozen answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import QUICK


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


@pytest.mark.parametrize("between", ["time,gpu-hours", "cost,mfu"])
def test_frontier_of_any_two_objectives(meshwright, plan_file: Path, tmp_path: Path, between: str) -> None:
    path = tmp_path / "frontier.svg"
    money = ("--price", "2.5") if "cost" in between else ()
    words = ("--gpus", "4,8", "--between", between, "--tokens", "1B", *money, "-o", str(path), "--json")
    answer = meshwright("plot", "frontier", str(plan_file), *words)
    assert answer.code == 0, answer.err
    points = json.loads(answer.out)["points"]
    assert points
    assert {*between.split(","), "gpus", "layout", "gap"} <= set(points[0])
    assert all(point["proven"] for point in points)
    assert path.read_text().startswith("<?xml")


def test_scaling_over_many_points(meshwright, plan_file: Path, tmp_path: Path) -> None:
    words = ("--gpus", "8..64x12", "--kind", "strong", "-o", str(tmp_path / "x.png"), "--json")
    points = json.loads(meshwright("plot", "scaling", str(plan_file), *words).out)["points"]
    assert len(points) >= 4
    assert {point["kind"] for point in points} == {"strong"}


def test_a_curve_that_is_interrupted_keeps_its_points(
    meshwright, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.search import budget

    left, search = [2], budget.search

    def interrupted(*args: object, **kwargs: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return search(*args, **kwargs)

    monkeypatch.setattr(budget, "search", interrupted)
    words = ("--gpus", "2,4,8", "--kind", "strong", "-o", str(tmp_path / "x.png"), "--json")
    answer = meshwright("plot", "scaling", str(plan_file), *words)
    assert answer.code == 130
    assert [point["gpus"] for point in json.loads(answer.out)["points"]] == [2, 4]
    assert answer.err == "interrupted: not every point was searched\n"
