"""`verify`: exit codes, the table and the document."""

from __future__ import annotations

from pathlib import Path

from command_line import ASKED


def test_a_tampered_plan(meshwright, plan_file, tmp_path) -> None:
    forged = tmp_path / "forged.yaml"
    lines = plan_file.read_text().splitlines(keepends=True)
    forged.write_text("".join("  mfu: 0.99\n" if line.startswith("  mfu: ") else line for line in lines))
    assert failed_checks(meshwright, forged) == ["step"]
    assert meshwright("verify", str(forged)).out.rstrip().endswith("Not verified: 1 of 13 checks failed")


def failed_checks(meshwright, path: Path) -> list[str]:
    """Names of the checks that a plan does not pass."""
    return [check["check"] for check in meshwright.json("verify", str(path))["checks"] if not check["passed"]]


def test_a_layout_that_was_asked_for(meshwright, tmp_path) -> None:
    """Its price is checked; one that is too large fails in that alone."""
    path, large = tmp_path / "asked.yaml", ("gpt2-xl", "gce-g2", *ASKED[2:], "--layout", "dp8 mbs2 zero0")
    assert meshwright("estimate", *ASKED, "--layout", "tp2 dp4 mbs2 zero0", "-o", str(path)).code == 0
    answer = meshwright("verify", str(path))
    assert answer.code == 0
    assert "Verified as a price: " in answer.out
    assert meshwright("estimate", *large, "-o", str(path)).code == 1
    assert failed_checks(meshwright, path) == ["fits"]
