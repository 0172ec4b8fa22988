"""The contract of an axis of a layout: its word, its rules, its price with lower bounds, and what the search tries.

A field of `Layout` annotated with its `Axis` is the whole registration; `cost_models.axes.layout.AXES` collects them,
and everything general asks the record. Parts that need the prices of a layout, or the planner, may be named like entry
points, `module:name`; they are imported when they are first used (`loaded`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.rule import Limit, Rule, Words
from cost_models.axes.words import Word
from cost_models.question import Question

if TYPE_CHECKING:
    from cost_models.axes.columns import LayoutColumns
    from cost_models.axes.layout import Layout

Terms = dict[str, dict[str, Array]]
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


def more(terms: Terms, added: Mapping[str, Mapping[str, Array]]) -> Terms:
    """The coefficients that change: each of `added` on top of the one in `terms`."""
    return {
        name: terms[name] | {part: terms[name].get(part, 0.0) + value for part, value in parts.items()}
        for name, parts in added.items()
    }


def loaded(part: Any) -> Any:
    """A part of an axis, imported by its name where it is named as `module:name`."""
    if not isinstance(part, str):
        return part
    module, _, name = part.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What an axis does to the price of N layouts, beside what the parts of the cost model say themselves.

    `seconds` and `bytes` take what coefficients are put together from (`pipeline.time_pieces.Pieces`,
    `pipeline.memory_terms.Sizes`), and all coefficients so far; they give those that change (`more` adds to them).
    """

    seconds: Callable[[Any, Terms], Terms] | None = None
    """ZeRO stages, shards, chunks and schedules must not change what it adds: bounds are taken without them."""
    bytes: Callable[[Any, Terms], Terms] | None = None
    """It may hang on the ZeRO stage; over a box of counts (`Axis.counted`) it must be least at a corner."""
    shown: Callable[[Any, str, Array, Array, Array], Array] | None = None
    """From pieces, a mesh axis, seconds of its communication, seconds of products around it and what a stack always
    shows: what is in sight."""
    least_update: Callable[[Question, Sequence[LayoutColumns]], Array] | None = None
    """(N,) seconds that `rank_optimizer` has at least between some corners of a box of counts."""
    ranks: Callable[[Question, Layout], Any] | None = None
    """The `pipeline.placed.PricedRanks` of a layout that the axis prices in a way of its own; None: it does not."""
    facts: Callable[[Question, Layout], Mapping[str, Any]] | None = None
    """Fields of the `Estimate` of a placed layout that only this axis fills."""


class Counted(NamedTuple):
    """Columns of an axis that count blocks of every rank."""

    columns: tuple[str, ...]
    room: Callable[[Question, Ints], Ints]
    """(N,) blocks that counts may name together, from (N,) pipeline ranks."""


class Needless(NamedTuple):
    """Values that leave memory and time as they are, or worse: the search leaves them out unless they are named."""

    columns: tuple[str, ...]
    """Naming one of them in a restriction keeps them."""
    rows: Any
    """From a question and N layouts to (N,) which are needless; or its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One word of a layout; what is left out holds for most."""

    word: Word
    """How it is written, and which numbers stand for its values in a column."""
    text: str = ""
    """What it is, in one sentence."""
    compared: Callable[[Any], str] | None = None
    """Its value as one word where layouts are compared; None: as text, or `usual` for None."""

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
    executor_rules: tuple[Rule, ...] | str = ()
    """What our own executor cannot run though its stack file would allow it."""
    late_rules: tuple[Rule, ...] | str = ()
    """Rules that price what they ask; they are asked of layouts that break no other."""
    placed_rule: Callable[[Layout, int], Words | None] | None = None
    """What is wrong with it once blocks are placed and the emptiest rank has so many; None: nothing."""

    limits: tuple[Limit, ...] = ()
    """What the search leaves out of it though rules allow it."""
    values: Callable[[Question, Mesh], Sequence[int] | Sequence[tuple[int, ...]]] | None = None
    """What the search tries of it in a mesh, in the numbers of its columns; None: it is a degree of the mesh, or chosen
    with the ZeRO stage or the schedule, or stays as if no layout named it."""
    closed: bool = False
    """Whether the search tries no value but the simplest unless `--allow` names the axis, or a restriction a column."""
    opens_nothing: Callable[[Question, str | None], str] | None = None
    """Why `--allow` opens nothing in a question, or for a trainer; empty: it does."""
    counted: Counted | None = None
    """Columns that count blocks: the search walks through boxes of counts in place of single ones."""
    fewest_blocks: Callable[[LayoutColumns], Ints] | None = None
    """(N,) blocks that every rank has at least."""
    sized: Callable[[LayoutColumns], Bools] | None = None
    """(N,) layouts of which the microbatch size decides what is legal at a ZeRO stage."""
    needless: Needless | None = None
    search: Any = None
    """A `planner.axes.contract.Searched`, or its name: what the planner does for it; None: what it does for all."""
    touches: frozenset[Matter] = frozenset({"states", "pipeline", "blocks"})
    """What hangs on it; layouts that differ in nothing that matters are worked out once."""
    price: Price | str | None = None
    """What it does to time and memory; None: the parts of the cost model read its columns."""
    behind: Callable[[LayoutColumns, str, Bools], Bools] | None = None
    """(N,) layouts whose communication over a mesh axis runs behind compute, from those whose stack has it so."""
    time_part: str = ""
    """A part of the step that it alone makes, as a user sees it; what of that is hidden is `<part>_hidden`."""
    executor: str = ""
    """Its hook in our own executor, `module:name`; empty: the engine reads the layout."""
    updates_elsewhere: Callable[[LayoutColumns], Bools] | None = None
    """(N,) layouts whose parameters something else than the device may update: only `least_update` bounds that."""

    def value_in(self, name: str, layout: Layout) -> Any:
        """Its value in a layout, where it is left out what it comes to."""
        return getattr(layout, name) if self.comes_to is None else self.comes_to(layout)
