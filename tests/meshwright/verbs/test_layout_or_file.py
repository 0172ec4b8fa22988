"""What is a layout and what a file is the same for all verbs, whatever the working directory holds."""

from __future__ import annotations

import shutil

import pytest

LONG = "tp2 pp1 dp4 mbs1 zero1 layers=" + ",".join(["12"] + ["0"] * 120)
"""A name that no file can have."""


@pytest.mark.parametrize("verb", ["compare", "reshard"])
def test_a_layout_is_no_file(verb: str, meshwright, plan_file, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = meshwright(verb, str(plan_file), "tp2")
    assert expected.code == 0, expected.err
    (tmp_path / "tp2").mkdir()
    assert meshwright(verb, str(plan_file), "tp2") == expected
    (tmp_path / "tp2").rmdir()
    shutil.copy(plan_file, tmp_path / "tp2")
    assert meshwright(verb, str(plan_file), "tp2") == expected
    assert meshwright(verb, str(plan_file), "./tp2").code == 0
    shutil.copy(plan_file, tmp_path / "mine")
    assert meshwright(verb, str(plan_file), "mine").code == 0
    for word, said in ((LONG, "layers"), ("x" * 300, "is not a layout"), ("absent.yaml", "no such file")):
        answer = meshwright.refusal(verb, str(plan_file), word)
        assert said in answer
        assert "too long" not in answer
