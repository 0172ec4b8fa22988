"""Tensor-parallel communication that recomputation repeats."""

from __future__ import annotations

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.by_axis import TensorSeconds, tensor_seconds
from cost_models.communication.topology import axis_groups
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec


def seconds(stack: str, *, sp: bool, precision: Precision = "bf16", sequence: int = 4096) -> TensorSeconds:
    """Of tp8 on one node."""
    cluster = catalog.load_cluster("dgx-h100").model_copy(update={"nodes": 1})
    training = TrainingSpec(global_batch=8, sequence_length=sequence, precision=precision)
    question = complete_question(catalog.load_model("llama3-8b"), cluster, training, stack=stack)
    columns = LayoutColumns.of([Layout(tp=8, sp=sp, layers=(32,))])
    return tensor_seconds(question, columns, axis_groups(cluster, columns).tp)


def repeated(found: TensorSeconds) -> dict[str, float]:
    """Share of the forward pass that each policy repeats."""
    shares = found.block_recomputed[0] / found.block_forward[0]
    return dict(zip(RECOMPUTE_POLICIES, np.round(shares, 6).tolist(), strict=True))


def test_recompute_repeats_what_the_forward_pass_sent() -> None:
    """Two gathers and two scatters of as many bytes: Megatron repeats all, torchtitan's per-operator policy the
    gathers; recomputation that stops early does without the last scatter, or the second of two all-reduces."""
    assert repeated(seconds("megatron-core", sp=True)) == {"none": 0, "selective": 0, "full": 1}
    assert repeated(seconds("torchtitan", sp=True)) == {"none": 0, "selective": 0.5, "full": 0.75}
    assert repeated(seconds("torchtitan", sp=False)) == {"none": 0, "selective": 0, "full": 0.5}


def test_gradients_scattered_behind_products_count_apart() -> None:
    """Today's nanotron scatters the gradients of its two gathered inputs, and gathers these again, behind products;
    until July 2024 it kept them gathered and scattered in sight."""
    now, then = seconds("nanotron", sp=True), seconds("nanotron-v0.5", sp=True)
    assert now.block_summed == then.block_backward - now.block_backward > 0
    assert (then.block_summed, then.block_regather) == (0, 0)
    assert now.block_regather > 0


def test_what_is_cast_is_gathered_as_it_was_cast() -> None:
    """Transformer Engine casts to fp8 before it gathers, forward and backward: one byte in place of two, where sums are
    scattered in two; torchtitan's default gathers, and everybody's head, stay in 16 bits."""
    wide, narrow = (seconds("megatron-lm", sp=True, precision=one, sequence=2**20) for one in ("bf16", "fp8"))
    np.testing.assert_allclose(narrow.block_forward, 3 / 4 * wide.block_forward, rtol=0.01)
    back, wide_back = (one.block_backward + one.block_summed for one in (narrow, wide))
    np.testing.assert_allclose(back, 3 / 4 * wide_back, rtol=0.01)
    np.testing.assert_allclose(narrow.block_regather, 1 / 2 * wide.block_regather, rtol=0.01)
    assert narrow.head_forward == wide.head_forward
    own, ours = (seconds("torchtitan", sp=True, precision=one) for one in ("bf16", "fp8"))
    assert own.block_forward == ours.block_forward
    assert (
        seconds("megatron-lm", sp=False, precision="fp8").block_forward
        == seconds("megatron-lm", sp=False).block_forward
    )
