"""What is measured of a host becomes the constants that offload is priced with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.axes.offload.channels import channel_seconds, exposed_seconds
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.measured.calibration.microbenchmarks import Measurement, host_constants
from cost_models.operators.parameters import parameters
from cost_models.question import Question
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import TrainingSpec

RANKS = 2


def row(name: str, of: int, size: float, seconds: float) -> Measurement:
    return Measurement(
        kind="offload", name=name, shape=(of,), size=size, seconds=seconds, quiet_seconds=seconds
    )


ROWS = [
    row("update", 1, 1e6, 2e-3),
    row("update", 4, 1e6, 6e-4),
    row("call", 1, 16, 4e-4),
    *(
        row(way, ranks, 1e6, 1e-4 * ranks * times)
        for ranks in (1, 2)
        for way, times in (("down", 1), ("up", 1), ("both", 2))
    ),
    row("passes", 4, 8, 0.10),
    row("updates", 4, 8, 0.20),
    row("together", 4, 8, 0.25),
]
"""Two ranks that share a bus; half of the passes hide as much of the updates."""


def profile(base: str, *, is_cpu: bool) -> HardwareProfile:
    return catalog.load_profile(base).model_copy(update=host_constants(ROWS, ranks=RANKS, is_cpu=is_cpu))


def asked(layout: str, hardware: HardwareProfile, cluster: str = "local") -> tuple[Question, LayoutColumns]:
    parsed = parse_layout(layout)
    model = catalog.load_model("gpt2-tiny")
    training = TrainingSpec(global_batch=8, sequence_length=256, precision="fp32")
    question = complete_question(model, resolve_cluster(cluster, parsed.num_gpus), training)
    question = replace(question, hardware=hardware, stack=catalog.load_stack("meshwright"))
    return question, LayoutColumns.of([parsed])


def test_a_gpus_host_is_shared_and_a_cpu_is_its_own() -> None:
    """0.6 ns with four threads a rank, two ranks at once; 2 ns with the one thread that a CPU has for it."""
    gpu, cpu = profile("datasheet-gpu", is_cpu=False), profile("datasheet-cpu", is_cpu=True)
    assert gpu.host_update_seconds == pytest.approx(3e-10)
    assert cpu.host_update_seconds == pytest.approx(2e-9)
    assert gpu.host_call_seconds == cpu.host_call_seconds == pytest.approx(4e-4)
    assert gpu.host_overlap == cpu.host_overlap == pytest.approx(0.5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_are_cpus_update_apart_and_copy_as_measured(ranks: int) -> None:
    question, columns = asked(f"dp{ranks} mbs4 offload=streamed", profile("datasheet-cpu", is_cpu=True))
    blocks = question.model.num_layers * parameters(question.model, columns.tp).block[0]
    seconds = channel_seconds(question, columns)
    micro = 8 // ranks // 4
    added = (micro - 1) * 12 / 28
    calls = question.model.num_layers * 4e-4  # one for each block
    norms = 4 / 28  # of gradients, in the bytes of an update
    assert seconds.update[0] == pytest.approx((1 + norms + added) * blocks * 2e-9 + calls, rel=1e-6)
    assert seconds.down[0] == pytest.approx(micro * 4 * blocks / (1e10 / ranks), rel=1e-6)


def test_a_cpu_waits_for_its_own_copies() -> None:
    question, columns = asked("dp1 mbs4 offload=streamed", profile("datasheet-cpu", is_cpu=True))
    seconds = channel_seconds(question, columns)
    copies = seconds.copies
    assert exposed_seconds(question, columns, np.array([1e9])) == pytest.approx(copies)
    assert exposed_seconds(question, columns, np.zeros(1)) == pytest.approx(copies + seconds.update)


def test_nothing_measured_of_a_host_leaves_it_as_it_was() -> None:
    assert host_constants([], ranks=1, is_cpu=True) == {}
