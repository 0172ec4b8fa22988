"""Reading what users name and write: catalogue, YAML and JSON files, tables, with errors in the user's words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any


def data_files(kind: str, suffix: str = ".yaml") -> list[Traversable]:
    """Data files of one kind in the package, such as `gpus`, from all subfolders, sorted by file name."""
    return sorted(_files_below(files("cost_models") / "data" / kind, suffix), key=lambda file: file.name)


def _files_below(folder: Traversable, suffix: str) -> Iterator[Traversable]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files_below(entry, suffix)
        elif entry.name.endswith(suffix):
            yield entry


@cache
def read_data(name: str) -> dict[str, Any]:
    """Parse the package's data file `data/<name>.yaml`, with the stated `source`, into a dictionary; cached."""
    from cost_models.files.yaml_text import parse_yaml

    file = files("cost_models") / "data" / f"{name}.yaml"
    document = parse_yaml(file.read_text(encoding="utf-8"), source=f"{name}.yaml")
    assert not document.problems, document.problems
    content: dict[str, Any] = document.value
    return content
