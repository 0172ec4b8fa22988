"""The command line and Python give the same answers: `--json` is the record of what the function returned."""

from __future__ import annotations

import json
from typing import Any

import meshwright as mw
from meshwright.terminal.output import as_json

QUESTION = ("gpt2-nano", "dgx-h100")
GIVEN = ("--gpus", "4", "--global-batch", "8", "--sequence", "128")


def without_seconds(record: Any) -> Any:
    """The document as it is printed, but for how long the search took."""
    document = json.loads(as_json(record))
    document.get("certificate", {}).pop("seconds", None)
    return document


def test_plan_chooses_a_precision_alike(meshwright) -> None:
    printed = meshwright.json("plan", *QUESTION, *GIVEN, "--precision", "bf16,fp8")
    answer = mw.plan(*QUESTION, gpus=4, global_batch=8, sequence=128, precision=("bf16", "fp8"))
    assert without_seconds(answer.record()) == without_seconds(printed)
    assert len(answer.optimum.other_precisions) == 1


def test_estimate_explain_and_compare_say_the_same(meshwright, tmp_path) -> None:
    file = tmp_path / "plan.yaml"
    answer = mw.estimate(*QUESTION, None, "tp2 dp2 mbs1 zero0", gpus=4, global_batch=8, sequence=128)
    printed = meshwright(
        "estimate", *QUESTION, *GIVEN, "--layout", "tp2 dp2 mbs1 zero0", "-o", str(file), "--json"
    )
    assert without_seconds(answer.record()) == without_seconds(json.loads(printed.out))
    for verb, words, same in (
        ("explain", (), mw.explain(file)),
        ("explain", ("--why-not", "dp4"), mw.why_not(answer, "dp4")),
        ("compare", ("dp4",), mw.compare(file, "dp4")),
    ):
        printed = meshwright(verb, str(file), *words, "--json")
        assert json.loads(printed.out) == without_seconds(same.record())
        assert meshwright(verb, str(file), *words).out == "\n".join(map(str, same.text)) + "\n"
