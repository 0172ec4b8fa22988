"""Every result that a user keeps is written whole: on a full disk the old one stays."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.catalog import save_spec
from executor.emulate.one_rank import EmulationReport
from executor.faults.stopping import write_stopped
from executor.measure.parts import save_trace
from executor.measure.report import RunReport, save_report
from executor.run_config import STOPPED
from meshwright.plots.style import save
from meshwright.terminal.output import Output
from planner.plan import Plan, save_plan

OLD = "the old one\n"
LIMIT_BYTES = 8

RESULTS: dict[str, Callable[[Path], object]] = {
    "plan.yaml": lambda path: save_plan(Plan.model_construct(certificate=None), path),
    "profile.yaml": lambda path: save_spec(catalog.load_profile("datasheet-gpu"), path),
    "run-report.json": lambda path: save_report(RunReport.model_construct(), path),
    "emulation.json": lambda path: save_report(EmulationReport.model_construct(), path),
    "trace.json": lambda path: save_trace({"traceEvents": []}, path),
    STOPPED: lambda path: write_stopped(path.parent, 12, 10),
    "rows.csv": lambda path: Output(csv=path).answer({}, [{"label": "a", "seconds": 1.0}]),
    "picture.png": lambda path: save(Figure(), path),
    "picture.svg": lambda path: save(Figure(), path),
    "picture.pdf": lambda path: save(Figure(), path),
}


@contextmanager
def full_disk() -> Iterator[None]:
    """This process can write no file of more than some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", RESULTS)
def test_a_write_that_fails_leaves_the_old_file(name: str, tmp_path) -> None:
    path = tmp_path / name
    path.write_text(OLD)
    with full_disk(), pytest.raises((OSError, InputError), match=re.escape(name)):
        RESULTS[name](path)
    assert path.read_text() == OLD
    assert list(tmp_path.iterdir()) == [path]
    RESULTS[name](path)
    assert path.read_bytes()[: len(OLD)] != OLD.encode()
    assert list(tmp_path.iterdir()) == [path]
