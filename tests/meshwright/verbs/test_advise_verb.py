"""`advise`: words, documents, the best plan as a file, and Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import ASKED
from effort import few

import meshwright as mw
from planner.plan import load_plan

LAYOUT = "tp2 dp4 mbs1 zero1 sp recompute=full"


@pytest.fixture
def today(meshwright, tmp_path) -> Path:
    """What is run today, as `estimate -o` writes it."""
    path = tmp_path / "today.yaml"
    assert meshwright("estimate", *ASKED, "--layout", LAYOUT, "-o", str(path)).code == 0
    return path


def test_the_document_and_python_say_the_same(meshwright, today, tmp_path) -> None:
    told = json.loads(meshwright("advise", str(today), "--json", "--csv", str(tmp_path / "a.csv")).out)
    advised = mw.advise(today)
    assert [one["change"] for one in told["changes"]] == [one.words for one in advised.advice.changes]
    assert told["best"]["step_seconds"] == pytest.approx(advised.best.step_seconds)
    assert told["certificate"]["gap"] == 0
    assert told["today"]["layout"].startswith("tp2 pp1 dp4 mbs1 zero1 sp recompute=full")
    frame = advised.to_frame()
    assert frame["change"].iloc[0] == "today"
    assert frame["step_seconds"].is_monotonic_decreasing
    assert len((tmp_path / "a.csv").read_text().splitlines()) == len(frame) + 1
    assert "Proved optimal" in repr(advised)
    assert "<table" in advised._repr_html_()


def test_the_best_plan_is_written_and_true(meshwright, today, tmp_path) -> None:
    best = tmp_path / "best.yaml"
    assert meshwright("advise", str(today), "-q", "-o", str(best)).code == 0
    assert load_plan(best).prediction.step_seconds < load_plan(today).prediction.step_seconds
    assert meshwright("verify", str(best)).code == 0
    again = meshwright("advise", str(best))
    assert "Nothing to change: no plan is faster." in again.out
    assert "+ " not in again.out


def test_a_layout_that_does_not_fit_is_told_what_does(meshwright, tmp_path) -> None:
    path = tmp_path / "large.yaml"
    asked = ("gpt2-xl", "gce-g2", *ASKED[2:], "--layout", "dp8 mbs2 zero0")
    assert meshwright("estimate", *asked, "-o", str(path)).code == 1
    answer = meshwright("advise", str(path))
    assert answer.code == 0
    assert ", which does not fit" in " ".join(answer.out.split())
    (row,) = [line for line in answer.out.splitlines() if line.startswith("+ ")][:1]
    assert row.split().count("fits") == 2


MEGATRON = (
    "torchrun --nnodes 8 --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 8"
    " --pipeline-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --num-layers 80"
    " --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 --group-query-attention"
    " --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256"
    " --micro-batch-size 1 --global-batch-size 128 --bf16 --swiglu --normalization RMSNorm --disable-bias-linear"
    " --untie-embeddings-and-output-weights --position-embedding-type rope --attention-backend flash"
    " --overlap-grad-reduce --overlap-param-gather --recompute-granularity selective"
)


@few(0)
def test_switches_of_the_stack_come_before_sharding_anew() -> None:
    """A script without `--tp-comm-overlap`, with flash 2: 7 % were to be gained by sharding anew, and 14 % by two
    flags."""
    advice = mw.advise(mw.import_plan(MEGATRON, cluster="dgx-h100").plan, time_limit=60).advice
    first, second, *others = advice.changes
    assert [first.words, second.words] == ["--tp-comm-overlap", "--attention-backend auto"]
    assert {one.trouble for one in (first, second)} == {"a flag"}
    assert first.with_earlier.layout == second.with_earlier.layout == advice.today.layout
    gained = 1 - second.with_earlier.step_seconds / advice.today.step_seconds
    assert gained > 0.14
    left = 1 - advice.best.step_seconds / second.with_earlier.step_seconds
    assert left < gained
    assert advice.question.stack.attention == "cudnn"
    assert [one for one in others if one.trouble == "re-sharding"] in ([], others[-1:])
