"""`plot`: every kind of picture from a plan file."""

from __future__ import annotations

import json

import pytest
from command_line import QUICK


def test_unconnected_nodes_do_not_scale(meshwright, tmp_path) -> None:
    path = tmp_path / "small.yaml"
    small = ("gpt2-tiny", "local", "--gpus", "2", "--global-batch", "8", "--sequence", "128")
    assert meshwright("plan", *small, *QUICK, "-o", str(path)).code == 0
    answer = meshwright("plot", "scaling", str(path), "--gpus", "1,4,6", "-o", str(tmp_path / "x.png"))
    assert answer.code == 2
    assert (
        "\n  4 GPUs are more than a node, and nodes are not connected; a node has 2\n  6 GPUs" in answer.err
    )


@pytest.mark.parametrize("between", ["time,gpu-hours", "cost,mfu"])
def test_frontier_of_any_two_objectives(meshwright, plan_file, tmp_path, between: str) -> None:
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


def test_a_curve_that_is_interrupted_keeps_its_points(meshwright, plan_file, tmp_path, monkeypatch) -> None:
    from planner.search import search as search_module

    left, search = [2], search_module.search_on

    def interrupted(*args: object, **kwargs: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return search(*args, **kwargs)

    monkeypatch.setattr(search_module, "search_on", interrupted)
    words = ("--gpus", "2,4,8", "--kind", "strong", "-o", str(tmp_path / "x.png"), "--json")
    answer = meshwright("plot", "scaling", str(plan_file), *words)
    assert answer.code == 130
    assert [point["gpus"] for point in json.loads(answer.out)["points"]] == [2, 4]
    assert answer.err == "interrupted: not every point was searched\n"
