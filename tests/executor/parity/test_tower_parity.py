"""A vision tower before a decoder trains as one process does, whatever splits it; what is frozen stays bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
from effort import first_of
from processes import Processes
from training import GPT, LLAMA, NOTICEABLE, Trained, plan_for, stray, train_weights

TOLERANCE, WAY_TOLERANCE = 1e-5, 1e-3
CLIP: dict[str, Any] = {
    "layers": 2,
    "hidden_size": 24,
    "num_heads": 2,
    "activation": "quick-gelu",
    "image": 8,
    "patch": 4,
    "class_token": True,
    "patch_bias": False,
    "norm_before": True,
    "projector_hidden_size": 32,
}
LLAVA = LLAMA | {"num_layers": 4, "tower": CLIP}
MERGED = GPT | {
    "num_layers": 4,
    "tower": CLIP
    | {"class_token": False, "merge": 2, "image": 16, "norm_after": True, "projector_hidden_size": 0},
}
TWO_IMAGES = {"images": 2}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("tp2 pp2 sp mbs2", LLAVA, TWO_IMAGES),
    ("pp4 mbs1 recompute=full", LLAVA, TWO_IMAGES | {"freeze": ("tower",)}),
    ("tp2 dp2 mbs2 zero3 recompute=selective", MERGED, {}),
    ("pp2 dp2 mbs2 zero1", MERGED, {"freeze": ("tower", "language")}),
    ("pp2 dp2 mbs2 zero2", LLAVA, {"freeze": ("tower", "projector", "embedding")}),
    ("pp2 vpp2 mbs2", LLAVA, TWO_IMAGES),
    ("pp4 mbs1", MERGED, {}),
    ("tp2 sp dp2 mbs2 zero1", MERGED, {"freeze": ("embedding",)}),
    ("pp2 mbs2 schedule=zbv vpp2", LLAVA, {}),
]


@pytest.mark.parametrize(
    ("layout", "model", "job"), first_of(5, CASES), ids=[one[0] for one in first_of(5, CASES)]
)
def test_same_curve_as_one_process(
    layout: str, model: dict[str, Any], job: dict[str, Any], processes: Processes
) -> None:
    """Loss and gradient norm of every step, on every rank, and the way that every parameter went."""
    expected, way = processes.run(1, train_weights, plan_for("mbs8", model, **job), 4, True)[0]
    plan = plan_for(layout, model, **job)
    for curve, own in processes.run(plan.num_ranks, train_weights, plan, 4, True):
        for got, wanted in zip(curve, expected, strict=True):
            assert got == pytest.approx(wanted, rel=TOLERANCE)
        assert stray(own, way) < (WAY_TOLERANCE, "")


@pytest.fixture(scope="module")
def alone(processes: Processes) -> Trained:
    return processes.run(1, train_weights, plan_for("mbs8", LLAVA, **TWO_IMAGES), 4, True)[0]


def test_every_part_learns(alone: Trained) -> None:
    curve, way = alone
    assert curve[-1][0] < curve[0][0] - 0.03
    moved = {name for name, gone in way.items() if abs(gone).max() > NOTICEABLE}
    hardly = ("attention.query", "attention.key")  # scores of a tower so small hardly matter
    assert [name for name in set(way) - moved if not name.rpartition(".")[0].endswith(hardly)] == []
