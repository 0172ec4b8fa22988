"""What a parameter takes under ZeRO-2 and 3, by hand: shards that are the parameters, and copies beside the weights."""

from __future__ import annotations

import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import states_on_device
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.memory.states import StateBytes, state_bytes
from cost_models.operators.parameters import total_parameters
from cost_models.specs.training import Precision, TrainingSpec

D = 16
OPTIMIZER = 8 / D
MASTER = 4 / D


def states(
    stack: str,
    precision: Precision,
    *,
    residency: str = "resident",
    stages: tuple[int, ...] = (2, 3),
    ranks: int = D,
) -> StateBytes:
    """Of ZeRO-2 and of ZeRO-3, over 16 ranks, unless said otherwise."""
    chosen = catalog.load_stack(stack)
    cluster = catalog.load_cluster("dgx-h100").model_copy(update={"nodes": 2})
    training = TrainingSpec(global_batch=64, sequence_length=1024, precision=precision)
    columns = LayoutColumns.of([Layout(dp=ranks, zero=zero, layers=(48,)) for zero in stages])
    question = complete_question(catalog.load_model("gpt2-xl"), cluster, training, stack=chosen)
    return states_on_device(question, columns, residency)


@pytest.mark.parametrize(
    ("stack", "precision", "weights", "optimizer"),
    [
        ("meshwright", "bf16", (2 + 4 / D, 4 / D), OPTIMIZER),
        ("meshwright", "fp32", (4 + 4 / D, 4 / D), OPTIMIZER),
        ("torchtitan", "bf16", (2 + 4 / D, 4 / D), OPTIMIZER),
        ("fsdp", "bf16", (2 + 4 / D, 4 / D), OPTIMIZER),
        ("deepspeed", "bf16", (2, 2 / D), MASTER + OPTIMIZER),
        ("deepspeed", "fp32", (4, 4 / D), OPTIMIZER),
    ],
)
def test_weights_and_optimizer_states(
    stack: str, precision: Precision, weights: tuple[float, float], optimizer: float
) -> None:
    held = states(stack, precision)
    assert held.weights == pytest.approx(weights)
    assert held.optimizer == pytest.approx([optimizer, optimizer])


def test_weights_of_a_job_that_keeps_16_bits_alone() -> None:
    training = TrainingSpec(global_batch=64, sequence_length=1024, state_dtype="bf16")
    cluster = catalog.load_cluster("dgx-h100").model_copy(update={"nodes": 2})
    columns = LayoutColumns.of([Layout(dp=D, zero=zero, layers=(48,)) for zero in (0, 3)])
    stack = catalog.load_stack("torchtune")
    question = complete_question(catalog.load_model("gpt2-xl"), cluster, training, stack=stack)
    found = states_on_device(question, columns, "resident")
    assert tuple(found.weights) == (2, 2 / D)
    assert tuple(found.gradients) == (2, 2 / D)
    assert tuple(found.optimizer) == (2 + 2, (2 + 2) / D)


@pytest.mark.parametrize(("stack", "bytes_written"), [("meshwright", 4), ("fsdp", 4), ("deepspeed", 2)])
def test_weights_that_a_step_writes(stack: str, bytes_written: float) -> None:
    """Shards in fp32 where they are the parameters, else 16-bit weights after their master copy."""
    assert states(stack, "bf16").updated == pytest.approx(bytes_written / D)


def test_gradients_are_sharded_where_each_microbatch_scatters_them() -> None:
    """DeepSpeed's of ZeRO-2 and 3 are; our own wait whole for the step's last microbatch."""
    each = states("deepspeed", "bf16", stages=(0, 1, 2, 3)).gradients
    assert each == pytest.approx(each[0] / [1, 1, D, D])
    assert states("meshwright", "bf16").gradients == pytest.approx((4, 4))


def test_shards_in_host_memory_are_not_on_the_device() -> None:
    """Weights stay where the CPU updates moments alone; streamed ones come up block by block."""
    assert states("meshwright", "bf16", residency="states").weights == pytest.approx((2 + 4 / D, 4 / D))
    streamed = states("meshwright", "bf16", residency="streamed")
    assert not (streamed.weights + streamed.optimizer + streamed.reduced).any()
    assert streamed.gradients == pytest.approx((4.0, 4.0))  # whole until the last of several microbatches


def test_zero_3_of_deepspeed_updates_so_many_parameters_at_a_time() -> None:
    """Of 3.4 billion on each of two ranks one billion is updated at a time, ZeRO-2's whole; a small one at once."""
    cluster = catalog.load_cluster("dgx-h100")
    training = TrainingSpec(global_batch=64, sequence_length=1024)
    stack = catalog.load_stack("deepspeed")
    question = complete_question(catalog.load_model("llama2-7b"), cluster, training, stack=stack)
    parameters = total_parameters(question.model)
    for ranks in (2, 8):
        columns = LayoutColumns.of([Layout(dp=ranks, zero=zero, layers=(32,)) for zero in (2, 3)])
        shard = parameters / ranks
        held = state_bytes(question, columns).update * parameters
        assert held == pytest.approx([6 * shard, 6 * min(shard, 1e9)])
