"""Layouts that searches about a plan found, kept for the verbs that ask next: they are priced then, not searched again.

A file of JSON for each plan lies in the user's cache folder (`$XDG_CACHE_HOME/meshwright`, else `~/.cache/meshwright`),
named by a digest of the question, its restrictions, the layout, and this version with its code and data. It is safe to
delete; one that is missing, spoilt or of another version is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import cost_models
import planner
from cost_models.axes.layout import Layout, parse_layout
from cost_models.errors import InputError
from cost_models.files.whole import write_whole
from planner.any_plan import own_version
from planner.plan import Plan
from planner.rules.legality import check

MOST_FILES = 500
"""Files that are kept, the last written."""
_ASKED = {"model", "cluster", "training", "stack", "hardware", "restrictions", "objective", "layout"}
_ASKED |= {"confidence", "risk"}
"""Fields of a plan that its rivals and what-ifs depend on."""

Found = tuple[Sequence[Layout], bool]
"""Layouts, and whether the search ended by itself: what time cut short is not kept."""


class Kept:
    """What is kept about one plan."""

    def __init__(self, plan: Plan) -> None:
        folder = cache_folder()
        self._path = None if folder is None else folder / f"{_digest(plan)}.json"
        self._layouts = {} if self._path is None else _read(self._path)
        if any(check(plan.question, one, hosts=False) for own in self._layouts.values() for one in own):
            self._layouts = {}

    def layouts(self, of: str, search: Callable[[], Found]) -> tuple[Layout, ...]:
        """The layouts under a name, searched for where they are not kept; kept from then on where they are proved."""
        if of in self._layouts:
            return self._layouts[of]
        found, proved = search()
        if proved:
            self.keep(of, found)
        return tuple(found)

    def keep(self, of: str, layouts: Iterable[Layout]) -> None:
        """Keep layouts that were found, if files can be written."""
        self._layouts[of] = tuple(layouts)
        if self._path is not None:
            text = json.dumps({name: [*map(str, own)] for name, own in self._layouts.items()}, indent=1)
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._path, text)
                _leave_few(self._path.parent)


def cache_folder() -> Path | None:
    """Where they lie; None where the user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"
    except RuntimeError:
        return None


def _read(path: Path) -> dict[str, tuple[Layout, ...]]:
    """The layouts in a file; none where it is not what was written."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): tuple(parse_layout(text) for text in own) for name, own in read.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError, InputError):
        return {}


def _digest(plan: Plan) -> str:
    asked = plan.model_dump_json(include=_ASKED)
    return hashlib.sha256(f"{_version()}\n{asked}".encode()).hexdigest()[:32]


@cache
def _version() -> str:
    """This version, and when its files were last changed."""
    folders = [place for package in (cost_models, planner) for place in package.__path__]
    told = [own_version()]
    while folders:
        with suppress(OSError):
            for entry in os.scandir(folders.pop()):
                if entry.is_dir():
                    folders += [entry.path] * (entry.name != "__pycache__")
                else:
                    known = entry.stat()
                    told.append(f"{entry.path} {known.st_size} {known.st_mtime_ns}")
    return "\n".join(sorted(told))


def _leave_few(folder: Path) -> None:
    """Remove the oldest files beyond the most that are kept."""
    files = [(entry.stat().st_mtime, entry.path) for entry in os.scandir(folder)]
    for _, path in sorted(files)[: max(0, len(files) - MOST_FILES)]:
        Path(path).unlink(missing_ok=True)
