"""Records that answers are written as: objects of `--json`, rows of `--csv`, and the data frames that plots read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from planner.explain.advice import E, OtherQuestion

JSON_SCHEMA = 1
"""Version of every JSON document; raised when a field changes its meaning or goes."""


def fields_of(source: object, *names: str) -> dict[str, Any]:
    """Values of an object's fields and properties named in `names`, by name, in that order."""
    return {name: getattr(source, name) for name in names}


def further_records(
    questions: Iterable[OtherQuestion[E]], record: Callable[[E], dict[str, Any]]
) -> list[dict[str, Any]]:
    """JSON object of each changed question of an advice: the change, and its best plan as `record` writes it."""
    return [
        {"change": one.words} | fields_of(one, "trouble", "proven") | {"plan": record(one.estimate)}
        for one in questions
    ]


def present(**fields: Any) -> dict[str, Any]:
    """Drop from a record the fields whose value is None, False, zero or empty; a float stays, even 0.0."""
    return {name: value for name, value in fields.items() if value or isinstance(value, float)}


def frame_of(rows: Iterable[Any], columns: list[str] | None = None) -> pd.DataFrame:
    """Turn rows into a data frame; pandas is imported only here, when a frame is needed."""
    import pandas as pd

    return pd.DataFrame(rows, columns=columns)
