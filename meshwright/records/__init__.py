"""Answers as plain data: objects of `--json`, rows of `--csv`, and the data frames that plots read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

JSON_SCHEMA = 1
"""Version of every JSON document; raised when a field changes its meaning or goes."""


def fields_of(source: object, *names: str) -> dict[str, Any]:
    """Fields and properties of these names, in this order."""
    return {name: getattr(source, name) for name in names}


def present(**fields: Any) -> dict[str, Any]:
    """The fields that have a value: not None, false or empty. A number is a value."""
    return {name: value for name, value in fields.items() if value or isinstance(value, float)}


def frame_of(rows: Iterable[Any], columns: list[str] | None = None) -> pd.DataFrame:
    """Rows as a data frame; pandas is imported when there is one to make."""
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)
