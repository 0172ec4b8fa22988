"""`meshwright emulate` of a recommender: one GPU of sixty-four, on a machine that has none."""

from __future__ import annotations

import json

import meshwright as mw

LAYOUT = "table:0=row table:1=column4@3,8,17,37 table:2=node-row@4 table:3=node-row@4 table:4=whole@37 table:5-7=copy"


def test_one_of_sixty_four_gpus(tmp_path, meshwright) -> None:
    """Its rows to the byte, text, JSON and file alike; its compute is left out, as this is no H100."""
    path, out = tmp_path / "plan.yaml", tmp_path / "rank.json"
    words = ("dgx-h100", "--gpus", "64", "--global-batch", "4096")
    done = meshwright("estimate", "dlrm-tiny", *words, "--layout", LAYOUT, "-o", str(path))
    assert done.code == 0, done.err
    rows = -(-(20000 - 37) // 64) * 16 + 2000 * 4 + 2 * 250 * 16 + 100 * 16 + 3 * 100 * 16
    said = meshwright("emulate", str(path), "--rank", "37", "--steps", "1", "-o", str(out))
    assert said.code == 0, said.err
    assert "dlrm-tiny: rank 37 of 64 alone on cpu" in said.out
    assert "Compute is left out" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    report = json.loads(out.read_text())
    assert report["memory"]["tables"] == 4 * rows
    assert report["step_seconds"] is None
    (tables,) = [one for one in mw.emulate(path, 37, steps=1).rows if one["quantity"] == "tables memory"]
    assert tables["emulated"] == 4 * rows
    assert abs(tables["predicted"] / (4 * rows) - 1) < 0.01


def test_sizes_alone_are_for_transformers(tmp_path, meshwright) -> None:
    path = tmp_path / "plan.yaml"
    words = ("local", "--gpus", "2", "--global-batch", "64", "--precision", "fp32")
    assert meshwright("estimate", "dlrm-tiny", *words, "--layout", "table:0-7=row", "-o", str(path)).code == 0
    refused = meshwright("emulate", str(path), "--fake")
    assert refused.code == 2
    assert "--fake does not go with a recommender" in refused.err
