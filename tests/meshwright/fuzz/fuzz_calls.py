"""One call of the command line in this process, and what every call must keep to, whatever it was given."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any
from unittest import mock

import typer

from meshwright import cli

CPU_SECONDS = 60.0
"""A call that computes for longer never ends: the slowest take a second."""
MOST_LINES = 60
"""Of what is said of a wrong input."""
_CODES = {0: "done", 1: "the answer is no", 2: "bad input", 3: "time ran out"}
_NOT_A_NUMBER = re.compile(r"(?<![\w.`/-])-?(nan|inf)(?![\w`./-])")


@dataclass(frozen=True)
class Answer:
    """Exit code, stdout and stderr of a call."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one document of `--json`."""
        return json.loads(self.out, parse_constant=_no_number)


def call(*words: str) -> Answer:
    """Call the command line; fails where the call breaks what all calls promise."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        mock.patch.object(cli, "command_line", return_value=_command()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _ends_some_time(),
    ):
        try:
            cli.main(words)
        except SystemExit as left:
            code = left.code or 0
    answer = Answer(words, code, out.getvalue(), err.getvalue())
    _keeps_its_word(answer)
    return answer


def _keeps_its_word(answer: Answer) -> None:
    assert answer.code in _CODES, f"exit code {answer.code}"
    for said in (answer.out, answer.err):
        assert "Traceback" not in said
        odd = sorted({char for char in said if not char.isprintable() and char != "\n"})
        assert not odd, f"{odd} reach the terminal"
    if "--json" in answer.words and answer.out:
        document = answer.document
        if answer.code == 2:
            assert document["error"]["headline"]
    elif answer.code == 0:
        name, _, figures = answer.out.partition(" on ")  # a model may be called `nan`
        assert not _NOT_A_NUMBER.search(figures or name), "an answer that is no number"
    if answer.code == 2:
        assert answer.err.count("\n") <= MOST_LINES, "too many words about what is wrong"
        assert max(map(len, answer.err.split("\n"))) < 2000, "a line without end"


_COMMAND_LINE = cli.command_line


@cache
def _command() -> Any:
    """Built once: typer builds it anew at every call, which takes longer than most calls."""
    return typer.main.get_command(_COMMAND_LINE())


@contextlib.contextmanager
def _ends_some_time() -> Iterator[None]:
    """Fails what takes so much CPU that it will not end; on a busy machine nothing is different."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"more than {CPU_SECONDS:.0f} s of CPU")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _no_number(written: str) -> None:
    raise AssertionError(f"{written} is no JSON")
