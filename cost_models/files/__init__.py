"""Reading of the names and files that users give: catalogue, YAML and JSON files, tables, with errors in the
user's words."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_models.documents import Document

_DATA = Path(__file__).parents[1] / "data"


def data_files(kind: str, suffix: str = ".yaml") -> list[Path]:
    """Paths of the package's data files of one kind (such as `gpus`), from all subfolders, sorted by file
    name."""
    return sorted((_DATA / kind).rglob(f"*{suffix}"), key=lambda file: file.name)


@cache
def data_document(file: Path) -> Document:
    """Parse a data file of the package into a document; cached."""
    from cost_models.files.reading import parse_yaml

    document = parse_yaml(file.read_text(encoding="utf-8"), source=str(file.relative_to(_DATA)))
    assert not document.problems, document.problems
    return document


@cache
def read_data(name: str) -> dict[str, Any]:
    """Parse the package's data file `data/<name>.yaml` into a dictionary, with its `source`; cached."""
    content: dict[str, Any] = data_document(_DATA / f"{name}.yaml").value
    return content
