"""Reading what users name and write: catalogue, YAML and JSON files, tables, with errors in the user's words."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parents[1] / "data"


def data_files(kind: str, suffix: str = ".yaml") -> list[Path]:
    """Data files of one kind in the package, such as `gpus`, from all subfolders, sorted by file name."""
    return sorted((_DATA / kind).rglob(f"*{suffix}"), key=lambda file: file.name)


@cache
def read_data(name: str) -> dict[str, Any]:
    """Parse the package's data file `data/<name>.yaml`, with the stated `source`, into a dictionary; cached."""
    from cost_models.files.yaml_text import parse_yaml

    document = parse_yaml((_DATA / f"{name}.yaml").read_text(encoding="utf-8"), source=f"{name}.yaml")
    assert not document.problems, document.problems
    content: dict[str, Any] = document.value
    return content
