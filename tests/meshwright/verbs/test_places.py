"""A file that an answer could not be written to is named before the work, by every verb that writes one."""

from __future__ import annotations

import pytest
from command_line import ASKED

from cost_models.flags import flags_of
from meshwright.cli.frame import VERBS, command_of
from meshwright.terminal.output import Output

ELSEWHERE = {"run", "tokens"}
"""Their -o is a folder that they make."""
WORDS: dict[str, tuple[str, ...]] = {
    "plan": ASKED,
    "estimate": (*ASKED, "--layout", "tp2"),
    "compare": ("PLAN", "tp2"),
    "reshard": ("PLAN", "tp2"),
    "plot": ("memory", "PLAN"),
    "cluster": ("--template",),
    "doctor": (),
    "export": ("PLAN", "--to", "megatron"),
    "import": ("PLAN", "gpt2-small", "dgx-a100-80gb"),
    "tokens": ("PLAN", "-o", "tokens"),
    "calibrate": ("--quick",),
    "validate": (),
    "catalog": ("models",),
    "serve": ("PLAN",),
    "report": ("PLAN",),
}
"""What each is asked; of others a plan alone."""
CASES = [
    (verb.name, flag)
    for verb in map(command_of, VERBS)
    for flag in ("--csv", "-o")
    if (flag == "--csv" and "csv" in verb.shows)
    or (flag == "-o" and (verb.out or "out" in flags_of(verb.options)) and verb.name not in ELSEWHERE)
]


@pytest.mark.parametrize(("verb", "flag"), CASES)
def test_a_place_is_tried_before_the_work(
    verb: str, flag: str, meshwright, plan_file, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(plan_file) if word == "PLAN" else word for word in WORDS.get(verb, ("PLAN",))]
    answer = meshwright(verb, *words, flag, "/proc/x.svg")
    assert answer.code == 2, answer.err
    assert "cannot be written\n" in answer.err
    assert f"{flag} /proc/x.svg: no such file or directory" in answer.err
    assert not answer.out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("quiet", [False, True])
def test_warnings_of_losses_are_always_shown(quiet: bool, capsys) -> None:
    output = Output(quiet=quiet)
    output.note("warning: the trace could not be written to x: no space left on device")
    output.note("Wrote y")
    assert ("Wrote y" in (err := capsys.readouterr().err)) != quiet
    assert "the trace could not be written" in err
