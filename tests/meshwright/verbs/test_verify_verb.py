"""`verify`: exit codes, the table and the document."""

from __future__ import annotations

import re
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


def test_a_plan_that_misses_its_deadline(meshwright, tmp_path) -> None:
    path = tmp_path / "plan.yaml"
    goal = ("--objective", "gpus", "--tokens", "1B", "--deadline", "10d", "--fix", "tp=1", "--fix", "pp=1")
    assert meshwright("plan", *ASKED, *goal, "-o", str(path)).code == 0
    text = path.read_text("utf-8")
    path.write_text(re.sub(r"deadline: .*", "deadline: 1 min", text), "utf-8")
    assert "it misses its deadline" in " ".join(meshwright("verify", str(path)).out.split())


def test_a_plan_without_its_end_is_refused(meshwright, plan_file, tmp_path) -> None:
    """A file that was cut between two fields is valid YAML all the same."""
    cut = tmp_path / "cut.yaml"
    cut.write_text(plan_file.read_text("utf-8").removesuffix("...\n"), "utf-8")
    assert "is cut short" in meshwright.refusal("verify", str(cut))
