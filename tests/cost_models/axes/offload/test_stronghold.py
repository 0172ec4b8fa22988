"""STRONGHOLD's artifact (strongh2/sc22-ae, logs of July 2022): one V100 with 12 cores and 90 GB, fp32, blocks of 2048.

Seconds of a block come from Megatron's log, of the CPU's update from ZeRO-Offload's; what passes hide is one constant.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, Offload
from cost_models.axes.offload.channels import exposed_seconds
from cost_models.axes.offload.residency import host_bytes
from cost_models.axes.words import EVERY
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.memory.device import usable_host_memory
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

BLOCK_SECONDS = (5.3400 - 0.0966) / 32
"""An iteration of Megatron's 32 blocks without its optimizer step: four passes of each, of which one is recomputed."""
UPDATE_SECONDS = 2.93e-9
"""A parameter in DeepSpeed's CPU Adam there: 5.02 s of 1.717 B, 7.38 s of 2.522 B."""
RUNS = {
    (100, 4): 25.4182, (16, 15): 2.6915, (24, 15): 4.1383, (32, 10): 6.7274, (32, 12): 6.4793, (32, 14): 6.3903,
    (32, 15): 5.9774, (32, 2): 7.935, (32, 4): 7.7207, (32, 6): 7.1949, (32, 8): 7.216, (40, 15): 7.9271,
    (48, 15): 10.0868, (56, 15): 11.8115, (64, 15): 14.1563, (78, 15): 17.6465, (92, 15): 21.0042,
}  # fmt: skip
"""(blocks, window) -> seconds of an iteration."""


@cache
def asked(blocks: int, stack: str = "stronghold") -> Question:
    shape = {"name": f"{blocks} blocks", "hidden_size": 2048, "num_heads": 16, "ffn_hidden_size": 8192}
    model = TransformerSpec.model_validate(
        shape | {"num_layers": blocks, "vocab_size": 50304, "max_positions": 1024, "positions": "learned"}
    )
    cluster = catalog.load_cluster("dgx-v100").model_copy(
        update={"nodes": 1, "gpus_per_node": 1, "host_memory": 90e9, "host_cores": 12}
    )
    training = TrainingSpec(global_batch=4, sequence_length=1024, precision="fp32", recompute=("full",))
    question = complete_question(model, cluster, training, stack=catalog.load_stack(stack))
    slow = question.hardware.model_copy(update={"host_update_seconds": UPDATE_SECONDS})
    return replace(question, hardware=slow)


def seconds(layout: Layout, blocks: int, stack: str = "stronghold") -> float:
    passes = np.array([0.75 * blocks * BLOCK_SECONDS])
    shown = exposed_seconds(asked(blocks, stack), LayoutColumns.of([layout]), passes)
    return float(blocks * BLOCK_SECONDS + shown[0])


def windowed(blocks: int, window: int) -> Layout:
    offload = Offload(streamed=blocks - window)
    return Layout(mbs=4, offload=offload, ring=window, layers=(blocks,), recompute=("full",))


def test_steps_of_every_window_and_depth() -> None:
    errors = [seconds(windowed(*run), run[0]) / measured - 1 for run, measured in RUNS.items()]
    assert np.abs(errors).max() < 0.055
    assert np.median(np.abs(errors)) < 0.02


@pytest.mark.parametrize(("blocks", "measured"), [(32, 10.7405), (48, 15.84)])
def test_steps_of_zero_offload(blocks: int, measured: float) -> None:
    layout = Layout(mbs=4, offload=Offload(states=EVERY), layers=(blocks,))
    assert seconds(layout, blocks, "deepspeed") == pytest.approx(measured, rel=0.06)


def test_a_window_is_faster_than_zero_offload_by_as_much_as_published() -> None:
    offloaded = seconds(Layout(mbs=4, offload=Offload(states=EVERY)), 32, "deepspeed")
    assert offloaded / seconds(windowed(32, 15), 32) == pytest.approx(1.8, abs=0.1)


def fits(blocks: int, layout: Layout, stack: str) -> bool:
    question = asked(blocks, stack)
    held = host_bytes(question, LayoutColumns.of([layout]))[0]
    return held <= usable_host_memory(question.cluster) and estimate(question, layout).fits


def most_blocks(layout_of: object, stack: str) -> int:
    assert callable(layout_of)
    return max((n for n in range(8, 140, 2) if fits(n, layout_of(n), stack)), default=0)


def test_the_largest_models_in_the_published_order() -> None:
    """Megatron 32 blocks (1.7 B), ZeRO-Offload 48 (2.5 B), STRONGHOLD 100 (5.1 B)."""

    def whole(n: int) -> Layout:
        return Layout(mbs=4, layers=(n,), recompute=("full",))

    def offloaded(n: int) -> Layout:
        return whole(n).model_copy(update={"offload": Offload(states=EVERY)})

    found = [
        most_blocks(whole, "megatron-2021"),
        most_blocks(offloaded, "deepspeed"),
        most_blocks(lambda n: windowed(n, 4), "stronghold"),
    ]
    assert found[0] < found[1] < found[2]
    assert found[0] == pytest.approx(32, abs=2)
    assert found[2] == pytest.approx(100, abs=5)
