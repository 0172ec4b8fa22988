"""`--fix`, `--forbid`, `--for` and several precisions on the command line and in plan files."""

from __future__ import annotations

import json

import pytest

import meshwright as mw
from cost_models.errors import InputError
from planner.plan import load_plan

ASKED = ("gpt2-small", "dgx-h100", "--gpus", "8", "--global-batch", "64", "--sequence", "1024")


def test_a_plan_remembers_what_it_was_kept_to(tmp_path, meshwright) -> None:
    path = tmp_path / "plan.yaml"
    flags = ("--fix", "pp>=2", "--fix", "dp=1,2,4", "--fix", "order=tp-pp-cp-dp", "--forbid", "vpp")
    code, _, _ = meshwright("plan", *ASKED, *flags, "--for", "megatron", "--top", "1", "-o", str(path))
    assert code == 0
    plan = load_plan(path)
    assert plan.recommendation is not None
    asked = plan.recommendation.asked
    assert asked.trainer == plan.restrictions.trainer == "megatron"
    assert asked.forbid == ("vpp",)
    assert set(asked.fix) == {"dp=1,2,4", "order=tp-pp-cp-dp", "pp>=2"}
    assert set(asked.forbid) <= set(plan.restrictions.forbid)  # what is recommended may be kept to more
    assert set(asked.fix) <= set(plan.restrictions.fix)
    assert plan.layout.pp >= 2
    assert plan.layout.vpp == 1
    assert len(plan.layout.recompute) == 1
    code, _, err = meshwright("explain", str(path), "--why-not", "pp2 dp4 schedule=gpipe")
    assert code == 0, err


def test_the_stack_is_the_trainers_unless_another_is_named(meshwright) -> None:
    def stack(*words: str) -> str:
        code, out, err = meshwright("plan", *ASKED, "--top", "1", "--json", *words)
        assert code == 0, err
        return str(json.loads(out)["question"]["stack"])

    assert stack("--for", "torchtitan") == "torchtitan"
    assert stack("--for", "megatron", "--stack", "nemo") == "nemo"


def test_a_stack_with_a_name_of_its_own_goes_with_every_trainer(tmp_path, meshwright) -> None:
    path = tmp_path / "mine.yaml"
    for name, code in (("mine", 0), ("torchtitan", 2)):
        path.write_text(f"kind: stack\nname: {name}\n")
        flags = ("--for", "megatron", "--stack", str(path), "--layout", "dp8 mbs1 zero0")
        assert meshwright("estimate", *ASKED, *flags)[0] == code


def test_of_several_precisions_the_fastest_is_answered(meshwright) -> None:
    def step(precision: str) -> tuple[str, float, str]:
        code, out, err = meshwright("plan", *ASKED, "--top", "1", "--json", "--precision", precision)
        assert code == 0, err
        found = json.loads(out)
        return found["question"]["precision"], found["plans"][0]["step_seconds"], err

    alone = {name: step(name)[1] for name in ("bf16", "fp32")}
    precision, seconds, err = step("fp32,bf16")
    assert (precision, seconds) == min(alone.items(), key=lambda item: item[1])
    assert "note: in fp32 the best is" in err


def test_the_api_takes_a_trainer() -> None:
    training = mw.TrainingSpec(global_batch=64, sequence_length=1024)
    planned = mw.plan("gpt2-small", "dgx-h100", training, gpus=8, trainer="torchtitan", fix=["dp>=4"], top=1)
    assert planned.question.stack.name == "torchtitan"
    assert planned.plan.restrictions.trainer == "torchtitan"
    assert planned.best.layout.dp >= 4
    with pytest.raises(InputError, match="unknown trainer"):
        mw.plan("gpt2-small", "dgx-h100", training, gpus=8, trainer="torchtita")
