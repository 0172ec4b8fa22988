"""Where words go: the answer to stdout as text or one JSON document, notes and hints to stderr, rows to a CSV file."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import DoesNotFitError, InputError, MeshwrightError, Problem, first_of
from cost_models.whole_files import is_replaced, write_whole

if TYPE_CHECKING:
    from meshwright.render.tables import Table

JSON_SCHEMA = 1
"""Version of every JSON document; raised when a field changes its meaning or goes."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What the user asked to see."""

    json: bool = False
    csv: Path | None = None
    quiet: bool = False

    def answer(self, document: Mapping[str, Any], rows: Sequence[Row], *text: str | Table) -> None:
        """Write `rows` as CSV if asked, then print the answer once, as text and tables or as one JSON document."""
        if self.csv is not None:
            write_whole(self.csv, as_csv(rows))
        if self.json:
            print(as_json(document))
        else:
            from meshwright.render.words import line_width

            for part in text:
                print(part if isinstance(part, str) else "\n".join(part.lines(line_width())))
        if self.csv is not None:
            self.note(f"Wrote {self.csv}")

    def note(self, text: str) -> None:
        """One line for a person, on stderr."""
        if not self.quiet:
            print(text, file=sys.stderr)


def as_json(document: Mapping[str, Any]) -> str:
    """Strict JSON, insertion order kept; what is not a finite number becomes null."""
    return json.dumps(_plain(document), indent=2, allow_nan=False, ensure_ascii=False)


def as_csv(rows: Sequence[Row]) -> str:
    """Rows → CSV text; columns in order of first appearance, missing cells empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def check_places(*places: tuple[str, Path | None]) -> None:
    """Say before the work what could not be written after it; `places` are flags and the files they name.

    Raises:
        InputError: a missing folder, a folder where a file should be, no permission, one file for two things.
    """
    named = [(flag, path) for flag, path in places if path is not None]
    problems = [Problem(f"{flag} {path}", what) for flag, path in named if (what := _obstacle(path))]
    targets = [path.resolve() for _, path in named]
    if len(set(targets)) < len(targets):
        flags = " and ".join(flag for flag, _ in named)
        problems.append(Problem(flags, f"both name `{named[0][1]}`"))
    if problems:
        raise InputError("the answer cannot be written", problems=problems)


def _obstacle(path: Path) -> str:
    """Why a file cannot be written, or nothing."""
    if path.is_dir():
        return "is a folder"
    if not path.parent.is_dir():
        return f"the folder `{path.parent}` does not exist"
    touched = [path] if path.exists() else []
    if is_replaced(path):
        touched.append(Path(os.path.realpath(path)).parent)
    return "" if all(os.access(one, os.W_OK) for one in touched) else "permission denied"


def print_error(error: MeshwrightError, *, json: bool = False) -> None:
    """Draw an error on stderr: headline, indented problems, an empty line, the hint; `--json` has it on stdout too."""
    told_of = first_of(error.problems)
    if json:
        problems = [{"where": problem.where, "what": problem.what} for problem in told_of]
        told: dict[str, Any] = {"headline": error.headline, "problems": problems, "hint": error.hint or None}
        if isinstance(error, DoesNotFitError):
            told["would_fit"] = [asdict(one) for one in error.would_fit]
        print(as_json({"schema": JSON_SCHEMA, "error": told}))
    lines = [f"error: {error.headline}", *(f"  {problem}" for problem in told_of)]
    if isinstance(error, DoesNotFitError) and error.would_fit:
        from meshwright.render.words import wrapped

        lines += ["", "would fit:", *(wrapped(f"  {one}", indent="    ") for one in error.would_fit)]
    if error.hint:
        lines += ["", f"hint: {error.hint}"]
    print("\n".join(lines), file=sys.stderr)


def _plain(value: Any) -> Any:
    """JSON has no NaN, infinity, tuples or numpy scalars."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
