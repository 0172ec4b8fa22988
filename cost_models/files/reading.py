"""Reading a file from a stranger as a `Document`: size, encoding and syntax are checked, nothing is constructed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem
from cost_models.files.pipes import read_raw
from cost_models.files.yaml_text import parse_yaml
from cost_models.units import MB

MAX_BYTES = int(4 * MB)
"""Largest file that is read, in bytes; inputs have a few kilobytes, plans some hundreds."""
_INTEGER = re.compile(r"-?\d+")


def read_document(path: str | Path, *, most_bytes: int = MAX_BYTES) -> Document:
    """Read a YAML file, or a JSON file by its suffix `.json`.

    Raises:
        InputError: missing, a folder, unreadable, a pipe that nobody writes to, too large, not text, not valid YAML or
            JSON.
    """
    name = str(path)
    text = read_text(path, most_bytes=most_bytes)
    return parse_json(text, source=name) if name.endswith(".json") else parse_yaml(text, source=name)


def read_text(path: str | Path, *, most_bytes: int = MAX_BYTES) -> str:
    """Read a text file.

    Raises:
        InputError: missing, a folder, unreadable, a pipe that nobody writes to, too large, not text.
    """
    name = str(path)
    raw = read_raw(path, most_bytes + 1)
    if len(raw) > most_bytes:
        raise InputError(
            f"`{name}` is larger than {most_bytes // int(MB)} MB; it is not an input of this tool"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"`{name}` is not a text file (byte {error.start} is not UTF-8)") from None


def parse_json(text: str, *, source: str) -> Document:
    """A JSON text as a `Document` without lines. Raises InputError on NaN, repeated keys and what is no JSON."""

    def number(written: str) -> float:
        value = float(written)
        if not math.isfinite(value):
            raise InputError(f"`{source}` holds the number {printable(written, limit=20)}; it must be finite")
        return value if not _INTEGER.fullmatch(written) else int(written)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                raise InputError(f"`{source}` gives `{printable(name)}` twice")
            result[name] = value
        return result

    try:
        value = json.loads(
            text, parse_int=number, parse_float=number, parse_constant=number, object_pairs_hook=unique
        )
    except json.JSONDecodeError as error:
        what = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        raise InputError(
            f"cannot read `{source}`", problems=[Problem(f"{source}:{error.lineno}", what)]
        ) from None
    except RecursionError:
        raise InputError(f"`{source}` is nested too deeply") from None
    return Document(source=source, value=value)


def is_file(path: str | Path) -> bool:
    """Whether a file exists; False for text that cannot be a path."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # too long, or a null character
        return False
