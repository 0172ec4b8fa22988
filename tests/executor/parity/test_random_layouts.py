"""Layouts that nobody picked train as one process does; `benchmarks/parity` does it on eight processes, for longer."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from drawing import JOB, OFFLOADS, SHAPES, completed, legal_layouts
from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import Processes
from training import Trained, plan_for, stray, train_weights

from cost_models.specs.choices import CONTEXTS, SCHEDULES

RANKS, STEPS = 4, 2
TOLERANCE, WAY_TOLERANCE = 1e-5, 1e-3


def test_layouts_are_drawn_from_every_axis() -> None:
    """What is legal for some model has every value of every switch."""
    spaces = [legal_layouts(shape, 8) for shape in SHAPES]

    def values(axis: str) -> set[int]:
        return set(np.concatenate([getattr(space, axis) for space in spaces]).tolist())

    assert values("tp") == values("cp") == values("dp") == values("pp") == {1, 2, 4, 8}
    assert values("zero") == {0, 1, 2, 3}
    assert values("schedule") == set(range(len(SCHEDULES)))
    assert set(range(len(CONTEXTS))) - values("context") <= {0}  # the usual way needs no name
    assert values("sp") == {0, 1}
    assert len(values("order")) == 6
    assert any((space.shard < space.replicas).any() for space in spaces)


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
