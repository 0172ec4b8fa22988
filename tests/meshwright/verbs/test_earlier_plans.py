"""Plans that earlier versions wrote: they load, and are explained and verified here."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cost_models.files.catalog import load_stack

PLANS = Path(__file__).parent / "earlier_plans"
OLDEST = PLANS / "released_22_november.yaml"
"""The release of commit 2f4e4183, whose prices have changed since."""
REST = sorted(path for path in PLANS.glob("*.yaml") if path != OLDEST)


@pytest.mark.parametrize("plan", REST, ids=lambda path: path.stem)
def test_a_plan_of_an_earlier_release_is_verified_and_explained(plan: Path, meshwright) -> None:
    verified = meshwright("verify", str(plan))
    assert verified.code == 0, verified.out
    assert "release 0.2.0 covered" in " ".join(verified.out.split()) or plan.stem == "dlrm"
    explained = meshwright("explain", str(plan))
    assert explained.code == 0, explained.err


def test_facts_that_are_no_longer_in_use_are_ignored_with_one_note(meshwright) -> None:
    for verb in ("explain", "verify"):
        answer = meshwright(verb, str(OLDEST))
        assert answer.code == (0 if verb == "explain" else 1), answer.err  # its step is another one today
        assert answer.err.count("of the plan's software stack no longer in use, ignored: ") == 1


@pytest.mark.parametrize("words", [["reshard", "tp1 pp1 dp8 mbs1 zero1"], ["export", "--to", "megatron"]])
def test_every_verb_that_reads_a_plan_names_the_ignored_facts(words: list[str], meshwright) -> None:
    answer = meshwright(words[0], str(OLDEST), *words[1:])
    assert answer.err.count("of the plan's software stack no longer in use, ignored: ") == 1


@pytest.mark.parametrize("fact", ["offloads", "some_fact"])
def test_a_fact_that_no_stack_has_is_refused_in_a_users_own_file(fact: str, tmp_path, meshwright) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(yaml.safe_dump(load_stack("fsdp").model_dump(mode="json") | {fact: True}))
    job = ["--gpus", "8", "--global-batch", "8", "--sequence", "1024"]
    assert f"unknown field `{fact}`" in meshwright.refusal(
        "estimate", "gpt2-xl", "dgx-h100", "--layout", "dp8", *job, "--stack", str(path)
    )
