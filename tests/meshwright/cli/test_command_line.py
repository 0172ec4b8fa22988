"""The frame of the command line: help, what is imported, errors of arguments."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ASKED, BIG

from meshwright.cli.frame import main

VERBS = (
    "plan",
    "estimate",
    "compare",
    "explain",
    "advise",
    "verify",
    "forecast",
    "plot",
    "report",
    "explore",
    "cluster",
    "doctor",
    "run",
    "emulate",
    "export",
    "import",
    "tokens",
    "calibrate",
    "validate",
    "catalog",
)


def test_help_lists_every_verb_with_a_sentence(meshwright) -> None:
    answer = meshwright("--help")
    commands = answer.out.split("Commands:")[1].splitlines()
    assert tuple(line.split()[0] for line in commands if line.strip()) == VERBS
    assert all(line.endswith(".") and not line.endswith("..") for line in commands if line.strip())


@pytest.mark.parametrize(
    ("verb", "flags"),
    [
        (
            "plan",
            "--gpus --global-batch --sequence --precision --dropout --training --stack --profile --fix --forbid"
            " --max-memory --confidence --objective --tokens --price --deadline --top --time-limit"
            " --solver --replay --out",
        ),
        (
            "estimate",
            "--layout --gpus --global-batch --sequence --precision --dropout --training --stack --profile --confidence"
            " --out",
        ),
        ("compare", ""),
        ("cluster", "--discover --nodes --name --link --out"),
        ("explain", "--why-not"),
        ("advise", "--layout --time-limit --out"),
        ("verify", "--time-limit --solver"),
        ("plot", "--gpus --between --points --kind --tokens --price --time-limit --out"),
        (
            "run",
            "--steps --backend --out --dry-run --data --checkpoint --every --keep --resume --restarts --timeout"
            " --learning-rate --rate-warm-up --rate-decay --clip",
        ),
        ("tokens", "--out --bpe --like"),
        ("emulate", "--rank --fake --steps --out"),
        ("calibrate", "--processes --quick --from-runs --stack --gpu --cross-validate --out"),
        ("validate", "--runs --stack --profile --anchors --out"),
        ("catalog", ""),
    ],
)
def test_flags_of_a_verb(meshwright, verb: str, flags: str) -> None:
    answer = meshwright(verb, "--help")
    assert answer.code == 0
    found = set(re.findall(r"(?<![\w-])--[a-z-]+", answer.out.split("Options:")[1]))
    assert found >= {*flags.split(), "--json", "--csv", "--quiet", "--help"}
    assert max(map(len, answer.out.splitlines())) <= 80


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from meshwright.cli.frame import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'pandas', 'matplotlib', 'pulp', 'networkx', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


ERRORS = {
    "unknown model": (
        ("plan", "gpt3-175c", *BIG[1:]),
        "error: unknown model `gpt3-175c`; did you mean `gpt3-175b`?\n\nhint: known names: meshwright catalog models\n",
    ),
    "nothing asked": (
        ("plan",),
        "error: nothing to plan for\n  MODEL: missing\n  CLUSTER: missing\n\nhint: meshwright plan gpt3-175b"
        " dgx-a100-80gb --gpus 1024 --global-batch 1536 --sequence 2048\n",
    ),
    "no GPUs": (
        ("plan", "gpt3-175b", "dgx-a100-80gb", "--gpus", "0", "--global-batch", "8", "--sequence", "8"),
        "error: a cluster of 0 GPUs cannot train anything\n\nhint: --gpus must be above zero\n",
    ),
    "memory unit": (
        ("plan", *ASKED, "--max-memory", "70Gb"),
        "error: --max-memory: `70Gb` is not a size; write it like `80 GiB` or `80 GB`\n",
    ),
    "missing plan": (
        ("explain", "nowhere.yaml"),
        "error: cannot read `nowhere.yaml`: no such file or directory\n",
    ),
    "unwritable csv": (
        ("catalog", "gpus", "--csv", "nowhere/x.csv", "--json"),
        "error: `nowhere/x.csv`: no such file or directory\n",
    ),
    "everything at once": (
        (
            *(
                "plan",
                "gpt3-175c",
                "dgx-a100-80g",
                "--global-batch",
                "-1",
                "--sequence",
                "0",
                "--precision",
                "bf17",
            ),
            *(
                "--fix",
                "tp=3x",
                "--fix",
                "zero=9",
                "--forbid",
                "sp=2",
                "--max-memory",
                "3",
                "-o",
                ".",
                "--csv",
                "no/x",
            ),
        ),
        "error: 11 problems in what was asked\n"
        "  unknown model `gpt3-175c`; did you mean `gpt3-175b`?\n"
        "  unknown cluster `dgx-a100-80g`; did you mean `dgx-a100-80gb`?\n"
        "  --global-batch: must be above zero, not `-1`\n"
        "  --sequence: must be above zero, not `0`\n"
        "  --precision: `bf17` is not one of `bf16`, `fp16`, `fp32`, `fp8`, `fp4`; did you mean `bf16`?\n"
        "  --fix tp=3x: `3x` is not a whole number\n"
        "  --fix zero=9: ZeRO has stages 0 to 3\n"
        "  --forbid sp=2: `2` is not 0 or 1\n"
        "  --max-memory: `3` is not a size; write it like `80 GiB` or `80 GB`\n"
        "  -o .: is a folder\n"
        "  --csv no/x: the folder `no` does not exist\n",
    ),
    "one file for two": (
        ("plan", *ASKED, "-o", "x.yaml", "--csv", "./x.yaml"),
        "error: the answer cannot be written\n  -o and --csv: both name `x.yaml`\n",
    ),
    "lone plan": (
        ("compare", "plan.yaml"),
        "error: compare takes two to 6 plans, not 1\n\nhint: after the first, a layout will do:"
        ' meshwright compare plan.yaml "tp8 pp4 dp2"\n',
    ),
    "picture": (
        ("plot", "memory", "plan.yaml", "-o", "x.gif"),
        "error: `x.gif` has no suffix of a picture\n\nhint: `.png`, `.svg` and `.pdf` can be drawn\n",
    ),
    "counts": (
        ("plot", "memory", "plan.yaml", "--gpus", "8"),
        "error: `memory` takes fewer flags\n  --gpus: is for `scaling`, `frontier` and `topology`, not `memory`\n",
    ),
    "replay and model": (
        ("plan", "gpt2-small", "--replay", "plan.yaml", "--fix", "tp=2"),
        "error: --replay takes its question from the plan\n\nhint: leave out MODEL and --fix\n",
    ),
    "schema of what": (
        ("catalog", "schema"),
        "error: which schema?\n\nhint: meshwright catalog schema transformer|cluster|pools|recommender|training|"
        "recommender-training|stack|profile|operations\n",
    ),
}


BROKEN = {"broken.yaml": "kind: plan\nschema_version: 2\n...\n"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", *ASKED[:3], "9" * 23), "9 GPUs are more than there are"),
        (("plan", *ASKED[:5], "963761198400"), "  --global-batch: must be at most "),
        (("explain", "PLAN", "--why-not", ""), "error: `` is not a layout\n  it says nothing\n"),
        (
            ("plan", *ASKED, "--stack", "foo", "--profile", "bar"),
            "\n  unknown stack `foo`\n  unknown profile `bar`\n",
        ),
        (("compare", "PLAN", "broken.yaml", "tp3x"), "  `broken.yaml` has schema_version 2;"),
        (("compare", "PLAN", "broken.yaml", "tp3x"), "  `tp3x`: not part of a layout"),
        (
            ("plot", "scaling", "PLAN", "--gpus", "0,x"),
            "  --gpus: `0` is not a number of GPUs\n  --gpus: `x` is not",
        ),
        (
            ("plot", "scaling", "PLAN", "--gpus", "1,024"),
            "  --gpus: `024` begins with a zero; commas stand between several numbers",
        ),
        (
            ("plot", "scaling", "PLAN", "--gpus", "8,12"),
            "  12 GPUs are no whole number of nodes; a node has 8\n",
        ),
        (("plot", "memory", "PLAN", "-o", "no/x.png"), "  -o no/x.png: the folder `no` does not exist\n"),
        (("calibrate", "-o", "no/x.yaml"), "  -o no/x.yaml: the folder `no` does not exist\n"),
        (
            ("run", "PLAN", "--backend", "mpi"),
            "error: unknown backend `mpi`\n\nhint: nccl for GPUs, gloo for CPUs\n",
        ),
    ],
)
def test_more_errors(meshwright, plan_file: Path, tmp_path: Path, monkeypatch, words, said: str) -> None:
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    answer = meshwright(*(str(plan_file) if word == "PLAN" else word for word in words))
    assert said in answer.err
    assert (answer.code, answer.out) == (2, "")


def test_an_error_is_a_json_document_too(meshwright) -> None:
    answer = meshwright("plan", "gpt3-175c", *BIG[1:], "--json")
    assert json.loads(answer.out)["error"] == {
        "headline": "unknown model `gpt3-175c`; did you mean `gpt3-175b`?",
        "problems": [],
        "hint": "known names: meshwright catalog models",
    }
    assert answer.err.startswith("error: unknown model")


@pytest.mark.parametrize("name", ERRORS)
def test_errors(meshwright, name: str) -> None:
    words, expected = ERRORS[name]
    answer = meshwright(*words)
    assert answer.err == expected
    assert answer.code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("estimate", *ASKED[:2], "--layout", "tp1", "--gpus", "1.5"), "--gpus: `1.5` is not a whole number"),
        (("plan", *ASKED, "--time-limit", "60s"), "--time-limit: `60s` is not a number"),
        (("plan", *ASKED, "--top", "0"), "--top: must be at least 1, not `0`"),
        (("catalog", "model"), "`schema`; did you mean `models`?"),
        (("plan", *ASKED, "--gpus"), "option `--gpus` requires an argument"),
        (("estimate", "gpt2-small"), "missing argument `CLUSTER`"),
    ],
)
def test_flags_that_cannot_be_read_are_told_in_our_words(
    meshwright, words: tuple[str, ...], said: str
) -> None:
    answer = meshwright(*words)
    assert (answer.code, answer.out) == (2, "")
    assert f"{said}\n" in answer.err
    assert "Input should" not in answer.err


def test_swapped_model_and_cluster(meshwright) -> None:
    answer = meshwright("plan", "dgx-h100", "llama3-8b", *ASKED[2:])
    assert answer.code == 2
    assert answer.err == "error: MODEL and CLUSTER are swapped\n\nhint: write them as `llama3-8b dgx-h100`\n"


def test_amounts_in_words_are_said_in_numbers(meshwright) -> None:
    flags = (
        "--gpus",
        "8",
        "--layout",
        "dp8 recompute=full",
        "--sequence",
        "1K",
        "--global-batch",
        "64K tokens",
    )
    answer = meshwright("estimate", *ASKED[:2], *flags)
    assert answer.code == 0
    assert "assumed: `--sequence 1K` is 1,024 tokens\n" in answer.err
    assert "assumed: `--global-batch 64K tokens` is 64 sequences of 1,024 tokens\n" in answer.err


@pytest.mark.parametrize(
    ("flags", "dropout", "assumed"),
    [
        (("--stack", "megatron-2021"), 0.1, True),
        (("--stack", "megatron-2021", "--dropout", "0"), 0.0, False),
        (("--stack", "megatron-core"), 0.0, False),
        (("--stack", "megatron-core", "--dropout", "0.2"), 0.2, False),
    ],
)
def test_dropout_is_as_usual_with_the_stack_unless_said(meshwright, flags, dropout, assumed) -> None:
    """What `validate` takes for published runs holds for layouts typed by hand, and is said."""
    usual = "assumed: dropout 0.1, as is usual with software stack `megatron-2021`"
    for verb in (("plan",), ("estimate", "--layout", "dp8 recompute=full")):
        answer = meshwright(verb[0], *ASKED, *verb[1:], *flags, "--json")
        assert json.loads(answer.out)["question"]["dropout"] == dropout
        assert (usual in answer.err) == assumed


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
        answer = meshwright(
            "estimate", str(file), *ASKED[1:], "--layout", "dp8", "--sequence", "1024", *flags, "--json"
        )
        assert json.loads(answer.out)["question"]["dropout"] == dropout
        told = f"assumed: dropout {dropout:g}, as `resid_pdrop` of the model's config says"
        assert (told in answer.err) == (bool(said) and "--dropout" not in flags)
    file.write_text(json.dumps({"model_type": "gpt2", **sizes, "resid_pdrop": 1.5}))
    answer = meshwright("estimate", str(file), *ASKED[1:], "--layout", "dp8")
    assert (answer.code, "`resid_pdrop: 1.5` is no probability" in answer.err) == (2, True)


def test_dropout_keeps_masks_and_takes_time(meshwright) -> None:
    def price(*flags: str) -> dict[str, float]:
        answer = meshwright(
            "estimate", *ASKED, "--layout", "dp8", "--stack", "megatron-2021", "--json", *flags
        )
        found = json.loads(answer.out)["estimate"]
        return {name: found[name] for name in ("step_seconds", "peak_bytes")}

    usual, said, none = price(), price("--dropout", "0.1"), price("--dropout", "0")
    assert usual == said
    assert all(usual[name] > none[name] for name in none)


def test_a_chosen_split_is_data_too(meshwright) -> None:
    flags = ("--gpus", "8", "--global-batch", "64", "--sequence", "1024", "--json")
    for layout, chosen in (("pp2 vpp5 dp4", True), ("pp2 vpp5 dp4 layers=1*7,2*2,1", False)):
        answer = json.loads(meshwright("estimate", *ASKED[:2], *flags, "--layout", layout).out)
        assert answer["split"] == {"layers": [*[1] * 7, 2, 2, 1], "chosen": chosen}


def test_misspelt_verb(meshwright) -> None:
    answer = meshwright("paln")
    assert answer.code == 2
    assert "error: no such command `paln`. Did you mean `plan`?" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("plan", *ASKED, "--stak", "nemo"), "no such option"),
        (("plan", *ASKED, "--top", "many"), "--top: `many` is not a whole number"),
        (("paln",), "no such command"),
    ],
)
def test_flags_that_cannot_be_read_are_a_json_document_too(
    meshwright, words: tuple[str, ...], said: str
) -> None:
    answer = meshwright(*words, "--json")
    assert answer.code == 2
    error = json.loads(answer.out)["error"]
    assert said in error["headline"].lower()
    assert answer.err.startswith(f"error: {error['headline']}")
    assert "Usage: " in meshwright(*words).err


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(ValueError, match="unknown model"):
        main(["plan", "gpt3-175c", *BIG[1:], "--debug"])


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m meshwright catalog models | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_only_run_and_measuring_need_torch() -> None:
    code = (
        "import sys\n"
        "from meshwright.verbs import advise, calibrate, compare, emulate, estimate, explain, plan\n"
        "from meshwright.verbs import plot, validate, verify\n"
        "print({'torch', 'matplotlib', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
