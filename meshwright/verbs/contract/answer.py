"""What every answer of a verb does alike: its text is what it prints in Python, its rows are a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from meshwright.render.tables import Table


class AnswerBase:
    """The base of answers, which say their rows and their text."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Flat rows, for `--csv`."""
        raise AssertionError("an answer has rows")

    @property
    def text(self) -> Sequence[str | Table]:
        """What is printed."""
        raise AssertionError("an answer has text")

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        raise AssertionError("an answer has a document")

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame; seconds, bytes, shares."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))

    def _repr_html_(self) -> str:
        from meshwright.render.tables import in_notebook

        return in_notebook(self.text)
