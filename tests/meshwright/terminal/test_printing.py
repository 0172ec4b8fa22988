"""What is printed cannot write to a terminal; what cannot be written loses nothing else, and no old result."""

from __future__ import annotations

import csv
import errno
import json
import re
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command_line import ASKED
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
from meshwright.terminal import progress
from meshwright.terminal.output import Output, as_csv, as_json
from planner.plan import Plan, save_plan

RED = "\x1b[31mred\x1b]0;title\x07\u202e\udcff"


@pytest.mark.parametrize(
    "words",
    [
        ("plan", *ASKED, "--fix", f"tp={RED}"),
        ("plan", *ASKED, "--objective", RED),
        ("estimate", *ASKED, "--layout", f"tp2 {RED}"),
        ("estimate", RED, "dgx-h100", "--layout", "tp2"),
        ("verify", f"{RED}.yaml"),
        ("plot", RED),
        (RED,),
        ("plan", f"--{RED}"),
        ("plan", *ASKED, "-o", f"{RED}/plan.yaml"),
    ],
    ids=lambda words: (
        " ".join(word for word in words if word not in ASKED).encode("ascii", "replace").decode()
    ),
)
@pytest.mark.parametrize("json_too", [False, True])
def test_no_word_writes_to_the_terminal(meshwright, words: tuple[str, ...], json_too: bool) -> None:
    answer = meshwright(*words, *["--json"] * json_too)
    assert answer.code == 2
    said = answer.out + answer.err
    assert "red" in said
    assert all(char.isprintable() or char == "\n" for char in said)


def test_no_file_writes_to_the_terminal(meshwright, plan_file, tmp_path) -> None:
    """What a plan says of itself is told by `verify`, in a table."""
    changed = tmp_path / "changed.yaml"
    text = plan_file.read_text("utf-8")
    escaped = json.dumps(f"{RED[:-1]}")
    lines = [f"  trust: {escaped}" if line.startswith("  trust:") else line for line in text.splitlines()]
    changed.write_text("\n".join(lines) + "\n", "utf-8")
    answer = meshwright("verify", str(changed), "--time-limit", "0.001")
    assert "?[31mred" in answer.out
    assert all(char.isprintable() or char == "\n" for char in answer.out + answer.err)


def test_json_keeps_what_it_escapes() -> None:
    text = as_json({"name": RED, "word": "größer × 2"})
    assert all(char.isprintable() or char == "\n" for char in text)
    assert json.loads(text) == {"name": RED, "word": "größer × 2"}
    assert "größer × 2" in text


def test_no_cell_is_a_formula() -> None:
    rows = [
        {"what": word, "seconds": -1.5} for word in ("=1+1", "+1", "-x", "@SUM(A1)", "-2.5", "-3.6 %", "a=b")
    ]
    found = list(csv.DictReader(as_csv(rows).splitlines()))
    assert [row["what"] for row in found] == ["'=1+1", "+1", "'-x", "'@SUM(A1)", "-2.5", "'-3.6 %", "a=b"]
    assert {row["seconds"] for row in found} == {"-1.5"}


def test_what_cannot_be_written_keeps_nothing_else_back(tmp_path, capsys) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "plan.yaml")

    rows = tmp_path / "rows.csv"
    with pytest.raises(InputError, match=r"`plan\.yaml`: no space left on device"):
        Output(csv=rows).answer({}, [{"a": 1}], "the answer", files=[full])
    assert capsys.readouterr().out == "the answer\n"
    assert rows.read_text() == "a\n1\n"
    with pytest.raises(InputError) as caught:
        Output(csv=tmp_path / "nowhere" / "rows.csv").answer({}, [{"a": 1}], "the answer", files=[full])
    assert [problem.what for problem in caught.value.problems] == [
        "`plan.yaml`: no space left on device",
        f"`{tmp_path / 'nowhere' / 'rows.csv'}`: no such file or directory",
    ]
    assert capsys.readouterr().out == "the answer\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no such device")
def test_a_full_disk_behind_stdout_is_told(tmp_path, monkeypatch) -> None:
    rows = tmp_path / "rows.csv"
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(InputError, match="`stdout`: no space left on device"):
            Output(csv=rows).answer({}, [{"a": 1}], "the answer")
    assert rows.read_text() == "a\n1\n"


def test_a_closed_stdout_is_told(tmp_path, monkeypatch) -> None:
    rows = tmp_path / "rows.csv"
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(InputError, match="`stdout`: it is closed"):
        Output(csv=rows).answer({}, [{"a": 1}], "the answer")
    assert rows.read_text() == "a\n1\n"


def test_a_long_wait_ends_with_how_long_all_of_it_was(capsys, monkeypatch) -> None:
    """A certificate has the seconds of the search; who waits also waits for imports, reading and prices."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 3600.0)
    reporter = progress.Reporter(visible=False)
    reporter._appear()
    reporter.close()
    found = re.search(r"([\d.]+) (ms|s|min) in all", capsys.readouterr().err)
    assert found
    assert progress.seconds_in_all() > 0


def test_a_short_one_says_nothing(capsys) -> None:
    progress.Reporter(visible=False).close()
    assert capsys.readouterr().err == ""


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
