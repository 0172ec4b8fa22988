"""The end of a wait says how long it was."""

from __future__ import annotations

import re

from meshwright.terminal import progress


def test_a_long_wait_ends_with_how_long_all_of_it_was(capsys, monkeypatch) -> None:
    """A certificate has the seconds of the search; who waits also waits for imports, reading and prices."""
    monkeypatch.setattr(progress, "PATIENCE_SECONDS", 3600.0)
    reporter = progress.Reporter(visible=False)
    reporter._appear()
    reporter.close()
    found = re.search(r"([\d.]+) (ms|s|min) in all", capsys.readouterr().err)
    assert found
    assert progress.seconds_in_all() > 0


def test_a_short_one_says_nothing(capsys) -> None:
    progress.Reporter(visible=False).close()
    assert capsys.readouterr().err == ""
