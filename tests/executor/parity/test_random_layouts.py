"""Layouts that nobody picked train as one process does; `benchmarks/parity` does it on eight processes, for longer."""

from __future__ import annotations

from functools import cache

import pytest
from drawing import JOB, OFFLOADS, SHAPES, completed, legal_layouts
from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import Processes
from training import Trained, plan_for, stray, train_weights

RANKS, STEPS = 4, 2
TOLERANCE, WAY_TOLERANCE = 1e-5, 1e-3


@cache
def _expected(processes: Processes, shape: str) -> Trained:
    trained: Trained = processes.run(1, train_weights, plan_for("mbs8", SHAPES[shape], **JOB), STEPS, True)[0]
    return trained


@settings(
    max_examples=number(2, 8),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_drawn_layout_trains_as_one_process_does(processes, data: st.DataObject) -> None:
    """Loss and gradient norm of every step, on every rank, and the way that every parameter went."""
    shape = data.draw(st.sampled_from(sorted(SHAPES)))
    space = legal_layouts(shape, RANKS)
    row = data.draw(st.integers(0, len(space) - 1))
    layout = completed(
        space.layout(row), shape, lambda options: data.draw(st.sampled_from(options)), OFFLOADS
    )
    plan = plan_for(str(layout), SHAPES[shape], **JOB)
    expected, way = _expected(processes, shape)
    for curve, own in processes.run(RANKS, train_weights, plan, STEPS, True):
        for got, wanted in zip(curve, expected, strict=True):
            assert got == pytest.approx(wanted, rel=TOLERANCE), str(layout)
        assert stray(own, way) < (WAY_TOLERANCE, ""), str(layout)
