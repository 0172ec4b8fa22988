"""A step that the user measured: it moves expected steps of layouts like it, and no price."""

from __future__ import annotations

import json
import math

import pytest

import meshwright as mw

JOB = ("llama3-8b", "dgx-h100", "--gpus", "64", "--global-batch", "256", "--sequence", "8192")
TODAY = "tp4 pp1 dp16 mbs2 zero1 sp recompute=full"
LOG = (
    " iteration {}/ 500 | elapsed time per iteration (ms): {}.0 | global batch size:   256 | lm loss: 9.1 |\n"
)


def width(expected) -> float:
    low, high = expected["step_seconds_90"]
    return high / low


def test_a_measured_step_moves_expected_steps_and_no_price(meshwright, tmp_path) -> None:
    def ask(*words: str):
        return json.loads(meshwright.done(*words, "--json").out)

    log, file = tmp_path / "job.log", str(tmp_path / "plan.yaml")
    log.write_text("".join(LOG.format(step, 5300 + step % 3) for step in range(1, 30)))
    before = ask("estimate", *JOB, "--layout", TODAY)
    mfu = before["estimate"]["mfu"] * before["estimate"]["step_seconds"] / 5.3
    for measured in ("5.3s", f"{100 * mfu:.3f}% MFU", str(log)):
        after = ask("estimate", *JOB, "--layout", TODAY, "--measured", measured)
        assert after["estimate"] == before["estimate"]
        assert after["expected"]["step_seconds"] == pytest.approx(5.3, rel=0.02)
        assert width(after["expected"]) < 1.15 < width(before["expected"])
    without, plan = ask("plan", *JOB), ask("plan", *JOB, "--today", TODAY, "--measured", str(log), "-o", file)
    assert plan["recommended"]["plan"] == without["recommended"]["plan"]
    assert plan["expected"]["step_seconds"] > without["expected"]["step_seconds"]
    assert ask("explain", file)["expected"] == plan["expected"]
    assert "5.30 s measured, 4.61 s" in meshwright.done("plan", "--replay", file).out


def test_steps_that_are_refused(meshwright) -> None:
    job = mw.TrainingSpec(global_batch=256, sequence_length=8192)
    for measured in (0, -1.0, math.nan, math.inf):
        with pytest.raises(mw.InputError, match="is no time of a step"):
            mw.estimate(*JOB[:2], job, TODAY, gpus=64, measured=measured)
    for words, reason in (
        (("--today", TODAY), "--measured: missing"),
        (("--measured", "5.3s"), "--today: missing"),
        (("--today", TODAY, "--measured", "5.3s", "--precision", "bf16,fp8"), "chooses among several"),
        (("--today", TODAY, "--measured", "1s"), "more than the GPUs can compute"),
        (("--today", TODAY, "--measured", "100s"), "of another job"),
        (("--today", TODAY, "--measured", "0%"), "is no MFU"),
        (("--today", TODAY, "--measured", "soon"), "is not a duration"),
    ):
        answer = meshwright("plan", *JOB, *words)
        assert (answer.code, reason in answer.err) == (2, True), words
