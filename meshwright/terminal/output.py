"""Output of commands: answers on stdout as text or JSON, notes, hints and errors on stderr, tables as CSV files.

Text is printed here only, so nothing that users named can write to a terminal.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeVar

from cost_models.documents import printable
from cost_models.errors import (
    WARNING,
    DoesNotFitError,
    InfeasibleError,
    InputError,
    MeshwrightError,
    NothingPlacedError,
    Problem,
    StoppedError,
    first_few,
)
from cost_models.files.whole import file_obstacle, write_whole
from cost_models.flags import flag, output_flag, switch
from meshwright.inputs.problems import Problems, refuse
from meshwright.records import JSON_SCHEMA
from meshwright.terminal.answers import Answer, SavedAnswer, VerbQuestion

if TYPE_CHECKING:
    from meshwright.inputs.plans import HasPlan
    from meshwright.render.tables import Table
    from planner.plan import AnyPlan


def say(text: str) -> None:
    """Print text on stdout and flush it.

    Raises:
        OSError: nobody can read it: stdout is closed, or the disk it goes to is full.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed", "stdout")
    try:
        _write(text, sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as error:
        # the rest goes to nowhere, so that it is not written again when the program ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OSError(error.errno, error.strerror, "stdout") from None


def say_aside(text: str) -> None:
    """Print text on stderr; failures to write are ignored."""
    if sys.stderr is not None:
        with suppress(OSError):
            _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Print text on a stream, with `?` in place of control characters and others that move the text around them."""
    lines = "\n".join(printable(line, limit=None) for line in text.split("\n"))
    encoding = stream.encoding or "utf-8"
    print(lines.encode(encoding, "replace").decode(encoding), file=stream, flush=True)


Row = Mapping[str, Any]


def as_json(document: Mapping[str, Any]) -> str:
    """Strict JSON text in insertion order; numbers that are not finite become null, control characters are
    escaped."""
    text = json.dumps(_plain(document), indent=2, allow_nan=False, ensure_ascii=False, default=str)
    return _ODD.sub(lambda odd: odd[0] if odd[0].isprintable() else json.dumps(odd[0])[1:-1], text)


_ODD = re.compile(r"[^\n\x20-\x7e]")


def as_csv(rows: Sequence[Row]) -> str:
    """CSV text of rows; columns in order of first appearance, missing cells empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerow({column: _cell(column) for column in columns})
    writer.writerows({column: _cell(value) for column, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Cell for CSV; text that a spreadsheet would run as a formula gets a leading apostrophe."""
    if not isinstance(value, str):
        return value
    text = printable(value, limit=None)
    return f"'{text}" if _FORMULA.match(text) else text


_FORMULA = re.compile(r"[=@]|[+-](?![\d.]+(e[+-]?\d+)?$)")
"""Pattern of the beginning of a formula, in contrast to that of a number."""


def _plain(value: Any) -> Any:
    """Value as plain JSON types: NaN and infinity become None, tuples lists, numpy scalars Python numbers."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


LONGEST = 1000
"""Largest number of characters of an error's line, since a user's input may be endless."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Options for the output of a command: file of the answer, JSON, CSV, quiet."""

    out: Path | None = output_flag("")
    """File that keeps the answer; each command says in its help what that is."""
    json: bool = switch(panel="output")
    """Print one JSON document."""
    csv: Path | None = flag("FILE", panel="output")
    """Also write the table as CSV."""
    quiet: bool = switch(names=("--quiet", "-q"), panel="output")
    """No progress, notes or hints."""

    def answer(
        self,
        document: Mapping[str, Any],
        rows: Sequence[Row],
        *text: str | Table,
        files: Sequence[Callable[[], object]] = (),
    ) -> None:
        """Write `files` and the CSV file of `--csv`, then print the answer: text and tables, or one JSON document.

        If one file cannot be written, everything else is still written and printed.

        Raises:
            InputError: which files could not be written, and why; stdout is one of them.
            BrokenPipeError: nobody reads stdout any more, and that is all.
        """
        writers = list(files)
        if self.csv is not None:
            writers.append(partial(write_whole, self.csv, as_csv(rows)))
        _do_all([*writers, lambda: self._print(document, text)])
        if self.csv is not None:
            self.note(f"Wrote {self.csv}")

    def show(
        self, answer: Answer, out: Path | None = None, *, files: Sequence[Callable[[], object]] = ()
    ) -> None:
        """Print an answer, save it to `out` (else to the file of `-o`), and write `files`."""
        out = out or self.out
        saved = [partial(answer.save, out)] if out is not None and isinstance(answer, SavedAnswer) else []
        self.answer(answer.record(), answer.rows, *answer.text, files=[*saved, *files])

    def show_text(
        self, document: Mapping[str, Any], rows: Sequence[Row], text: str, file: Path | None, then: str = ""
    ) -> None:
        """Print a text, or write it to `file` if given, with suggested commands `then` for the file."""
        writers = [] if file is None else [partial(write_whole, file, text)]
        self.answer(document, rows, *[text.rstrip()] * (file is None), files=writers)
        self.wrote(file, then)

    def finish(self, answer: SavedAnswer, *, more: Sequence[str] = (), interrupted: str = "") -> None:
        """Print and save an answer, then print its remarks, the flags in `more`, and suggested commands for its file.

        Raises:
            InputError: something cannot be written.
            SystemExit: 130 where a search was `interrupted`, which says what the answer lacks; 1 where it does not fit;
                3 where time ran out before the proof.
        """
        self.show(answer)
        for remark in answer.remarks(interrupted=bool(interrupted)):
            self.note(remark)
        if more and not self.json:
            self.note(f"more: {', '.join(more)}")
        self.wrote(self.out, answer.next_commands)
        if interrupted:
            self.end_interrupted(interrupted)
        if not answer.fits:
            self.end_with_no()
        if not answer.is_proved:
            raise SystemExit(NothingPlacedError.exit_code)

    def wrote(self, out: Path | None, next_commands: str | Callable[[Path], str] = "") -> None:
        """Note that the answer was saved to `out`, with suggested commands for that file; nothing for None."""
        if out is not None:
            then = next_commands if isinstance(next_commands, str) else next_commands(out)
            self.note(f"Wrote {out}. Next: {then}" if then else f"Wrote {out}")

    def check_places(self, out: Path | None = None) -> None:
        """Check before the work that the files of `-o` (`out`, if given) and `--csv` can be written.

        Raises:
            InputError: a missing folder, a folder where a file should be, no permission, one file for two things.
        """
        places = {"-o": out or self.out, "--csv": self.csv}
        paths = {flag: path for flag, path in places.items() if path is not None}
        problems = [
            Problem(f"{flag} {path}", obstacle)
            for flag, path in paths.items()
            if (obstacle := file_obstacle(path))
        ]
        if len({path.resolve() for path in paths.values()}) < len(paths):
            problems.append(Problem("-o and --csv", f"both name `{paths['-o']}`"))
        refuse("the answer cannot be written", problems)

    def read(
        self, ask: Callable[[], T], *checks: Callable[[], object], places: Callable[[], object] | None = None
    ) -> T:
        """Value of `ask()`, after running `checks` and checking with `places` (default: `check_places`) that files can
        be written. Raises InputError listing all problems."""
        problems = Problems()
        for check in checks:
            problems.read(check)
        asked = problems.read(ask)
        problems.read(places or self.check_places)
        problems.require()
        return asked

    def print_notes(self, question: VerbQuestion) -> None:
        """Print what was assumed to read a question, and what its answer leaves out."""
        self.assumed(question.assumptions)
        self.remark(question.notes)

    def load(self, plan: AnyPlan | HasPlan | str | Path) -> AnyPlan:
        """Load a plan, and print the notes of its file. Raises InputError for a file that is no plan."""
        from meshwright.inputs.plans import any_plan_of

        loaded = any_plan_of(plan)
        self.remark(loaded.notes)
        return loaded

    def assumed(self, assumptions: Sequence[str]) -> None:
        """Print each assumption as a note."""
        for assumption in assumptions:
            self.note(f"assumed: {assumption}")

    def remark(self, notes: Sequence[str]) -> None:
        """Print each note on what the answer leaves out."""
        for note in notes:
            self.note(f"note: {note}")

    def _print(self, document: Mapping[str, Any], text: Sequence[str | Table]) -> None:
        """Print an answer on stdout: its JSON document with `--json`, else its text and tables."""
        if self.json:
            say(as_json(document))
            return
        for part in text:
            say(str(part))

    def end_interrupted(self, missing: str) -> NoReturn:
        """Exit with code 130 after an answer that Ctrl-C cut short; `missing` says what the answer lacks.

        Raises:
            SystemExit: 130.
        """
        self.note(f"interrupted: {missing}")
        raise SystemExit(StoppedError.exit_code)

    def end_with_no(self) -> NoReturn:
        """Exit with code 1 after a negative answer, such as a layout that does not fit.

        Raises:
            SystemExit: 1.
        """
        raise SystemExit(InfeasibleError.exit_code)

    def note(self, text: str) -> None:
        """Print a note on stderr, wrapped for a terminal; with `--quiet` only warnings are printed."""
        if not self.quiet or text.startswith(WARNING):
            say_aside("\n".join(map(_folded, text.split("\n"))))


def _folded(line: str) -> str:
    """Wrap a line to the terminal on stderr; unchanged without a terminal, or if it holds a command to copy."""
    if sys.stderr is None or not sys.stderr.isatty() or "meshwright " in line:
        return line
    from meshwright.render.words import lines_of

    indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
    return "\n".join(lines_of(line, os.get_terminal_size(sys.stderr.fileno()).columns, indent=indent))


def _do_all(writers: Sequence[Callable[[], object]]) -> None:
    """Call all writers, even after one fails. Raises InputError listing all failures."""
    problems, closed = Problems(), None
    for write in writers:
        try:
            problems.read(write)
        except BrokenPipeError as error:
            closed = error
        except OSError as error:
            problems.errors.append(word_os_error(error))
    problems.require("not everything could be written")
    if closed is not None:
        raise closed


def word_os_error(error: OSError) -> InputError:
    """Turn an OSError into an InputError: `[Errno 2] No such file or directory: 'x'` → "`x`: no such file or
    directory"."""
    reason = (error.strerror or str(error)).lower()
    return InputError(f"`{error.filename}`: {reason}" if error.filename else reason)


def print_error(error: MeshwrightError, *, json: bool = False) -> None:
    """Print an error on stderr: headline, indented problems, an empty line, hint; with `--json` also on stdout, as
    JSON."""
    problems = first_few(error.problems)
    if json:
        record: dict[str, Any] = {"headline": error.headline}
        record["problems"] = [{"where": problem.where, "what": problem.what} for problem in problems]
        record["hint"] = error.hint or None
        if isinstance(error, DoesNotFitError):
            record["would_fit"] = [asdict(one) for one in error.would_fit]
        with suppress(OSError):  # stderr has it, too
            say(as_json({"schema": JSON_SCHEMA, "error": record}))
    lines, reasons = [f"error: {error.headline}"], [f"  {problem}" for problem in problems]
    if isinstance(error, DoesNotFitError):  # first what to do, then why
        from meshwright.render.words import wrapped

        reasons = [wrapped(line, indent="    ") for line in reasons]
        if error.would_fit:
            lines += ["", "would fit:", *(wrapped(f"  {one}", indent="    ") for one in error.would_fit), ""]
    lines += reasons
    lines = ["\n".join(printable(part, limit=LONGEST) for part in line.split("\n")) for line in lines]
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    say_aside("\n".join(_folded(part) for line in lines for part in line.split("\n")))
