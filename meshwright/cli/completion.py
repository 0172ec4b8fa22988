"""Shell completion: names from the catalogue and files that begin with the typed text, without heavy imports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from cost_models.files import data_files
from meshwright.verbs.plot import PLOTS

_SPECS = (".yaml", ".yml", ".json")
_PLAN = b"# A Meshwright plan"
"""First bytes of every plan file."""
_ENTRIES = re.compile(r"^entries:\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_ENTRY = re.compile(r"^  ([^\s#:]+):", re.MULTILINE)
_MOST_FILES = 1000
_SCHEMAS = (
    *("model", "recommender", "cluster", "pools", "training", "recommender-training"),
    *("stack", "profile", "operations"),
)


def names(kind: str) -> Iterator[str]:
    """Names of all catalogue entries of one kind (such as `models`), read from the catalogue's files by pattern."""
    for file in data_files(kind):
        entries = _ENTRIES.search(file.read_text(encoding="utf-8"))
        yield from _ENTRY.findall(entries[1]) if entries else [file.name.removesuffix(".yaml")]


def _completion(*kinds: str, with_files: bool = True, are_listed: bool = False) -> Callable[[str], list[str]]:
    """Make the function that completes names of catalogue entries of these kinds and paths of spec files; if
    `are_listed`, only the last of several names between commas."""

    def complete(incomplete: str) -> list[str]:
        """Complete names of the kinds, and paths of files."""
        head = incomplete[: incomplete.rfind(",") + 1] if are_listed else ""
        typed = incomplete.removeprefix(head)
        words = [name for kind in kinds for name in names(kind) if name.startswith(typed)]
        return [head + word for word in (*words, *(_files(typed, _SPECS) if with_files else ()))]

    return complete


models, clusters = _completion("recommenders", "models"), _completion("clusters", are_listed=True)
stacks, operations, profiles = map(_completion, ("stacks", "operations", "profiles"))
gpus = _completion("gpus", with_files=False)
"""Words for the arguments MODEL and CLUSTER, and for `--stack`, `--operations`, `--profile` and `--gpu`."""


def entries(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the entry's name after `catalog KIND`, with names of catalogue entries of that kind."""
    kind = str(getattr(ctx.params.get("kind"), "value", ctx.params.get("kind")))
    entry_names = _SCHEMAS if kind == "schema" else names(kind)
    return [name for name in entry_names if name.startswith(incomplete)]


def plots(incomplete: str) -> list[str]:
    """Complete kinds of plots."""
    return [kind for kind in PLOTS if kind.startswith(incomplete)]


def plans(incomplete: str) -> list[str]:
    """Complete plan files, and folders that may hold them."""
    return [name for name in _files(incomplete, _SPECS[:2]) if name.endswith("/") or _is_plan(Path(name))]


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Files with one of these suffixes whose path begins with the typed text, and folders."""
    head = incomplete[: incomplete.rfind("/") + 1]
    try:
        listed = [path for _, path in zip(range(_MOST_FILES), Path(head or ".").iterdir(), strict=False)]
        paths = [(head + path.name, path.is_dir()) for path in listed]
    except OSError:
        return []
    return sorted(
        name + "/" * folder
        for name, folder in paths
        if name.startswith(incomplete)
        and (folder or name.endswith(suffixes))
        and (not name.removeprefix(head).startswith(".") or incomplete.removeprefix(head).startswith("."))
    )


def _is_plan(path: Path) -> bool:
    """Whether a file begins as plan files do; False for pipes and unreadable files."""
    try:
        if not path.is_file():
            return False  # to open a pipe may take for ever
        with path.open("rb") as file:
            return file.read(len(_PLAN)) == _PLAN
    except OSError:
        return False
