"""Settings of another trainer's file by their paths, and which of them were read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.units import LARGEST


@dataclass(slots=True)
class Settings:
    """Settings by their paths, as `training.seq_len`."""

    values: Mapping[str, Any]
    read: set[str] = field(default_factory=set)

    def get(self, path: str, default: Any = None) -> Any:
        """A setting, or what it is without a word."""
        self.read.add(path)
        return self.values.get(path, default)

    def whole(self, path: str, default: Any = None) -> Any:
        """A whole number above zero. Raises InputError where it is none."""
        value = self.get(path, default)
        if value is not default and (
            not isinstance(value, int | float) or not 1 <= value <= LARGEST or value != int(value)
        ):
            raise InputError(f"`{path}: {printable(str(value))}` is no whole number above zero")
        return value if value is None else int(value)

    def listed(self, path: str) -> list[Any] | None:
        """A list; None where it is not said. Raises InputError where it is none."""
        value = self.get(path)
        if value is not None and not isinstance(value, list):
            raise InputError(f"`{path}: {printable(str(value))}` is no list")
        return value

    def unread(self, says_nothing: tuple[str, ...]) -> list[str]:
        """Those that nobody read, but for paths that start with what says nothing of a step."""
        return [
            f"`{path}: {printable(str(value))}`"
            for path, value in self.values.items()
            if path not in self.read and not path.startswith(says_nothing)
        ]


def by_path(document: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values of tables within tables by their paths."""
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from by_path(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
