"""Answers of every verb, committed as text: a change to any of them shows here as a diff.

python tests/golden/test_frozen.py [VERB ...]        rewrites frozen/ after a deliberate change

`questions.yaml` has the command lines. They run in this process, in a folder with the files of `inputs/`, and what one
wrote is there for the next. An answer is `frozen/VERB/NAME.txt`, or `.json` where stdout is a document, with the files
that it wrote beside it (`NAME.FILE`; pages without their tags). Pictures are not compared: tests of plots draw them.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from meshwright.cli import main

HERE = Path(__file__).parent
FROZEN, INPUTS = HERE / "frozen", HERE / "inputs"
QUESTIONS = {
    (verb, name): words
    for verb, named in yaml.safe_load((HERE / "questions.yaml").read_text("utf-8")).items()
    for name, words in named.items()
}
NO_TEXT = (".svg", ".png", ".bin")
DIGITS = 9
"""Of a figure that are compared: the last ones differ from processor to processor."""

_FLOAT = re.compile(r"(?<![\w.])-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)(?![\w.])")
_PARAGRAPH = re.compile(r"^\S.*(?:\n  +\S.*)*", re.MULTILINE)
_TOOK = re.compile(
    r"((?:proved|proved (?:optimal )?under the cost model[^;:]*|the (?:lowest|highest),|layouts?|searches) in )"
    r"[\d.,]+ (?:us|ms|s)\b",
    re.IGNORECASE,
)
_CERTIFIED = re.compile(r'("gap": [^{}]*(?:\{[^{}]*\}[^{}]*)?"seconds": )[-+.\de]+')


def normalised(text: str, folder: Path) -> str:
    """What another run on another machine prints as well.

    A search says how long it took: in words, whose lines are joined, as its width folds them, and in the certificate of
    a document. A folder has a name of the day, a plan the version that wrote it, a report that of torch. Floats keep
    nine digits.
    """
    text = text.replace(str(folder), "FOLDER")
    text = re.sub(r"(?<=meshwright_version: )\S+", "VERSION", text)
    text = re.sub(r"(Written by Meshwright |this Meshwright \()\d+(\.\w+)*", r"\g<1>VERSION", text)
    text = re.sub(r'(?<="torch": ")[^"]+', "VERSION", text)
    text = _CERTIFIED.sub(r"\g<1>0.0", text)
    text = _PARAGRAPH.sub(lambda found: _without_time(found[0]), text)
    return _FLOAT.sub(lambda found: _rounded(found[0]), text)


def _without_time(paragraph: str) -> str:
    """ "gap 0 %, 94.5 ms" → "gap 0 %, TIME"; paragraphs that say no such thing stay as they are."""
    joined = re.sub(r"\n  +", " ", paragraph)
    changed = _TOOK.sub(r"\g<1>TIME", joined)
    return paragraph if changed == joined else changed


def _rounded(figure: str) -> str:
    """ "0.30000000000000004" → "0.3"; what has few digits stays as it is."""
    digits = figure.lower().partition("e")[0].replace(".", "").lstrip("-0")
    if len(digits) <= DIGITS:
        return figure
    short = f"{float(figure):.{DIGITS}g}"
    return short if "." in short or "e" in short else f"{short}.0"


class _Words(HTMLParser):
    """The text of a page, a line for each piece, without pictures and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in ("svg", "style", "script")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("svg", "style", "script")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.lines += [line.rstrip() for line in data.splitlines() if line.strip()]


def text_of(file: Path) -> str:
    """What is compared of a file that was written."""
    if file.suffix != ".html":
        return file.read_bytes().decode("utf-8", "backslashreplace")
    page = _Words()
    page.feed(file.read_text("utf-8"))
    return "\n".join(page.lines) + "\n"


@dataclass
class Session:
    """A folder in which questions are asked, each once and after those whose files it names."""

    folder: Path
    asked: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)

    @cached_property
    def writers(self) -> dict[str, tuple[str, str]]:
        """File → the question that writes it."""
        found = {}
        for question, words in QUESTIONS.items():
            split = shlex.split(words)
            for flag, file in pairwise(split):
                if flag in ("-o", "--csv"):
                    found[file] = question
        return found

    def answer(self, question: tuple[str, str]) -> dict[str, str]:
        """File under `frozen/VERB/` → what it should have."""
        if question not in self.asked:
            words = shlex.split(QUESTIONS[question])
            needed = [self.writers[word] for word in words if self.writers.get(word, question) != question]
            for earlier in needed:
                self.answer(earlier)
            self.asked[question] = self._ask(question[1], words)
        return self.asked[question]

    def _ask(self, name: str, words: list[str]) -> dict[str, str]:
        before = set(self.folder.rglob("*"))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.chdir(self.folder))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            stack.enter_context(slow_clock())
            try:
                main(words)
                code = 0
            except SystemExit as left:
                code = int(left.code or 0)
        printed, document = out.getvalue(), "--json" in words
        shown = [f"$ meshwright {shlex.join(words)}\n", "" if document else printed]
        shown += [f"--- stderr\n{err.getvalue()}"] if err.getvalue() else []
        found = {f"{name}.txt": "".join([*shown, f"--- exit code {code}\n"])}
        if document:
            found[f"{name}.json"] = printed
        for file in sorted(set(self.folder.rglob("*")) - before):
            if file.is_file() and file.suffix not in NO_TEXT:
                kept = f"{name}.{'.'.join(file.relative_to(self.folder).parts)}"
                found[f"{kept}.txt" if file.suffix == ".py" else kept] = text_of(file)
        return {file: normalised(text, self.folder) for file, text in found.items()}


@contextlib.contextmanager
def slow_clock() -> Iterator[None]:
    """Searches have a thousand times their time, so that what they find does not hang on how busy the machine is."""
    clock, began = time.monotonic, time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: began + (clock() - began) / 1000)
        yield


@contextlib.contextmanager
def session() -> Iterator[Session]:
    """On a terminal of eighty columns without colours, whatever the real one is."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.setenv("NO_COLOR", "1")
        folder = Path(name).resolve()
        shutil.copytree(INPUTS, folder, dirs_exist_ok=True)
        yield Session(folder)


@pytest.fixture(scope="module")
def answers() -> Iterator[Session]:
    with session() as found:
        yield found


def committed(question: tuple[str, str]) -> dict[str, str]:
    verb, name = question
    files = (FROZEN / verb).glob(f"{name}.*")
    return {file.name: file.read_bytes().decode("utf-8") for file in files}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: "-".join(question))
def test_the_answer_is_the_same(answers: Session, question: tuple[str, str]) -> None:
    before, now = committed(question), answers.answer(question)
    told = []
    for file in sorted(before.keys() | now.keys()):
        old, new = (one.get(file, "").splitlines(keepends=True) for one in (before, now))
        told += difflib.unified_diff(old, new, f"frozen/{question[0]}/{file}", "now", n=1)
    assert before == now, "".join(told)[:8000]


if __name__ == "__main__":
    with session() as asking:
        for verb in {verb: None for verb, _ in QUESTIONS}:
            if len(sys.argv) == 1 or verb in sys.argv[1:]:
                shutil.rmtree(FROZEN / verb, ignore_errors=True)
        for asked in QUESTIONS:
            if len(sys.argv) > 1 and asked[0] not in sys.argv[1:]:
                continue
            began = time.process_time()
            for file, text in asking.answer(asked).items():
                (FROZEN / asked[0]).mkdir(parents=True, exist_ok=True)
                (FROZEN / asked[0] / file).write_bytes(text.encode("utf-8"))
            print(f"{time.process_time() - began:6.2f} {'/'.join(asked)}")
