"""The guides for those who add something, followed in a copy of the tree: what they show is put in its place, used as
they say, and the tests that they name pass."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from effort import THOROUGH

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
JOB = "--gpus 4 --global-batch 16 --sequence 1024"


def block(page: str, language: str) -> str:
    """The first block of a page in a language."""
    return (GUIDES / page).read_text("utf-8").partition(f"```{language}\n")[2].partition("```")[0]


def added(file: Path, lines: str, below: str = "", above: str = "") -> None:
    """Write lines into a file, below or above a text that stands there once."""
    text, place = file.read_text("utf-8"), below + above
    assert text.count(place) == 1, f"{file} has no one place like {place!r}"
    file.write_text(text.replace(place, below + lines + above), "utf-8")


def add_gpu(tree: Path) -> None:
    (tree / "cost_models/data/gpus/ours.yaml").write_text(block("adding-a-gpu.md", "yaml"), "utf-8")


def add_schedule(tree: Path) -> None:
    record = block("adding-a-schedule.md", "python").partition("ALL_FIRST = ")[2]
    added(tree / "cost_models/schedules/registry.py", f"    {record.rstrip()},\n", "_SCHEDULES = (\n")
    added(tree / "cost_models/data/stacks/zero/torchtitan.yaml", "all-first, ", "\nschedules: [")


def add_exporter(tree: Path) -> None:
    """DeepSpeed's, which the guide calls the shortest, under another name, and no reader of its files."""
    formats = tree / "planner/formats"
    shutil.copy(formats / "arguments/deepspeed.csv", formats / "arguments/ours.csv")
    source = (formats / "deepspeed.py").read_text("utf-8")
    assert source.count('Target("deepspeed", "DeepSpeed 0.19.8"') == 1
    target = source.replace('Target("deepspeed", "DeepSpeed 0.19.8"', 'Target("ours", "Ours 1.0"')
    (formats / "ours.py").write_text(target, "utf-8")
    added(formats / "trainers.py", '\nTRAINERS["ours"] = DEEPSPEED', '"axolotl": AXOLOTL}')
    added(formats / "registry.py", '\n_TARGETS["ours"] = "ours:TARGET"', '"axolotl": "fsdp2:AXOLOTL"}')
    exports = tree / "tests/planner/formats/test_transformer_exports.py"
    shown = re.search(
        r"\n@pytest.+, (\w+)\)\ndef test_a_rule_refuses_in_its_words", exports.read_text("utf-8")
    )
    assert shown is not None
    broken = f'\n{shown[1]} += [("ours", *case) for name, *case in {shown[1]} if name == "deepspeed"]\n\n'
    added(exports, broken, above=shown[0])
    target = "from planner.formats import ours\nTARGETS['ours'] = replace(TARGETS['deepspeed'], target=ours.TARGET)\n"
    with (tree / "benchmarks/exporters/targets.py").open("a", encoding="utf-8") as file:
        file.write(f"from dataclasses import replace\n{target}")
    unread = '\nTARGETS = {name: one for name, one in TARGETS.items() if name != "ours"}\n\n'
    added(
        tree / "tests/planner/formats/test_round_trips.py",
        unread,
        above='\n@pytest.mark.parametrize("name", TARGETS)',
    )
    usual = '    "ours": "tp2 pp2 dp2 mbs1 zero1 layers=16*2",\n'
    added(exports, usual, below="\nUSUAL = {\n")
    added(exports, '"ours", ', below="\nMODEL_ELSEWHERE = (")


def add_family(tree: Path) -> None:
    entry = block("adding-an-axis.md", "yaml").partition("dense:\n")[2]
    added(tree / "cost_models/data/hugging_face/families.yaml", entry, "\ndense:\n")
    config = {"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 512}
    config |= {"model_type": "our_llama", "vocab_size": 1000, "hidden_act": "silu"}
    (tree / "config.json").write_text(json.dumps(config), "utf-8")


ASKED = f"gpt2-small dgx-h100 {JOB} --stack torchtitan"
ADDED = {
    "adding-a-gpu.md": (add_gpu, ["catalog gpus our-gpu"]),
    "adding-a-schedule.md": (
        add_schedule,
        [
            f'estimate {ASKED} --layout "pp4 mbs1 schedule=all-first"',
            f"plan {ASKED} --fix schedule=all-first --fix pp=2",
        ],
    ),
    "adding-an-exporter.md": (
        add_exporter,
        [
            f"plan gpt2-small dgx-h100 {JOB} --for ours --fix tp=1 --fix pp=1 -o plan.yaml",
            "export plan.yaml --to ours",
        ],
    ),
    "adding-an-axis.md": (add_family, [f'estimate config.json dgx-h100 {JOB} --layout "dp4 mbs1"']),
}
"""Guide → how it is followed, and commands that then have an answer. `test_what_an_axis_touches.py` adds an axis."""
QUICK = {
    "adding-a-gpu.md": "tests/cost_models/specs/test_clusters.py",
    "adding-a-schedule.md": "tests/cost_models/schedules/test_actions.py",
    "adding-an-exporter.md": "tests/planner/formats/test_transformer_exports.py -k rule_is_shown",
    "adding-an-axis.md": "tests/cost_models/hugging_face",
}
"""Of the tests that a guide names, those of every run; all of them in a thorough one."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("guide", ADDED)
def test_what_a_guide_shows_works_and_passes_the_tests_that_it_names(guide: str, tmp_path) -> None:
    tree, (add, commands) = tmp_path / "tree", ADDED[guide]
    for name in ("cost_models", "planner", "executor", "meshwright", "tests", "docs", "benchmarks", "tools"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    add(tree)
    named = re.search(r"`python -m pytest ([^`]+)`", " ".join((GUIDES / guide).read_text("utf-8").split()))
    assert named is not None
    assert QUICK[guide].startswith(tuple(named[1].split()))
    tests = named[1] if THOROUGH else QUICK[guide]
    steps = [f"meshwright {command}" for command in commands]
    for step in (*steps, f"pytest -q -x -p no:cacheprovider -n {2 if THOROUGH else 0} {tests}"):
        environment = {name: value for name, value in os.environ.items() if name != "THOROUGH"}
        environment |= {"PYTHONPATH": str(tree), "PYTEST_ADDOPTS": ""}
        done = subprocess.run(
            f"{sys.executable} -m {step}",
            shell=True,
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{step}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
