"""The demo: its last layout can run wherever it does, and it ends on errors beside noise."""

from __future__ import annotations

import pytest
from test_refining import report_of

from cost_models.axes.layout import parse_layout
from executor.measure.report import save_report
from meshwright.demo import another_layout, errors_of


@pytest.mark.parametrize("processes", [1, 2, 4, 8, 16])
def test_the_layout_that_never_ran_takes_every_process(processes) -> None:
    layout = parse_layout(another_layout(processes))
    assert layout.num_gpus == processes
    assert 16 % (layout.dp * layout.mbs) == 0


def test_it_ends_on_errors_beside_the_noise(tmp_path) -> None:
    report = tmp_path / "run-report.json"
    save_report(report_of("dp2 mbs2", slower=1.25), report)
    step, thread = errors_of(report).split(", ")
    assert step.startswith("step -1")
    assert step.endswith(" % (noise 1.0 %)")
    assert thread == "thread cpu -20.0 % (noise 0.0 %)"
