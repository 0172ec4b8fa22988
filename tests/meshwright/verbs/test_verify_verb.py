"""`verify`: exit codes, the table and the document."""

from __future__ import annotations

from pathlib import Path

from command_line import ASKED


def test_a_tampered_plan(meshwright, plan_file: Path, tmp_path: Path) -> None:
    forged = tmp_path / "forged.yaml"
    lines = plan_file.read_text().splitlines(keepends=True)
    forged.write_text("".join("  mfu: 0.99\n" if line.startswith("  mfu: ") else line for line in lines))
    document = meshwright.json("verify", str(forged))
    assert not document["verified"]
    assert [check["check"] for check in document["checks"] if not check["passed"]] == ["step"]
    assert meshwright("verify", str(forged)).out.rstrip().endswith("Not verified: 1 of 13 checks failed")


def test_a_layout_that_was_asked_for(meshwright, tmp_path: Path) -> None:
    path = tmp_path / "asked.yaml"
    assert meshwright("estimate", *ASKED, "--layout", "tp2 dp4 mbs2 zero0", "-o", str(path)).code == 0
    answer = meshwright("verify", str(path))
    assert answer.code == 0
    assert "Verified as a price: " in answer.out
