"""The command line in this process: a test needs another one only for pipes, signals and what is imported."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from cost_models.errors import InputError


class Answer(NamedTuple):
    """Exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Stdout on one line."""
        return " ".join(self.out.split())


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Answer:
    """What `meshwright` with these words answers."""
    from meshwright.cli import main

    try:
        main(words)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    return Answer(code, *capsys.readouterr())


def refusal(call: Callable[..., object], *values: object, **named: object) -> str:
    """Headline, problems and hint of the `InputError` that a call ends with."""
    with pytest.raises(InputError) as caught:
        call(*values, **named)
    return str(caught.value)


class CommandLine:
    """The command line, called with words."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Answer:
        return told(self._capsys, *words)

    def done(self, *words: str) -> Answer:
        """The answer of a call that ends with exit code 0."""
        answer = self(*words)
        assert answer.code == 0, answer.err
        return answer

    def json(self, *words: str) -> Any:
        """The document that `--json` prints."""
        return json.loads(self(*words, "--json").out)

    def refusal(self, *words: str, code: int = 2) -> str:
        """Stderr on one line, of a call that ends with this exit code."""
        answer = self(*words)
        assert answer.code == code, answer
        return " ".join(answer.err.split())
