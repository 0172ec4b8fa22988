"""`reshard`: what is said of two layouts of one model, and what is refused."""

from __future__ import annotations

import pytest

ASKED = (
    "gpt2-medium",
    "dgx-h100",
    "--gpus",
    "16",
    "--global-batch",
    "16",
    "--sequence",
    "1024",
    "--stack",
    "meshwright",
)


@pytest.fixture
def plan(tmp_path, meshwright) -> str:
    found = str(tmp_path / "a.yaml")
    assert meshwright("estimate", *ASKED, "--layout", "dp16 mbs1 zero3", "-o", found).code == 0
    return found


def test_a_layout_to_generate_with(plan, meshwright) -> None:
    answer = meshwright("reshard", plan, "tp4 dp4 mbs1 zero0")
    assert answer.code == 0
    said = " ".join(answer.out.split())
    assert "weights of gpt2-medium on 16 x h100-sxm" in said
    assert "more on a GPU while both layouts are there" in said
    found = meshwright.json("reshard", plan, "tp4 dp4 mbs1 zero0")
    moved = [rank["received_inside_bytes"] + rank["received_bytes"] for rank in found["ranks"]]
    assert found["extra_bytes"] == max(moved)
    assert found["seconds"]["total"] == max(found["seconds"]["network"], found["seconds"]["inside_node"])
    with_states = meshwright.json("reshard", plan, "dp16 mbs1 zero1", "--states")
    without = meshwright.json("reshard", plan, "dp16 mbs1 zero1")
    for one, other in zip(with_states["ranks"], without["ranks"], strict=True):
        assert one["there_bytes"] == pytest.approx(
            7 * other["there_bytes"]
        )  # 2 bytes of weights, 12 of states
        assert one["received_bytes"] == pytest.approx(
            other["received_bytes"]
        )  # states lie where they are needed


def test_what_is_not_one_model_is_refused(plan, tmp_path, meshwright) -> None:
    other = str(tmp_path / "b.yaml")
    asked = ("estimate", "gpt2-small", *ASKED[1:], "--layout", "dp16 mbs1 zero3", "-o", other)
    assert meshwright(*asked).code == 0
    assert "different models: gpt2-medium and gpt2-small" in meshwright.refusal("reshard", plan, other)
    assert meshwright("reshard", plan, "tp3 dp5").code == 2
    elsewhere = (
        "estimate",
        "gpt2-medium",
        "dgx-a100-80gb",
        *ASKED[2:],
        "--layout",
        "dp16 mbs1 zero3",
        "-o",
        other,
    )
    assert meshwright(*elsewhere).code == 0
    assert "on different nodes" in meshwright("reshard", plan, other).err
