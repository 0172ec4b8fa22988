"""`plot ladder`: what each technique adds to a plan, from a bare trainer up."""

from __future__ import annotations

from pathlib import Path

import pytest

import meshwright as mw
from cost_models.errors import InputError
from meshwright.verbs.plot import PlotOptions, plot

LAYOUT = "tp8 pp4 vpp2 dp2 mbs1 zero1 sp"


def saved(tmp_path: Path, stack: str) -> Path:
    path = tmp_path / f"{stack}.yaml"
    training = mw.TrainingSpec(global_batch=64, sequence_length=2048)
    mw.estimate("llama3-70b", "dgx-h100", training, LAYOUT, gpus=64, stack=stack).save(path)
    return path


def test_rungs_go_up_in_the_order_that_saves_most(tmp_path) -> None:
    options = PlotOptions(allow=("parallel-block", "window=1024,batch=256"))
    drawn = plot("ladder", saved(tmp_path, "megatron-2023"), options=options).drawing
    frame = drawn.frame
    names = {"tensor-parallel overlap", "pipeline overlap", "data-parallel overlap", "batches not broadcast"}
    names |= {
        "flash attention",
        "fused norms and activations",
        "parallel block",
        "window of 1,024",
        "batch of 256",
    }
    assert set(frame["name"][1:]) == names
    seconds = frame["step_seconds"].tolist()
    assert seconds == sorted(seconds, reverse=True)
    assert frame["mfu"].iloc[0] + frame["adds"].sum() == pytest.approx(frame["mfu"].iloc[-1])
    assert not frame.set_index("name")["has"]["tensor-parallel overlap"]
    assert frame.set_index("name")["has"]["flash attention"]
    drawn.save(tmp_path / "ladder.png")


def test_a_plan_that_has_all_of_it_stands_on_the_last_rung(tmp_path) -> None:
    path = saved(tmp_path, "megascale")
    frame = plot("ladder", path).drawing.frame
    assert frame["has"].all()
    assert frame["step_seconds"].iloc[-1] == pytest.approx(
        mw.load_plan(path).prediction.step_seconds, rel=1e-6
    )


UNKNOWN = {
    "window=4096": "hides nothing of sequences of 2048 tokens",
    "batch=64": "is no larger than the batch, 64",
    "windows": "is none of parallel-block, window=N, batch=N",
    "batch=0": "is none of",
}


def test_what_cannot_be_allowed_is_told(tmp_path) -> None:
    with pytest.raises(InputError) as raised:
        plot("ladder", saved(tmp_path, "megascale"), options=PlotOptions(allow=tuple(UNKNOWN)))
    problems = "".join(map(str, raised.value.problems))
    assert all(words in problems for words in UNKNOWN.values())


def test_only_a_ladder_takes_allow(tmp_path) -> None:
    with pytest.raises(InputError, match="takes fewer flags"):
        plot("memory", saved(tmp_path, "megascale"), options=PlotOptions(allow=("parallel-block",)))
