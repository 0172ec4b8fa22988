"""What `import meshwright` offers: the same answers as the command line."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.cli import typer_function
from meshwright.terminal.output import as_json
from meshwright.verbs.run import run_command

ROOT = Path(__file__).parents[3]
TRAINING = {"global_batch": 64, "sequence_length": 1024}


def test_every_public_name_exists() -> None:
    assert dir(mw) == sorted(mw.__all__)
    assert all(getattr(mw, name) is not None for name in mw.__all__)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="plam"):
        _ = mw.plam


def test_importing_costs_nothing() -> None:
    code = "import sys, meshwright; print({'numpy', 'pydantic', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_specs_tell_what_they_are_made_of_before_any_value_is_made() -> None:
    """Editors and notebooks ask for the signature; importing builds no validator for it."""
    lines = (
        "import inspect, meshwright as mw; from cost_models.base import Spec",
        "specs = [mw.TrainingSpec, mw.ClusterSpec, mw.TransformerSpec]",
        "print(*(spec.__pydantic_complete__ for spec in specs))",
        "print(*(len(inspect.signature(spec).parameters) == len(spec.model_fields) for spec in specs))",
    )
    answer = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["False"] * 3 + ["True"] * 3


@pytest.mark.timeout(900)
def test_types_are_those_that_the_readme_shows(tmp_path) -> None:
    """A checker of types finds every name of README's Python block, and what its calls return."""
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert block is not None
    script = tmp_path / "readme.py"
    script.write_text(block[1] + "reveal_type(planned.explain())\nplanned.no_such_method()\n")
    options = ("--config-file=", "--strict", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(script)],
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    shown, missing, _ = (line.partition(": ")[2] for line in done.stdout.splitlines())
    assert shown == 'note: Revealed type is "str"', done.stdout
    assert '"PlanAnswer" has no attribute "no_such_method"' in missing


def test_plan_answers(tmp_path) -> None:
    answer = mw.plan("gpt2-small", "dgx-a100-80gb", mw.TrainingSpec(**TRAINING), top=3, time_limit=20)
    frame = answer.to_frame()
    assert len(frame) == 3
    assert frame["step_seconds"].is_monotonic_increasing
    html = answer._repr_html_()
    assert "train with" in html
    assert html.count("<tr>") == 1 + 3  # the ranking is a table
    assert f'<td style="text-align: left">{answer.best.layout.brief}</td>' in html
    assert "proved optimal" in repr(answer)
    assert max(map(len, repr(answer).splitlines())) <= 80
    answer.save(tmp_path / "plan.yaml")
    assert mw.load_plan(tmp_path / "plan.yaml").layout == answer.best.layout
    assert "Bottleneck: " in answer.explain()
    assert answer.why_not("tp16").startswith("`tp16` cannot run")


def test_a_job_is_a_mapping_a_spec_or_keywords() -> None:
    asked, layout = ("gpt2-small", "dgx-a100-80gb"), "tp1"
    answer = mw.estimate(*asked, TRAINING, layout)
    assert repr(mw.estimate(*asked, mw.TrainingSpec(**TRAINING), layout)) == repr(answer)
    assert repr(mw.estimate(*asked, global_batch=64, sequence=1024, layout=layout)) == repr(answer)
    with pytest.raises(mw.InputError, match="unknown field `tokenz`; did you mean `tokens`"):
        mw.plan(*asked, TRAINING | {"tokenz": 3})
    with pytest.raises(TypeError, match=r"^plan\(\) got an unexpected keyword argument 'gpu'"):
        mw.plan(*asked, gpu=8)  # type: ignore[call-arg]


def test_runs_are_asked_for_alike_in_python_and_in_words() -> None:
    """Every flag of the verb that says how to train is a keyword of the function, with the same default."""
    flags = inspect.signature(typer_function(run_command)).parameters
    keywords = inspect.signature(mw.run).parameters
    of_the_terminal = {"dry_run", "json", "csv", "quiet"}
    of_python = {"plan", "on_step", "on_note", "name", "warm_up", "waiting_steps", "measure_memory"}
    assert flags.keys() - of_the_terminal - {"plan"} == keywords.keys() - of_python
    both = flags.keys() & keywords.keys()  # words of the terminal are text
    pairs = {name: (flags[name].default, keywords[name].default) for name in both}
    assert {name for name, (flag, ours) in pairs.items() if flag != ours and flag != str(ours)} == {"out"}


def test_a_run_is_told_of_shown_beside_its_prediction_and_leaves_what_was_asked_for(tmp_path) -> None:
    training = mw.TrainingSpec(global_batch=2, sequence_length=16, precision="fp32")
    told: list[float] = []
    ran = mw.run(
        mw.estimate("gpt2-nano", "local", training, "mbs1", gpus=1),
        steps=2,
        learning_rate=1e-2,
        rate_warm_up=2,
        rate_decay=4,
        clip=1.0,
        seed=3,
        out=tmp_path,
        trace=tmp_path / "trace.json",
        checkpoint=tmp_path / "saved",
        on_step=lambda step: told.append(step["loss"]),
    )
    assert tuple(told) == ran.losses
    assert len(told) == 4
    assert {"step_seconds", "mfu", "peak_bytes"} <= set(ran.to_frame()["quantity"])
    assert "<table" in ran._repr_html_()
    assert repr(ran).split()[:3] == ["predicted", "measured", "error"]
    assert "traceEvents" in (tmp_path / "trace.json").read_text()
    (saved,) = (tmp_path / "saved").glob("step-*/manifest.json")
    progress = json.loads(saved.read_text())["checkpoint"]["progress"]
    assert progress["descent"] == {"peak": 0.01, "warm_up": 2, "decay": 4, "clip": 1.0, "compiled": False}
    assert (progress["seed"], progress["learning_rate"]) == (3, pytest.approx(1e-3))


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
