"""The search agrees with brute force where a CPU was measured: host time, copies and turns depend on the ZeRO stage."""

from __future__ import annotations

import numpy as np
import pytest
from brute import everything

from cost_models.defaults import complete_question
from cost_models.files.catalog import load_profile
from cost_models.files.loading import resolve_cluster
from cost_models.specs.hardware import CurvePoint, HardwareProfile, OperatorCurve
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from planner.search.search import search

MODEL = TransformerSpec.model_validate(
    {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "vocab_size": 256}
)


def measured(**changes: float) -> HardwareProfile:
    points = tuple(CurvePoint(size=size, seconds=1e-9 * size) for size in (1e3, 1e7))
    operators = tuple(OperatorCurve(operator=name, forward=points) for name in ("copy", "add"))
    return load_profile("datasheet-cpu").model_copy(
        update={"tier": "measured", "gpu": "cpu", "stack": "meshwright", "operators": operators}
        | {"measured_peak": 1e11, "measured_bandwidth": 2e10, "contention": 0.1}
        | changes
    )


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("sharded", [0.0, 3e-3])
def test_the_best_layout_of_a_measured_cpu_is_the_best_of_all(processes: int, sharded: float) -> None:
    cluster = resolve_cluster("local", processes).model_copy(update={"host_cores": 2})
    training = TrainingSpec(global_batch=4, sequence_length=64, precision="fp32")
    question = complete_question(MODEL, cluster, training, profile=measured(sharded_host_seconds=sharded))
    best = min(float(np.min(placed.seconds)) for placed in everything(question).placed)
    assert search(question).best.step_seconds == pytest.approx(best)
