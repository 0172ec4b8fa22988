"""Runs the console blocks of a page and sets what is printed beside what the page says.

A page is one session: its commands run from the first to the last in one folder, where its YAML stands as files
(`name: box` as `box.yaml`). A comment on the line before a block says more of it:

    <!-- file: mine.csv -->               the block is this file; or lines after the name are, not shown
    <!-- first: meshwright plan ... -->   a command that the page leaves out; several lines may say one each
    <!-- not compared: WHY -->            it is run, and what it prints is not what the page shows
    <!-- not run: WHY -->                 neither

`python tests/docs/console_blocks.py [--measured] PAGE ...` runs pages and puts what is printed in the place of what has
changed; with `--measured` also where nothing is compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"((?:^<!--(?:(?!-->).)*-->\n)*)^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!-- (file|first|not compared|not run): ((?:(?!-->).)*) -->", re.DOTALL)
_HIDDEN_FILE = re.compile(r"^<!-- file: (\S+)\n(.*?)-->$", re.MULTILINE | re.DOTALL)
_UNITS = r"(?: ?(?:%|[munµ]?s|min|h|d|[KMGT]?i?B|[kMGT]?FLOP/s|pt|x)\b| ?%)?"
_ASIDE = re.compile(r"^(?:error|warning|note|hint|more|assumed|Wrote|Next)\b", re.MULTILINE)
"""How lines of stderr begin."""
_FIGURE = re.compile(rf"(?<![\w@*=.,:-])[-+±]?\d[\d,.]*{_UNITS}")
"""A number with its unit that stands for itself; those of a layout (`tp8`, `layers=2*7`) are words."""
_TOOK = re.compile(
    r"(?<= in )\d[\d.,]* (?:us|ms|s|min)\b(?! a)|(?<=, highs, )\d[\d.,]* m?s|\d+(?= searches in )"
)
"""How long a search itself took, and how many there was time for: no two machines agree."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command, and the lines that the page has below it."""

    command: str
    shown: str = ""
    line: int = 0
    """Of the block, in the page."""
    start: int = 0
    """Where `shown` begins in the text of the page."""
    not_run: str = ""
    not_compared: str = ""
    hidden: bool = False


