"""Cache of layouts that searches about a plan found, for the verbs that ask next: they are priced then, not searched
again.

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
from planner.plan import Plan, package_version
from planner.rules.legality import check

MAX_FILES = 500
"""Most files in the folder; those written last stay."""
_QUESTION = {"model", "cluster", "training", "stack", "hardware", "restrictions", "objective", "layout"}
_QUESTION |= {"confidence", "risk"}
"""Fields of a plan that its rivals and what-ifs depend on."""

Searched = tuple[Sequence[Layout], bool]
"""Layouts, and whether the search ended by itself: what time cut short is not stored."""


class PlanCache:
    """Stored layouts of one plan, by the name of their search."""

    def __init__(self, plan: Plan) -> None:
        folder, self._layouts = cache_folder(), dict[str, tuple[Layout, ...]]()
        question = plan.model_dump_json(include=_QUESTION)
        digest = hashlib.sha256(f"{_version()}\n{question}".encode()).hexdigest()[:32]
        self._path = None if folder is None else folder / f"{digest}.json"
        if self._path is not None:
            with suppress(OSError, ValueError, AttributeError, TypeError, RecursionError, InputError):
                stored = json.loads(self._path.read_text(encoding="utf-8"))
                read = {str(name): tuple(map(parse_layout, texts)) for name, texts in stored.items()}
                layouts = [layout for each in read.values() for layout in each]
                if not any(check(plan.question, layout, hosts=False) for layout in layouts):
                    self._layouts = read

    def layouts(self, name: str, search: Callable[[], Searched]) -> tuple[Layout, ...]:
        """The layouts under a name; where there are none, those that `search` finds, stored if they are proved."""
        if name not in self._layouts:
            layouts, proved = search()
            if not proved:
                return tuple(layouts)
            self.store(name, layouts)
        return self._layouts[name]

    def store(self, name: str, layouts: Iterable[Layout]) -> None:
        """Store layouts that were found, if files can be written, and remove the oldest files beyond `MAX_FILES`."""
        self._layouts[name] = tuple(layouts)
        if self._path is not None:
            text = json.dumps({name: [*map(str, own)] for name, own in self._layouts.items()}, indent=1)
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._path, text)
                files = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(self._path.parent))
                for _, path in files[: max(0, len(files) - MAX_FILES)]:
                    Path(path).unlink(missing_ok=True)


def cache_folder() -> Path | None:
    """Folder of the cache; None where the user has no home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshwright"
    except RuntimeError:
        return None


@cache
def _version() -> str:
    """This version, and when its files were last changed."""
    folders = [place for package in (cost_models, planner) for place in package.__path__]
    lines = [package_version()]
    while folders:
        with suppress(OSError):
            for entry in os.scandir(folders.pop()):
                if entry.is_dir():
                    folders += [entry.path] * (entry.name != "__pycache__")
                else:
                    status = entry.stat()
                    lines.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(sorted(lines))
