"""The command line in this process: a test needs another one only for pipes, signals and what is imported."""

from __future__ import annotations

from typing import NamedTuple

import pytest


class Answer(NamedTuple):
    """Exit code, stdout and stderr."""

    code: int
    out: str
    err: str


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Answer:
    """What `meshwright` with these words answers."""
    from meshwright.cli.frame import main

    try:
        main(words)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    return Answer(code, *capsys.readouterr())