@dataclass(kw_only=True)
class Outcome:
    """What a command printed."""

    code: int = 0
    out: str = ""
    both: str = ""
    """stdout and stderr, in the order in which they came."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def steps(text: str) -> Iterator[Step]:
    """Every command of a page, hidden ones in their places."""
    for block in _BLOCK.finditer(text):
        if block[2] != "console":
            continue
        said = dict(_COMMENT.findall(block[1]))
        line = text[: block.start(2)].count("\n") + 1
        for kind, command in _COMMENT.findall(block[1]):
            if kind == "first":
                yield Step(command=command, line=line, hidden=True)
        for part in re.finditer(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block[3], re.MULTILINE):
            yield Step(
                command=part[1].replace("\\\n", " "),
                shown=part[2],
                line=line,
                start=block.start(3) + part.start(2),
                not_run=said.get("not run", ""),
                not_compared=said.get("not compared", ""),
            )


def files(text: str) -> dict[str, str]:
    """The YAML of a page that has a name, and the blocks that a comment calls files."""
    found = dict(_HIDDEN_FILE.findall(text))
    for block in _BLOCK.finditer(text):
        name = re.search(r"^name: (\S+)$", block[3], re.MULTILINE)
        called = dict(_COMMENT.findall(block[1])).get("file")
        if called or (block[2] == "yaml" and name):
            found[called or f"{name[1]}.yaml"] = block[3]  # type: ignore[index]
    return found


def play(page: Path, folder: Path) -> Iterator[tuple[Step, Outcome]]:
    """Run a page in a folder; a step that is not run has no outcome to speak of."""
    text = page.read_text("utf-8")
    for name, content in files(text).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content, "utf-8")
    with contextlib.chdir(folder):
        for step in steps(text):
            if not step.not_run:
                yield step, _run(step)


def _run(step: Step) -> Outcome:
    program, *words = shlex.split(step.command, comments=True)
    if program == "cat":  # the page shows a file that it goes on to use
        Path(words[0]).write_text(step.shown, "utf-8")
        return Outcome(out=step.shown, both=step.shown)
    if program != "meshwright":
        return Outcome(problems=[f"`{program}` is not run here: say <!-- not run: WHY --> above the block"])
    from meshwright.cli import main

    out, both = _Tee(), io.StringIO()
    out.other = both
    found = Outcome()
    began = time.perf_counter()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(both):
        try:
            main(words)
        except SystemExit as stop:
            found.code = int(stop.code or 0)
    found.seconds = time.perf_counter() - began
    found.out, found.both = out.getvalue(), both.getvalue()
    return found


class _Tee(io.StringIO):
    other: io.StringIO

    def write(self, text: str) -> int:
        self.other.write(text)
        return super().write(text)


def complaints(step: Step, found: Outcome) -> list[str]:
    """What is not as the page says; nothing where all is."""
    where = f"line {step.line}: $ {step.command}"
    if found.problems:
        return [f"{where}\n{problem}" for problem in found.problems]
    expects_error = bool(re.search(r"^error: ", step.shown, re.MULTILINE))
    allowed = (1, 2) if expects_error else (0, 1) if step.shown.strip() else (0,)
    if found.code not in allowed:
        return [f"{where}\nexit code {found.code}\n{found.both}"]
    if step.hidden or step.not_compared or not step.shown.strip():
        return []
    if any(_matches(step.shown, printed) for printed in (found.out, found.both)):
        return []
    return [f"{where}\nthe page says\n{_words(step.shown)}\nand it prints\n{_words(found.both)}"]


def _words(text: str) -> str:
    """Words and figures in their order, however they are parted; how long a search took is one sign."""
    return _TOOK.sub("#", " ".join(text.split()))


def _matches(shown: str, printed: str) -> bool:
    """Whether all is there, but for what lines of `...` leave out."""
    parts = [_words(part) for part in re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)]
    pattern = r".*".join(re.escape(part) if part else "" for part in parts)
    return re.fullmatch(rf"\s*{pattern}\s*".replace(r".*", r"\s*.*"), _words(printed), re.DOTALL) is not None


def refilled(shown: str, printed: str) -> str | None:
    """What is printed, with `...` where the page has it; None where a part no longer begins or ends as on the page."""
    lines, at = printed.splitlines(keepends=True), 0
    taken: list[str] = []
    parts = [part.splitlines() for part in re.split(r"^\.\.\.\n", shown, flags=re.MULTILINE)]
    for number, part in enumerate(parts):
        taken += ["...\n"] * (number > 0)
        if not part:
            continue
        told = [line for line in part if not line.startswith("  ")] or part[:1]
        first = 0 if number == 0 else _find(lines, told[0], at)
        last = len(lines) - 1 if number == len(parts) - 1 else None
        if last is None and first is not None:
            alike = sum(_beginning(line) == _beginning(told[-1]) for line in told)
            last = _find(lines, told[-1], first, alike)
            while last is not None and last + 1 < len(lines) and lines[last + 1].startswith("  "):
                last += 1
        if first is None or last is None:
            return None
        taken += lines[first : last + 1]
        at = last + 1
    return "".join(taken)


def _find(lines: list[str], wanted: str, start: int, count: int = 1) -> int | None:
    """The line from `start` on that is the so many-th to begin alike."""
    found = [at for at in range(start, len(lines)) if _beginning(lines[at]) == _beginning(wanted)]
    return found[count - 1] if len(found) >= count else None


def _beginning(line: str) -> str:
    """What tells a line from others: the first words of its first column."""
    return " ".join(_FIGURE.sub("#", re.split(r"\s{2,}", line.strip())[0]).split()[:3])


def rewrite(page: Path, *, measured: bool) -> list[str]:
    """Run a page and put what it prints in the place of what has changed; what could not be done is said."""
    text = page.read_text("utf-8")
    changed, left = [], []
    with tempfile.TemporaryDirectory(prefix="meshwright-page-") as folder:
        for step, found in play(page, Path(folder)):
            print(f"{page.name}:{step.line} {found.seconds:6.1f} s  {step.command[:90]}")
            told = complaints(step, found)
            printed = refilled(step.shown, found.both if _ASIDE.search(step.shown) else found.out)
            anew = measured and step.not_compared and step.shown.strip() and not step.hidden
            if not told and not anew:
                continue
            if found.problems or step.hidden or printed is None or "exit code" in "".join(told):
                left += told
            else:
                changed.append((step, printed))
    for step, printed in sorted(changed, key=lambda one: -one[0].start):
        text = text[: step.start] + printed + text[step.start + len(step.shown) :]
    page.write_text(text, "utf-8")
    return left


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measured", action="store_true")
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    asked = parser.parse_args()
    for one in asked.pages:
        for complaint in rewrite(one.resolve(), measured=asked.measured):
            print(complaint, file=sys.stderr)
