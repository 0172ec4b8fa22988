"""`reshard`: what is said of two layouts of one model, and what is refused."""

from __future__ import annotations

import pytest

JOB = ("--gpus", "16", "--global-batch", "16", "--sequence", "1024", "--stack", "meshwright")


@pytest.fixture
def plan(tmp_path, meshwright) -> str:
    found = str(tmp_path / "a.yaml")
    assert (
        meshwright(
            "estimate", "gpt2-medium", "dgx-h100", *JOB, "--layout", "dp16 mbs1 zero3", "-o", found
        ).code
        == 0
    )
    return found


def test_a_layout_to_generate_with(plan: str, meshwright) -> None:
    found = meshwright.json("reshard", plan, "tp4 dp4 mbs1 zero0")
    moved = [rank["received_inside_bytes"] + rank["received_bytes"] for rank in found["ranks"]]
    assert found["extra_bytes"] == max(moved)
    assert found["seconds"]["total"] == max(found["seconds"]["network"], found["seconds"]["inside_node"])
    same, states = ("reshard", plan, "dp16 mbs1 zero1"), ("--states",)
    ranks = [meshwright.json(*same, *words)["ranks"] for words in (states, ())]
    for one, other in zip(
        *ranks, strict=True
    ):  # 2 bytes of weights, 12 of states, which lie where they are needed
        assert one["there_bytes"] == pytest.approx(7 * other["there_bytes"])
        assert one["received_bytes"] == pytest.approx(other["received_bytes"])


def test_what_is_not_one_model_is_refused(plan: str, tmp_path, meshwright) -> None:
    other, layout = str(tmp_path / "b.yaml"), ("--layout", "dp16 mbs1 zero3")
    assert meshwright("estimate", "gpt2-small", "dgx-h100", *JOB, *layout, "-o", other).code == 0
    assert "different models: gpt2-medium and gpt2-small" in meshwright.refusal("reshard", plan, other)
    assert meshwright("reshard", plan, "tp3 dp5").code == 2
    assert meshwright("estimate", "gpt2-medium", "dgx-a100-80gb", *JOB, *layout, "-o", other).code == 0
    assert "on different nodes" in meshwright("reshard", plan, other).err
