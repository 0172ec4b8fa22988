"""What the tests of the verbs share: questions that are answered quickly, and what a call gives back."""

from __future__ import annotations

from pathlib import Path

from calling import CommandLine

ASKED = ("gpt2-small", "dgx-a100-80gb", "--gpus", "8", "--global-batch", "64", "--sequence", "1024")
BIG = ("gpt3-175b", "dgx-a100-80gb", "--gpus", "1024", "--global-batch", "1536", "--sequence", "2048")
QUICK = ("--time-limit", "20")
SHOP = """\
kind: recommender
name: shop
dense_features: 4
bottom_mlp: [32, 16]
interaction: {kind: none}
top_mlp: [32, 1]
tables:
- {name: user, rows: 4000000, width: 64, pooling: 2.0}
- {name: item, rows: 1000000, width: 64, pooling: 8.0}
- {name: shelf, rows: 20000, width: 64, count: 2}
"""
"""A small recommender's file: four tables of three kinds."""


def sharded_shop(meshwright: CommandLine, folder: Path, layout: str, job: str, model: str = SHOP) -> Path:
    """File of a plan that shards the tables of a shop as asked, on GPUs and with a batch as `job` has them."""
    (folder / "shop.yaml").write_text(model)
    asked = ("dgx-h100", *job.split(), "--layout", layout, "-o", str(folder / "plan.yaml"))
    meshwright("estimate", str(folder / "shop.yaml"), *asked)
    return folder / "plan.yaml"
