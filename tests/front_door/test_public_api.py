"""What `import meshwright` offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import meshwright as mw

TRAINING = {"global_batch": 64, "sequence_length": 1024}


def test_every_public_name_exists() -> None:
    assert dir(mw) == sorted(mw.__all__)
    assert all(getattr(mw, name) is not None for name in mw.__all__)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="plam"):
        _ = mw.plam


def test_importing_costs_nothing() -> None:
    code = "import sys, meshwright; print({'numpy', 'pydantic', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_plan_answers(tmp_path: Path) -> None:
    answer = mw.plan("gpt2-small", "dgx-a100-80gb", mw.TrainingSpec(**TRAINING), top=3, time_limit=20)
    frame = answer.to_frame()
    assert len(frame) == 3
    assert frame["step_seconds"].is_monotonic_increasing
    assert "<table" in answer._repr_html_()
    assert "Proved optimal" in repr(answer)
    answer.save(tmp_path / "plan.yaml")
    assert mw.load_plan(tmp_path / "plan.yaml").layout == answer.best.layout
    assert "Binds: " in answer.explain()
    assert answer.why_not("tp16").startswith("`tp16` cannot run")


def test_estimate_answers() -> None:
    answer = mw.estimate("gpt2-small", "dgx-a100-80gb", mw.TrainingSpec(**TRAINING), "tp2 dp4 mbs2")
    assert answer.to_frame()["tp"].tolist() == [2]
    assert "step " in str(answer)
    assert "<br>" in answer._repr_html_()
    assert answer.plan.certificate is None


def test_runs_show_measured_beside_predicted() -> None:
    training = mw.TrainingSpec(global_batch=2, sequence_length=16, precision="fp32")
    ran = mw.run(mw.estimate("gpt2-nano", "local", training, "mbs1", gpus=1), steps=2)
    assert {"step_seconds", "mfu", "peak_bytes"} <= set(ran.to_frame()["quantity"])
    assert len(ran.losses) >= 2
    assert "<table" in ran._repr_html_()
    assert repr(ran).split()[:3] == ["predicted", "measured", "error"]


@pytest.mark.parametrize("kind", ["frontier", "scaling", "time", "memory", "timeline"])
def test_answers_draw_themselves(kind: str, tmp_path: Path) -> None:
    answer = mw.plan("gpt2-small", "dgx-a100-80gb", mw.TrainingSpec(**TRAINING), top=2, time_limit=20)
    drawing = answer.plot(kind, gpus=[4, 8])
    assert len(drawing.frame) > 0
    assert drawing.title
    assert drawing._repr_png_().startswith(b"\x89PNG")
    drawing.save(tmp_path / "drawing.svg")


def test_unknown_drawings_are_refused() -> None:
    answer = mw.estimate("gpt2-small", "dgx-a100-80gb", mw.TrainingSpec(**TRAINING), "tp2 dp4 mbs2")
    with pytest.raises(mw.InputError, match="did you mean `memory`"):
        answer.plot("memroy")
