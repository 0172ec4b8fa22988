"""The shell completes names of the catalogue and plan files, at once."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import get_args

import pytest

from cost_models.files import catalog
from cost_models.files.catalog import KINDS
from meshwright.cli import completion


@pytest.mark.parametrize("kind", get_args(catalog.Kind))
def test_the_names_are_those_of_the_catalogue(kind: catalog.Kind) -> None:
    assert tuple(completion.names(kind)) == catalog.names(kind)


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What bash is offered for the last of these words."""
    from meshwright.cli.frame import main

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
        "from meshwright.cli.frame import main\n"
        "try: main([])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'numpy', 'pandas', 'matplotlib', 'pulp', 'networkx', 'rich', 'yaml'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gpt3-175b", "set()"]


def test_all_plots_are_offered() -> None:
    from meshwright.plots.drawing import PICTURES
    from meshwright.verbs.plot import drawing  # registers them

    assert drawing
    assert set(completion.plots("")) == {kind for kinds in PICTURES.values() for kind in kinds}
