"""A figure with the data it shows, the result of every picture of any family."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


_SCREEN_DOTS_PER_INCH = 90
"""Pictures in notebooks: sharp at the width of a page, and small in the file."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Drawing:
    """A figure and its data frame; notebooks display the figure."""

    frame: pd.DataFrame
    """Data of the figure, in base units."""
    figure: Figure
    table: str = ""
    """Text table of the data, where the title does not say enough."""

    @property
    def title(self) -> str:
        """The finding, on one line."""
        return " ".join(self.figure.get_suptitle().split())

    @property
    def points(self) -> list[dict[str, Any]]:
        """The data as rows."""
        return [
            {str(name): value for name, value in row.items()} for row in self.frame.to_dict(orient="records")
        ]

    def save(self, path: str | Path) -> None:
        """Write PNG, SVG or PDF, by suffix. Raises InputError: another suffix."""
        from meshwright.plots.style import save

        save(self.figure, Path(path))

    def __repr__(self) -> str:
        return self.title

    def _repr_png_(self) -> bytes:
        from meshwright.plots.style import write

        picture = BytesIO()
        write(self.figure, picture, "png", _SCREEN_DOTS_PER_INCH)
        return picture.getvalue()
