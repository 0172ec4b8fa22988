"""Text of pictures on lines that fit: titles, layouts, and the names that users give."""

from __future__ import annotations

import re
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from cost_models.documents import printable
from cost_models.units import counted
from meshwright.render.words import lines_of

Frame = Any
_DEGREE = re.compile(r"(tp|pp|vpp|cp|dp|ep|etp)\d+$")
_MICROBATCH = re.compile(r"mbs\d+$")
_SHORT_WORD = 20
_LONGEST = 400
"""Characters: more of a name or of a path tells nothing more."""


def fitted(text: str, width_points: float, *, size: float, weight: str = "normal") -> list[str]:
    """Lines no wider than that, by the mean width of the text's own letters; no number parts from its unit."""
    shown = printable(text, _LONGEST)
    if not shown:
        return [""]
    font = FontProperties(family="sans-serif", size=size, weight=weight)
    width, _, _ = TextToPath().get_text_width_height_descent(shown, font, ismath=False)
    if width <= width_points:
        return [shown]
    return lines_of(shown, max(8, int(0.96 * width_points * len(shown) / width)), cut=True)


def degrees(layout: str) -> str:
    """The words of a layout that say how many ranks share what: those of tp, pp, cp and dp multiply to its GPUs."""
    return " ".join(word for word in layout.split() if _DEGREE.match(word))


def brief_layout(layout: str, columns: int = 26) -> str:
    """The degrees of a layout and its microbatch, on lines that end at spaces."""
    words = [word for word in printable(layout).split() if _DEGREE.match(word) or _MICROBATCH.match(word)]
    return "\n".join(lines_of(" ".join(words), columns))


def recompute_of(layout: str) -> str:
    """ "recompute=full" as the layout has it, "recompute in part" where it is longer, nothing where there is none."""
    words = [word for word in layout.split() if word.startswith("recompute=")]
    return "".join(word if len(word) <= _SHORT_WORD else "recompute in part" for word in words)


def unproven(frame: Frame) -> str:
    """ "; hollow: 3 points not proven the best"; empty where all are."""
    open_ones = int((frame["gap"] > 0).sum())
    return f"; hollow: {counted(open_ones, 'point')} not proven the best" if open_ones else ""


def short_layout(layout: str, columns: int = 26) -> str:
    """A layout as a label: without the placement of layers, on lines that end at spaces or after commas."""
    words = [word for word in printable(layout).split() if not word.startswith("layers=")]
    return "\n".join(lines_of(" ".join(words), columns))
