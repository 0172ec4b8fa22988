"""A plan may come from a pipe, which gives what it holds once: `meshwright explain <(ssh there cat plan.yaml)`.

A pipe that nobody writes to is an error, and is not waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest
from command_line import ASKED

from cost_models.files import reading as pipes
from planner.plan import load_plan


@pytest.fixture
def pipe(plan_file) -> Iterator[str]:
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
        ("verify", "--time-limit", "20"),
        ("compare", "tp4"),
        ("plot", "memory", "-o", "memory.svg"),
        ("plan", "--replay"),
    ],
    ids=" ".join,
)
def test_a_plan_from_a_pipe_is_read_once(meshwright, words, pipe, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = 2 if words[0] in ("plot", "plan") else 1
    meshwright.done(*words[:before], pipe, *words[before:])


def test_a_run_reads_its_plan_once(meshwright, pipe, plan_file, monkeypatch) -> None:
    asked: list[object] = []

    def run_plan(plan: object, config: object, **how: object) -> None:
        asked.extend((plan, how["name"]))
        raise KeyboardInterrupt

    monkeypatch.setattr("executor.launch.launch.run_plan", run_plan)
    assert meshwright("run", pipe).code == 130
    assert asked == [load_plan(plan_file), Path(pipe).name]


SIZES = ASKED[2:]


@pytest.fixture
def named(tmp_path, monkeypatch) -> Callable[[str], str]:
    """A pipe of this name in the working folder, that nobody writes to; who waits for a writer does not wait long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipes, "WRITER_SECONDS", 0.05)

    def make(name: str) -> str:
        os.mkfifo(name)
        return name

    return make


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "words",
    [
        "import run.sh dgx-h100",
        "import recipe.toml dgx-h100 --gpus 8",
        f"plan model.yaml {' '.join(ASKED[1:])}",
        f"plan gpt2-small cluster.yaml {' '.join(SIZES)}",
        f"plan gpt2-small dgx-h100 --training run.yaml {' '.join(SIZES)}",
        "plan --replay plan.yaml",
        "compare plan.yaml tp2",
        "plot accuracy run.json",
        "validate --runs runs.csv",
    ],
)
def test_a_pipe_that_nobody_writes_to_is_an_error(meshwright, named, words: str) -> None:
    given = words.split()
    known = {"import", "plan", "gpt2-small", "dgx-h100", "plot", "accuracy", "validate", "calibrate", *ASKED}
    pipe = named(next(word for word in given[1:] if word not in known and not word.startswith("-")))
    assert f"`{pipe}` is a pipe that nobody writes to" in meshwright.refusal(*given)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["recipe.py", "ds.json"])
def test_a_pipe_is_not_read_to_see_whose_file_it_is(meshwright, named, name: str) -> None:
    answer = meshwright.refusal("import", named(name), "dgx-h100")
    assert f"`{name}` is a pipe, which is read once" in answer
    assert "hint: --from says it" in answer


@pytest.mark.timeout(60)
@pytest.mark.parametrize("late", [0.0, 0.3], ids=["at once", "late"])
def test_what_somebody_writes_to_a_named_pipe_is_read_whole(meshwright, plan_file, named, late) -> None:
    """However late the first bytes come: who has it open for writing is waited for."""
    pipe, text = named("plan.yaml"), plan_file.read_bytes()
    first = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # without a reader it could not be opened for writing
    writing = os.open(pipe, os.O_WRONLY)

    def write() -> None:
        time.sleep(late)
        with os.fdopen(writing, "wb", buffering=0) as stream:
            for start in range(0, len(text), 1000):
                stream.write(text[start : start + 1000])

    writer = Thread(target=write)
    writer.start()
    answer = meshwright("explain", pipe)
    writer.join()
    os.close(first)
    assert answer.code == 0, answer.err
    assert answer.out == meshwright("explain", str(plan_file)).out
