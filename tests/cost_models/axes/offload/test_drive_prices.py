"""States on the drive: what lies there, what stays in host memory, and what a step waits for, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, Offload
from cost_models.axes.offload.channels import channel_seconds, exposed_seconds
from cost_models.axes.offload.residency import drive_buffer_bytes, drive_bytes, host_bytes
from cost_models.axes.words import EVERY
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.operators.parameters import total_parameters
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.cluster import DriveSpec
from cost_models.specs.training import TrainingSpec

GPUS, READ, WRITE = 16, 8e9, 4e9
STATES = Offload(states=EVERY, drive=EVERY)
STREAMED = Offload(streamed=EVERY, drive=EVERY)


def asked(stack: str = "deepspeed", precision: str = "fp16") -> Question:
    """Two DGX V100 with drives; hosts hold what they must and no more."""
    drive = DriveSpec.model_validate({"capacity": "10 TB", "read": "8 GB/s", "write": "4 GB/s"})
    cluster = catalog.load_cluster("dgx-v100").model_copy(update={"nodes": 2, "drive": drive})
    training = TrainingSpec.model_validate(
        {"global_batch": GPUS, "sequence_length": 1024, "precision": precision}
    )
    known = catalog.load_stack(stack).model_copy(update={"host_buffers": 1.0})
    return complete_question(catalog.load_model("gpt2-xl"), cluster, training, stack=known)


def columns_of(offload: Offload, zero: int = 3) -> LayoutColumns:
    return LayoutColumns.of([Layout(dp=GPUS, zero=zero, offload=offload)])


def of_blocks(question: Question) -> float:
    """Parameters that live as blocks do: under DeepSpeed all."""
    return float(total_parameters(question.model))


@pytest.mark.parametrize("offload", [STATES, STREAMED])
def test_deepspeed_has_states_and_fp32_gradients_there(offload: Offload) -> None:
    """fp32 weights (4), moments (8) and gradients (4) of a sixteenth each; a host has eight of these shares."""
    question, columns = asked(), columns_of(offload)
    whole = of_blocks(question)
    assert drive_bytes(question, columns)[0] == pytest.approx(16 * whole / 2, rel=2e-3)
    channels = channel_seconds(question, columns)
    assert channels.read[0] == pytest.approx(16 * whole / 2 / READ, rel=2e-3)
    assert channels.write[0] == pytest.approx(16 * whole / 2 / WRITE, rel=2e-3)


def test_what_lies_on_the_drive_is_not_in_memory() -> None:
    """But for four buffers of what a rank updates, which are smaller than a sub-group."""
    question = asked()
    here, there = columns_of(STATES._replace(drive=0)), columns_of(STATES)
    buffers = 8 * drive_buffer_bytes(question, there)[0]
    assert buffers == pytest.approx(8 * 4 * 4 * of_blocks(question) / GPUS, rel=2e-3)
    assert host_bytes(question, here)[0] - host_bytes(question, there)[0] == pytest.approx(
        drive_bytes(question, there)[0] - buffers
    )


@pytest.mark.parametrize(
    ("precision", "offload", "held", "read"),
    [
        ("fp16", STATES, 12, 16),  # updated weights are read once more on their way up
        ("fp16", STREAMED, 12, 16),
        ("fp32", STATES, 12, 16),
        ("fp32", STREAMED, 8, 8),  # weights that passes use are in memory
    ],
)
def test_our_executor_has_moments_and_masters_there(
    precision: str, offload: Offload, held: int, read: int
) -> None:
    question, columns = asked("meshwright", precision), columns_of(offload, zero=1)
    blocks = drive_bytes(question, columns)[0] / held
    channels = channel_seconds(question, columns)
    assert channels.read[0] * READ / blocks == pytest.approx(read)
    assert channels.write[0] * WRITE / blocks == pytest.approx(held)


def test_a_drive_beside_the_update_hides_it_or_comes_on_top() -> None:
    columns, passes = columns_of(STATES, zero=1), np.zeros(1)
    ours = asked("meshwright")
    channels = channel_seconds(ours, columns)
    drive = channels.read[0] + channels.write[0]
    assert drive > channels.update[0]
    assert exposed_seconds(ours, columns, passes)[0] == pytest.approx(drive)
    in_turn = ours.stack.drive.model_copy(update={"overlaps": False})
    apart = replace(ours, stack=ours.stack.model_copy(update={"drive": in_turn}))
    assert exposed_seconds(apart, columns, passes)[0] == pytest.approx(drive + channels.update[0])


def test_an_estimate_speaks_of_the_drive() -> None:
    found = estimate(asked(), Layout(dp=GPUS, zero=3, offload=STATES))
    assert found.drive_limit == pytest.approx(9e12)
    assert 0 < found.drive_bytes < found.drive_limit
    assert found.verdict == "fits"
    full = replace(found, drive_limit=0.5 * found.drive_bytes)
    assert full.verdict == "does not fit: drive"
    assert not full.fits
