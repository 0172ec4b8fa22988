"""The frame of the command line: help, what is imported, what is assumed.

What is said of mistakes is among the frozen answers (`refused` and `errors` of `tests/golden/questions.yaml`).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import get_args

import pytest
from command_line import ASKED, BIG

from cost_models.specs.cluster import Precision
from cost_models.specs.training import OptimizerName, Packing, Reference, StateDtype
from meshwright.cli.frame import main


def test_amounts_in_words_are_said_in_numbers(meshwright) -> None:
    amounts = (
        "--sequence",
        "1K",
        "--global-batch",
        "64K tokens",
        "--layout",
        "dp8 mbs1 zero0 recompute=full",
    )
    answer = meshwright("estimate", *ASKED[:4], *amounts)
    assert answer.code == 0
    assert "assumed: `--sequence 1K` is 1,024 tokens\n" in answer.err
    assert "assumed: `--global-batch 64K tokens` is 64 sequences of 1,024 tokens\n" in answer.err


def test_dropout_of_a_config_comes_before_the_stacks(meshwright, tmp_path) -> None:
    """A config says what its model drops; a flag says another; a stack's habit is for models that say nothing."""
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": 1024}
    file = tmp_path / "config.json"
    for said, flags, dropout in (
        ({"resid_pdrop": 0.2}, (), 0.2),
        ({"resid_pdrop": 0}, ("--stack", "megatron-2021"), 0.0),
        ({"resid_pdrop": 0.2}, ("--dropout", "0.1"), 0.1),
        ({}, ("--stack", "megatron-2021"), 0.1),
    ):
        file.write_text(json.dumps({"model_type": "gpt2", **sizes, **said}))
        asked = (
            "estimate",
            str(file),
            *ASKED[1:],
            "--layout",
            "dp8 mbs1 zero0",
            "--sequence",
            "1024",
            *flags,
        )
        answer = meshwright(*asked, "--json")
        assert json.loads(answer.out)["question"]["dropout"] == dropout
        told = f"assumed: dropout {dropout:g}, as `resid_pdrop` of the model's config says"
        assert (told in answer.err) == (bool(said) and "--dropout" not in flags)
    file.write_text(json.dumps({"model_type": "gpt2", **sizes, "resid_pdrop": 1.5}))
    answer = meshwright("estimate", str(file), *ASKED[1:], "--layout", "dp8 mbs1 zero0")
    assert (answer.code, "`resid_pdrop: 1.5` is no probability" in answer.err) == (2, True)


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="unknown model"):
        main(["plan", "gpt3-175c", *BIG[1:], "--debug"])


IMPORTED = {
    "plan --help": (0, "torch numpy pandas matplotlib pulp networkx rich"),
    "plan llama3-70b nowhere --gpus 8 --global-batch 8 --sequence 1024": (
        2, "planner.search planner.answers pulp matplotlib pandas torch",
    ),
    "plan gpt2-tiny dgx-h100 --gpus 1 --global-batch 8 --sequence 128": (0, "matplotlib torch"),
}  # fmt: skip
"""A call → its exit code, and modules that it does not import: of a wrong question none that search, of an answer that
draws nothing none that draw."""
PROGRAM = """import sys, meshwright.cli as cli
try:
    cli.main(sys.argv[2:])
finally:
    print("late:", [name for name in sys.modules if name.startswith(tuple(sys.argv[1].split()))])
"""


@pytest.mark.parametrize("words", IMPORTED)
def test_only_what_a_call_needs_is_imported(words: str) -> None:
    code, late = IMPORTED[words]
    command = [sys.executable, "-c", PROGRAM, late, *words.split()]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip().rpartition("late: ")[2]) == (code, "[]"), found


def test_help_of_plan_has_headings_and_hides_what_another_flag_opens(meshwright) -> None:
    plain = meshwright("plan", "--help").out
    headings = re.findall(r"^(\w[\w ]*):$", plain, re.MULTILINE)
    assert headings == ["Arguments", "Job", "Machine", "Search", "Objective", "Other questions", "Output"]
    assert "--cache" not in plain
    assert "--by" not in plain
    assert "--cache SIZE" in meshwright("plan", "--serve", "--help").out
    assert "--by WHAT" in meshwright("plan", "--largest", "--help").out


def test_help_names_every_choice(meshwright) -> None:
    words = set(re.findall(r"[a-z0-9-]+", re.sub(r"-\s+", "-", meshwright("plan", "--help").out)))
    literals = (Precision, OptimizerName, Packing, StateDtype, Reference)
    for choice in [one for kind in literals for one in leaves(kind)]:
        assert choice in words, choice


def leaves(kind: object) -> list[str]:
    """The words of a literal, and of those within it."""
    return [word for one in get_args(kind) for word in ([one] if isinstance(one, str) else leaves(one))]


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m meshwright catalog models | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""
