"""Notes on the published sources and on what their authors left out, from `data/published/sources.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.files.yaml_text import parse_yaml


class SourceNote(Spec):
    """The note on one source, in three lines."""

    title: str
    """Name of the source in plots."""
    measured: str
    """Who measured what, and on which hardware."""
    unknown: str
    """What was not printed, or read at second hand: where residuals may come from."""


@cache
def source_notes() -> Mapping[str, SourceNote]:
    """Source → its note, for the tables that are shipped."""
    file = files("cost_models") / "data" / "published" / "sources.yaml"
    document = parse_yaml(file.read_text(encoding="utf-8"), source=f"published/{file.name}")
    assert not document.problems, document.problems
    return {name: SourceNote(**note) for name, note in document.value.items()}


def source_title(source: str) -> str:
    """Name of a shipped source in words; of any other source its name in the table."""
    note = source_notes().get(source)
    return printable(source, 32) if note is None else note.title
