"""A plan may come from a pipe, which gives what it holds once: `meshwright explain <(ssh there cat plan.yaml)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import Answer

from planner.plan_files import load_plan


@pytest.fixture
def pipe(plan_file: Path) -> Iterator[str]:
    reading, writing = os.pipe()
    os.write(writing, plan_file.read_bytes())
    os.close(writing)
    yield f"/dev/fd/{reading}"
    os.close(reading)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system has no such names")
@pytest.mark.parametrize(
    "words",
    [
        ("explain",),
        ("explain", "--why-not", "tp4"),
        ("verify", "--time-limit", "20"),
        ("compare", "tp4"),
        ("plot", "memory", "-o", "memory.svg"),
        ("plot", "time", "-o", "time.svg"),
        ("plan", "--replay"),
    ],
    ids=" ".join,
)
def test_a_plan_from_a_pipe_is_read_once(
    meshwright: Callable[..., Answer],
    words: tuple[str, ...],
    pipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = 2 if words[0] in ("plot", "plan") else 1
    answer = meshwright(*words[:before], pipe, *words[before:])
    assert answer.code == 0, answer.err


def test_a_run_reads_its_plan_once(
    meshwright: Callable[..., Answer], pipe: str, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def run_plan(plan: object, config: object, **how: object) -> None:
        asked.extend((plan, how["name"]))
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.api.run.run_plan", run_plan)
    assert meshwright("run", pipe).code == 130
    assert asked == [load_plan(plan_file), Path(pipe).name]
