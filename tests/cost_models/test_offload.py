"""States in host memory: what leaves the device, and what the CPU's step costs."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.host_update import host_update_seconds
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.memory.host import host_bytes
from cost_models.memory.states import state_bytes
from cost_models.operators.parameters import parameters, total_parameters
from cost_models.pipeline.estimating import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

GPUS, BATCH = 16, 64


def asked(offloads: str, gpus: int = GPUS) -> Question:
    stack = catalog.load_stack("deepspeed").model_copy(update={"offloads": offloads})
    box = {"nodes": -(-gpus // 8), "gpus_per_node": min(8, gpus)}
    cluster = catalog.load_cluster("dgx-v100").model_copy(update=box)
    training = TrainingSpec(global_batch=BATCH, sequence_length=1024, precision="fp16")
    return complete_question(catalog.load_model("gpt2-xl"), cluster, training, stack=stack)


def test_what_stays_on_the_device_by_hand() -> None:
    """16-bit weights (2) and gradients (2), master weights and moments (12), 16 ranks; ZeRO-1, 2 and 3."""
    columns = LayoutColumns.of([Layout(dp=GPUS, zero=zero, layers=(48,)) for zero in (1, 2, 3)])
    wanted = {
        "none": (2 + 2 + 12 / 16, 2 + 2 / 16 + 12 / 16, 16 / 16),
        "optimizer": (2 + 2, 2, 2 / 16),
        "parameters": (2 + 2, 2, 0),
    }
    for offloads, each in wanted.items():
        assert state_bytes(asked(offloads), columns).total == pytest.approx(each)


def test_a_step_on_the_cpu_by_hand() -> None:
    """ZeRO-Offload, table 4: CPU Adam takes 2.57 s for 10 B parameters; 16 GB/s of PCIe 3.0 for 2 bytes each way."""
    columns = LayoutColumns.of([Layout(dp=1, layers=(48,))])
    seconds = host_update_seconds(asked("optimizer", gpus=1), columns, experts=False)
    assert 10e9 * seconds == pytest.approx(2.57 + 10e9 * 4 / 16e9)


def test_weights_come_up_for_every_pass() -> None:
    layout = Layout(dp=GPUS, zero=3, layers=(48,))
    columns = LayoutColumns.of([layout])
    more = host_update_seconds(asked("parameters"), columns, experts=False)
    less = host_update_seconds(asked("optimizer"), columns, experts=False)
    passes = 2 * layout.microbatches(BATCH)
    assert more - less == pytest.approx(np.asarray([(passes - 1) * 2 / 16e9 / GPUS]))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_offloading_takes_longer_and_needs_less(zero: int) -> None:
    layout = Layout(dp=GPUS, zero=zero, layers=(48,))
    priced = [estimate(asked(what), layout) for what in ("none", "optimizer", "parameters")]
    peaks = [one.peak_bytes for one in priced]
    seconds = [one.step_seconds for one in priced]
    assert peaks == sorted(peaks, reverse=True)
    assert seconds == sorted(seconds)
    assert peaks[0] > peaks[1]
    assert seconds[0] < seconds[1]


def test_what_a_host_holds_by_hand() -> None:
    """48 blocks, an embedding and a norm at 12 bytes of optimizer states a parameter, on 8 of 16 ranks."""
    columns = LayoutColumns.of([Layout(dp=GPUS, zero=zero, layers=(48,)) for zero in (0, 1, 2, 3)])
    counts = parameters(asked("none").model, columns.tp)
    rank = (48 * counts.block + counts.embedding + counts.head_vectors)[0]
    wanted = [8 * rank * each for each in (12, 12 / 16, 14 / 16, 14 / 16)]
    assert host_bytes(asked("optimizer"), columns) == pytest.approx(wanted)
    assert host_bytes(asked("parameters"), columns)[3] == pytest.approx(8 * rank)
    assert not host_bytes(asked("none"), columns).any()


def test_a_host_holds_no_less_than_its_share_of_the_model() -> None:
    """Whatever the pipeline, the hosts together hold the optimizer states of every parameter once at least."""
    columns = LayoutColumns.of([Layout(pp=pp, dp=GPUS // pp, zero=1) for pp in (1, 2, 4, 8, 16)])
    whole = 12.0 * total_parameters(asked("none").model)
    assert (2 * host_bytes(asked("optimizer"), columns) >= whole).all()
