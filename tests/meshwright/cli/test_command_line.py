"""The frame of the command line: help, what is imported, what is assumed, what the shell completes.

What is said of mistakes is among the frozen answers (`refused` and `errors` of `tests/golden/questions.yaml`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import get_args

import pytest
from command_line import ASKED, BIG

from cost_models.documents import Document
from cost_models.files import catalog
from cost_models.files.catalog import KINDS
from cost_models.flags import flags_of
from cost_models.hugging_face.config import read_config
from meshwright.cli import completion, main
from meshwright.explorer import ExploreOptions
from meshwright.families.transformer.plan import odd_count_note
from meshwright.render.words import change_words, percent
from meshwright.verbs.forecast import ForecastOptions
from meshwright.verbs.plot import PlotOptions
from meshwright.verbs.report import ReportOptions


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


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m meshwright catalog models | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_an_odd_number_of_gpus_gets_a_hint(certificate) -> None:
    assert odd_count_note(72, certificate) == ""
    assert odd_count_note(70, certificate).endswith("--gpus 64 or 72 has more")


def test_rounding_is_no_change() -> None:
    assert change_words(percent, "share", 0.0001, 0.00005) == "same"
    assert change_words(percent, "share", 0.2, 0.25) == "+5.0 pt"
    assert change_words(str, "seconds", 1.0, 17.2) == "17x"
    assert change_words(str, "seconds", 0.0, 1.0) == "new"


@pytest.mark.parametrize(
    ("folder", "name"), [("w", "llama-4x256"), ("Llama-3-8B", "Llama-3-8B"), ("model", "llama-4x256")]
)
def test_a_folder_names_a_model_only_where_it_says_a_size(folder: str, name: str) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "vocab_size": 1000,
    }
    document, _ = read_config(Document(source=f"/tmp/{folder}/config.json", value=config))
    assert document.value["name"] == name


@pytest.mark.parametrize("name", ["tokens", "operations"])
def test_a_job_and_its_failures_are_said_alike_in_every_verb(name: str) -> None:
    here = flags_of(ForecastOptions)[name]
    assert [flags_of(one)[name] for one in (ReportOptions, PlotOptions, ExploreOptions)] == [here] * 3


@pytest.mark.parametrize("kind", get_args(catalog.Kind))
def test_the_names_are_those_of_the_catalogue(kind: catalog.Kind) -> None:
    assert tuple(completion.names(kind)) == catalog.names(kind)


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash is offered for the last of these words."""
    from meshwright.cli import main

    for name, value in (
        ("_MESHWRIGHT_COMPLETE", "complete_bash"),
        ("COMP_WORDS", words),
        ("COMP_CWORD", str(words.count(" "))),
    ):
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("meshwright pla", ["plan"]),
        ("meshwright plan gpt3", ["gpt3-175b"]),
        ("meshwright estimate gpt3-175b dgx-h", ["dgx-h100"]),
        ("meshwright plan gpt3-175b dgx-h100,hgx-h2", ["dgx-h100,hgx-h200", "dgx-h100,hgx-h20"]),
        ("meshwright plan --stack torch", ["torchrec", "torchtitan", "torchtune"]),
        ("meshwright plan --profile h100-m", ["h100-megatron-core"]),
        ("meshwright catalog models llama3.1-4", ["llama3.1-405b"]),
        ("meshwright plot fr", ["frontier"]),
        ("meshwright plan --glo", ["--global-batch"]),
    ],
)
def test_what_is_offered(words: str, offered: list[str], monkeypatch, capsys) -> None:
    assert completed(words, monkeypatch, capsys) == offered


@pytest.mark.timeout(60)
def test_plans_are_offered_and_no_other_file(plan_file, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "plan.yaml").write_bytes(plan_file.read_bytes())
    (tmp_path / "cluster.yaml").write_text("kind: cluster\n")
    (tmp_path / "plans").mkdir()
    (tmp_path / ".hidden").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")  # which nobody writes to
    monkeypatch.chdir(tmp_path)
    assert completed("meshwright explain ", monkeypatch, capsys) == ["plan.yaml", "plans/"]
    found = completed(f"meshwright explain {tmp_path}/pl", monkeypatch, capsys)
    assert found == [f"{tmp_path}/plan.yaml", f"{tmp_path}/plans/"]
    assert completion.plans("nowhere/x") == []
    assert completion.clusters("clus") == ["cluster.yaml"]


def test_schemas_are_offered() -> None:
    offered = completion.entries(SimpleNamespace(params={"kind": "schema"}), "")  # type: ignore[arg-type]
    assert set(offered) - {"model"} == set(KINDS) - {"transformer"}


def test_completing_imports_nothing_heavy() -> None:
    code = (
        "import os, sys\n"
        "os.environ |= {'_MESHWRIGHT_COMPLETE': 'complete_bash', 'COMP_CWORD': '2'}\n"
        "os.environ['COMP_WORDS'] = 'meshwright plan gpt3'\n"
        "from meshwright.cli import main\n"
        "try: main([])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'numpy', 'pandas', 'matplotlib', 'pulp', 'networkx', 'rich', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gpt3-175b", "set()"]


def test_all_plots_are_offered() -> None:
    from meshwright.plots import pictures  # registers them
    from meshwright.plots.drawing import PICTURES

    assert pictures
    assert set(completion.plots("")) == {kind for kinds in PICTURES.values() for kind in kinds}
