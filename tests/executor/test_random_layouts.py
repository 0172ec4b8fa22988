"""Layouts that nobody picked train as one process does; `benchmarks/parity` does it on eight processes, for longer."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from drawing import JOB, SHAPES, completed, legal_layouts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import Processes
from training import plan_for, train

from cost_models.specs.layout import CONTEXTS, SCHEDULES

RANKS, STEPS = 4, 2
TOLERANCE = 1e-5


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
def _expected(processes: Processes, shape: str) -> list[tuple[float, float]]:
    curve: list[tuple[float, float]] = processes.run(
        1, train, plan_for("mbs8", SHAPES[shape], **JOB), STEPS, True
    )[0]
    return curve


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_drawn_layout_trains_as_one_process_does(processes: Processes, data: st.DataObject) -> None:
    """Loss and gradient norm of every step, on every rank."""
    shape = data.draw(st.sampled_from(sorted(SHAPES)))
    space = legal_layouts(shape, RANKS)
    row = data.draw(st.integers(0, len(space) - 1))
    layout = completed(space.layout(row), shape, lambda options: data.draw(st.sampled_from(options)))
    plan = plan_for(str(layout), SHAPES[shape], **JOB)
    for curve in processes.run(RANKS, train, plan, STEPS, True):
        for got, wanted in zip(curve, _expected(processes, shape), strict=True):
            assert got == pytest.approx(wanted, rel=TOLERANCE), str(layout)
