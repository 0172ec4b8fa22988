"""An axis of a layout: all that the notation, the columns, restrictions and the search need to know of it.

A field of `Layout` annotated with its `Axis` is the whole registration; `cost_models.axes.layout.AXES` collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.axes.rule import Rule
from cost_models.axes.words import Word
from cost_models.question import Question

if TYPE_CHECKING:
    from cost_models.axes.columns import LayoutColumns
    from cost_models.axes.layout import Layout

Ints = npt.NDArray[np.int64]
Terms = Mapping[str, Mapping[str, npt.NDArray[np.float64]]]
"""Coefficient of `StageCosts` → part of it that a user sees → (N,), or where that has policies (N, P)."""
Matter = Literal["states", "pipeline", "blocks"]
"""`states`: which ZeRO stages and shard groups are legal. `pipeline`: which chunks and schedules are. `blocks`: how
long a block computes and its tensor ranks communicate."""


class Mesh(NamedTuple):
    """Degrees whose product is the GPUs."""

    tp: int
    pp: int
    cp: int
    dp: int


def divisors(number: int) -> list[int]:
    """In rising order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One word of a layout; what is left out holds for most."""

    word: Word
    """How it is written, and which numbers stand for its values in a column."""

    always_written: bool = False
    written: Callable[[Layout], bool] | None = None
    """Whether the notation names it; None: where it is not at its default."""
    implied: Callable[[Mapping[str, Any]], Any] | None = None
    """Its value where only the given fields are said; None: its default."""
    complaint: Callable[[Layout], str] | None = None
    """What contradicts other fields, as a sentence, or nothing."""
    settled: Callable[[Layout], Any] | None = None
    """The one value that stands for all which mean the same in this layout."""
    comes_to: Callable[[Layout], Any] | None = None
    """What a value that follows other axes comes to: `etp` left out is tp."""

    common: bool = False
    """Whether every stack has it: restrictions are written with these first."""
    must_be_chosen: bool = False
    """Whether no layout goes without it."""
    follows: Callable[[LayoutColumns], Ints] | None = None
    """(N,) what its column holds where layouts do not name it, if that hangs on other axes."""
    within: str = ""
    """The degree above one that it needs: where that is one it says nothing."""
    alike: Callable[[LayoutColumns], Ints] | None = None
    """(N, V) for each of its values the first that means the same in each layout."""

    rules: tuple[Rule, ...] = ()
    """What model, cluster and training ask of it."""
    stack_rules: tuple[Rule, ...] = ()
    """What a software stack cannot run though they would allow it."""

    values: Callable[[Question, Mesh], Sequence[int] | Sequence[tuple[int, ...]]] | None = None
    """What the search tries of it in a mesh, in the numbers of its columns; None: it is a degree of the mesh, or chosen
    with the ZeRO stage or the schedule, or stays as if no layout named it."""
    closed: bool = False
    """Whether the search tries no value but the simplest unless `--allow` names the axis, or a restriction a column."""
    touches: frozenset[Matter] = frozenset({"states", "pipeline", "blocks"})
    """What hangs on it; layouts that differ in nothing that matters are worked out once."""
    seconds: Callable[[Question, LayoutColumns], Terms] | None = None
    """What it adds to the time of a stage, beside what the parts of the cost model say themselves. ZeRO stages, shards,
    chunks and schedules must not change it: bounds are taken without them."""
    bytes: Callable[[Question, LayoutColumns], Terms] | None = None
    """The same of memory; it may hang on the ZeRO stage."""

    def value_in(self, name: str, layout: Layout) -> Any:
        """Its value in a layout, where it is left out what it comes to."""
        return getattr(layout, name) if self.comes_to is None else self.comes_to(layout)
