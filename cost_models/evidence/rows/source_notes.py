"""What is known of the published sources, and what their authors left out: `data/published/sources.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.files.yaml_text import parse_yaml


class SourceNote(Spec):
    """One source in three lines."""

    title: str
    """Its name in pictures."""
    measured: str
    """Who measured what, on which hardware."""
    unknown: str
    """What nobody printed, or what was read at second hand: where its residuals may come from."""


@cache
def source_notes() -> Mapping[str, SourceNote]:
    """Source → its note, for the tables that are shipped."""
    file = files("cost_models") / "data" / "published" / "sources.yaml"
    document = parse_yaml(file.read_text(encoding="utf-8"), source=f"published/{file.name}")
    assert not document.problems, document.problems
    return {name: SourceNote(**note) for name, note in document.value.items()}


def source_title(source: str) -> str:
    """The name of a shipped source in words, of any other as its table has it."""
    note = source_notes().get(source)
    return printable(source, 32) if note is None else note.title
