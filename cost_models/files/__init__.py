"""Reading what users name and write: catalogue, YAML and JSON files, tables, with errors in the user's words."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable


def data_files(kind: str, suffix: str = ".yaml") -> list[Traversable]:
    """The package's data files of one kind, of all its folders, in the order of their names."""
    return sorted(_below(files("cost_models") / "data" / kind, suffix), key=lambda file: file.name)


def _below(folder: Traversable, suffix: str) -> Iterator[Traversable]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _below(one, suffix)
        elif one.name.endswith(suffix):
            yield one
