"""A rule about layouts: a condition on many layouts at once, and the words for a layout that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.question import Question

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Words:
    """What a broken rule tells the user: the sentence, and one hint (may be empty)."""

    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One named rule; `broken` takes N layouts and returns (N,) booleans."""

    name: str
    broken: Callable[[Question, LayoutColumns], Bools]
    sentence: Callable[[Question, Layout], Words]


def either(words: list[str]) -> str:
    """ "a", "a or b", "a, b or c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
