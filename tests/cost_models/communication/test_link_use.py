"""How full links are, by hand: bytes of a step over what a link could carry in it."""

from __future__ import annotations

import pytest

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.operators.parameters import total_parameters
from cost_models.pipeline.pricing import LinkUse, estimate, link_use
from cost_models.specs.training import TrainingSpec

MODEL = catalog.load_model("gpt2-small")


def used(cluster: str, gpus: int, layout: str) -> tuple[dict[tuple[str, str], LinkUse], float]:
    """(level, axis) → its use, and seconds of a step."""
    training = TrainingSpec(global_batch=64, sequence_length=1024)
    question = complete_question(MODEL, resolve_cluster(cluster, gpus), training, stack="megatron-core")
    found = estimate(question, parse_layout(layout))
    return {(one.level.name, one.axis): one for one in link_use(question, found)}, found.step_seconds


def test_gradients_and_weights_go_round_every_level_by_hand() -> None:
    """dp16 with ZeRO-1: 15/16 of fp32 gradients and bf16 weights leave every GPU; an eighth of it is on an adapter."""
    use, step = used("dgx-h100", 16, "dp16 mbs4 zero1")
    out = 15 / 16 * (4 + 2) * total_parameters(MODEL)
    assert set(use) == {("node", "dp"), ("network", "dp")}
    assert use["node", "dp"].gpu_bytes == pytest.approx(out, rel=0.01)
    assert use["network", "dp"].gpu_bytes == pytest.approx(out / 8, rel=0.01)
    assert use["node", "dp"].share == pytest.approx(use["node", "dp"].gpu_bytes / 450e9 / step)


def test_stages_hand_on_activations_and_gradients_by_hand() -> None:
    """Three stages of a node each: from the middle one b·s·h in bf16 goes both ways for each of 64 / 8 microbatches."""
    use, _ = used("dgx-h100", 24, "pp3 dp8 mbs1")
    assert use["network", "pp"].gpu_bytes == pytest.approx(2 * 8 * 1024 * MODEL.hidden_size * 2)
    assert ("network", "dp") not in use
    assert ("node", "pp") not in use


def test_pairs_keep_tensor_parallel_ranks_off_pcie() -> None:
    use, _ = used("pcie-a40-pairs", 16, "tp2 pp2 dp4 mbs1")
    assert ("pair", "tp") in use
    assert ("box", "tp") not in use
    assert ("box", "dp") in use
    assert {level for level, axis in use if axis == "pp"} == {"network"}
