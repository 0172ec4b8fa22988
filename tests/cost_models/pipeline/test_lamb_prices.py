"""LAMB costs Adam's memory, bytes for its norms, and an all-reduce of them over the ranks that have slices."""

from __future__ import annotations

import pytest

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import OptimizerName, TrainingSpec


def priced(
    layout: str, optimizer: OptimizerName, stack: str = "megatron-core", **switches: object
) -> Estimate:
    job = TrainingSpec(global_batch=64, sequence_length=1024, optimizer=optimizer)
    cluster = catalog.load_cluster("dgx-h100").model_copy(update={"nodes": 1})
    own = catalog.load_stack(stack).model_copy(update=switches)
    return estimate(
        complete_question(catalog.load_model("gpt2-xl"), cluster, job, stack=own), parse_layout(layout)
    )


@pytest.mark.parametrize("layout", ["dp8 mbs1 zero1", "tp2 pp2 dp2 mbs1 zero0", "dp8 mbs1 zero1 shard4"])
def test_lamb_takes_the_memory_of_adam_and_more_time(layout: str) -> None:
    adam, lamb = priced(layout, "adamw", "meshwright"), priced(layout, "lamb", "meshwright")
    assert lamb.peak_bytes == adam.peak_bytes
    assert lamb.time["optimizer"] > 2 * adam.time["optimizer"]


def test_the_update_moves_what_the_stack_says() -> None:
    """20 bytes of 2 x 4 (gradients) + 2 x 12 (states) + 2 x 2 (16-bit weights), beside its launch."""

    def update(optimizer: OptimizerName, moved: float) -> float:
        return priced("dp8 mbs1 zero0", optimizer, lamb_update_bytes=moved).time["optimizer"]

    adam, none, fused = update("adamw", 20.0), update("lamb", 0.0), update("lamb", 20.0)
    assert none == adam
    assert fused / adam == pytest.approx(1 + 20 / 36, rel=0.1)


def test_norms_are_added_up_where_parameters_are_split() -> None:
    def communication(layout: str, optimizer: OptimizerName) -> float:
        time = priced(layout, optimizer).time
        return time.get("dp_comm", 0.0) + time.get("tp_comm", 0.0)

    for layout, split in (
        ("dp8 mbs1 zero0", False),
        ("pp8 mbs1 zero0", False),
        ("dp8 mbs1 zero1", True),
        ("tp8 mbs1 zero0", True),
    ):
        more = communication(layout, "lamb") - communication(layout, "adamw")
        assert (0 < more < 1e-3) is split
