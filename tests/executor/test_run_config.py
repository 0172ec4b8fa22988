"""What is asked of a run reaches its ranks whole, as JSON."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cost_models.errors import InputError
from executor.run_config import Rate, RunConfig, require_places

PLAIN = RunConfig()
SAID: dict[str, Any] = {"steps": 11, "backend": "gloo", "seed": 5, "data": "some tokens", "timeout": 12.5}
SAID |= {"learning_rate": 1 / 3, "rate_warm_up": 4, "rate_decay": 9, "clip": 0.1, "compile": True}
SAID |= {"checkpoint": Path("saved here"), "every": 4, "keep": 2, "resume": True, "restarts": 1}
SAID |= {"nodes": 2, "rendezvous": "node0:29500", "warm_up": 3, "waiting_steps": 0, "measure_memory": False}
PLACES = ("out", "trace", "profiler", "drive", "weights", "save_weights")
EVERYTHING = RunConfig(**SAID, **{name: Path(f"a {name}") for name in PLACES})


@pytest.mark.parametrize("config", [PLAIN, EVERYTHING])
def test_a_rank_reads_what_was_asked(config: RunConfig) -> None:
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_everything_is_more_than_what_is_so_anyway() -> None:
    """A field that is left at its default above would prove nothing."""
    for name in RunConfig.model_fields:
        assert getattr(EVERYTHING, name) != getattr(PLAIN, name), name


def test_the_engine_gets_its_options() -> None:
    assert EVERYTHING.rate == Rate(peak=1 / 3, warm_up=4, decay=9)
    engine = EVERYTHING.engine
    assert (engine.seed, engine.rate, engine.clip, engine.compile) == (5, EVERYTHING.rate, 0.1, True)


def test_paths_may_be_words_and_what_is_wrong_is_said_at_once() -> None:
    assert RunConfig(out="there", data=Path("tokens")) == RunConfig(out=Path("there"), data="tokens")
    with pytest.raises(InputError) as refused:
        RunConfig(steps=0, tiemout=3)
    assert [str(problem) for problem in refused.value.problems] == [
        "steps: must be at least 1, not `0`",
        "tiemout: unknown field `tiemout`; did you mean `timeout`?",
    ]


def test_nodes_may_differ_in_what_is_their_own() -> None:
    here = RunConfig(steps=3, nodes=2, rendezvous="node0:29500", out="/mnt/a/run", backend="gloo")
    there = RunConfig(steps=3, nodes=2, rendezvous="10.0.0.1:29500", out="/mnt/b/run", restarts=0)
    assert here.of_all_nodes() == there.of_all_nodes()
    assert here.of_all_nodes() != RunConfig(steps=4, nodes=2).of_all_nodes()


def test_places_that_a_run_writes_to_are_tried_before_it(tmp_path) -> None:
    """Whatever is in the way: a file, a folder, the system, a name that is too long; all of them at once."""
    file, new, long = tmp_path / "file", tmp_path / "new/er", tmp_path / ("x" * 300)
    file.touch()
    (tmp_path / "old/run-report.json").mkdir(parents=True)
    require_places(RunConfig(out=new, trace=file, profiler=new, checkpoint=new, save_weights=new))
    require_places(RunConfig(nodes=2, rendezvous="host:1", trace=tmp_path))  # which another node may write
    names = {
        "out": "-o",
        "profiler": "--profiler",
        "checkpoint": "--checkpoint",
        "save_weights": "--save-weights",
    }
    blocked = (file, file / "below", Path("/proc/x"), Path("/proc/x/y"), long)
    for name, place in (*product(names, blocked), ("out", tmp_path / "old")):
        with pytest.raises(InputError) as caught:
            require_places(RunConfig.model_validate({name: place, "trace": tmp_path}))
        told = [problem.where for problem in caught.value.problems]
        assert told == [f"{names[name]} {place}", f"--trace {tmp_path}"]
    for place in (tmp_path, file / "below", tmp_path / "absent/x", Path("/proc/x"), long):
        with pytest.raises(InputError, match=f"--trace {place}"):
            require_places(RunConfig(trace=place))
