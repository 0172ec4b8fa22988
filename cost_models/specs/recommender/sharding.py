"""Shardings: which GPUs hold which part of every embedding table, as text and as values.

    table:0-3=column2@0,4,1,5,2,6,3,7 table:4=row table:5-20=whole@0,1,2,... table:21-25=copy
    table:0=hot(0.02)+row/host table:7=whole@3/cached(0.1)

    whole@g       the table on one GPU; its samples' vectors travel in an all-to-all
    column K@...  K slices of its columns, on a GPU each; travel as whole tables do
    row           its rows over all GPUs; partial sums travel in a reduce-scatter
    row K@...     K slices of its rows, on a GPU each; each sends sums of what it has as whole tables do
    node-row@n    its rows over the GPUs of node n, whole between nodes; summed in the node, then an all-to-all
    node-row K@.. K slices of its rows, each over the GPUs of a node
    copy          the table on every GPU; gradients of its rows travel in an all-reduce
    hot(f)+...    a copy of the share f of its rows that are used most beside the rest
    .../host      in the memory of the host; .../cached(f): there, the share f that is used most cached on the GPU

After `@` stand the GPUs (of `node-row`: nodes) of the tables in turn, as many for each as it has shards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, first_of

Form = Literal["whole", "column", "row", "node-row", "copy"]
FORMS: tuple[Form, ...] = ("whole", "column", "row", "node-row", "copy")

PLACED: tuple[Form, ...] = ("whole", "column", "node-row")
"""Forms whose shards lie on GPUs, or nodes, of their own, as slices of rows do; the others load all GPUs alike."""
_SLICED: tuple[Form, ...] = ("column", "row", "node-row")


@dataclass(frozen=True, slots=True, order=True)
class Option:
    """How a table is split, apart from where its shards lie. Raises ValueError: parts that contradict one another."""

    form: Form
    shards: int = 1
    """Slices of the columns, or of the rows where these do not lie on all GPUs; 1 for all other forms."""
    hot: float = 0.0
    """Share of the rows, those used most, that every GPU has a copy of."""
    tier: Literal["device", "host"] = "device"
    """Where its rows lie."""
    cached: float = 0.0
    """Share of the rows, those used most, that the GPU caches of a table in host memory."""

    def __post_init__(self) -> None:
        if self.form == "column" and self.shards < 2:
            raise ValueError("`column` has two slices or more")
        if self.shards > 1 and self.form not in _SLICED:
            raise ValueError(f"`{self.form}` has no slices")
        if not 0 <= self.hot < 1 or not 0 <= self.cached < 1:
            raise ValueError("a share of rows lies between 0 and 1")
        if self.hot and self.form == "copy":
            raise ValueError("all rows of `copy` are copied: `hot` says nothing")
        if self.cached and self.tier == "device":
            raise ValueError("only a table in host memory is cached")
        if self.tier == "host" and self.form == "copy":
            raise ValueError("a copy on every GPU is not in host memory")

    @property
    def placed(self) -> bool:
        """Whether its shards lie on GPUs, or nodes, of their own."""
        return self.form in PLACED or self.shards > 1

    def __str__(self) -> str:
        count = str(self.shards) if self.shards > 1 else ""
        tier = "" if self.tier == "device" else f"/cached({self.cached:g})" if self.cached else "/host"
        return f"{f'hot({self.hot:g})+' if self.hot else ''}{self.form}{count}{tier}"


@dataclass(frozen=True, slots=True)
class Placed:
    """A table's option and where its shards lie: GPUs, of `node-row` nodes; () where it loads all GPUs alike."""

    option: Option
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.at) != (self.option.shards if self.option.placed else 0):
            raise ValueError(f"`{self.option}` does not lie at {self.at}")


@dataclass(frozen=True, slots=True)
class Sharding:
    """Where every table lies, in the order in which tables are numbered."""

    tables: tuple[Placed, ...]

    def __str__(self) -> str:
        words = []
        for option, run in groupby(enumerate(self.tables), key=lambda pair: pair[1].option):
            members = list(run)
            first, last = members[0][0], members[-1][0]
            which = str(first) if first == last else f"{first}-{last}"
            at = ",".join(str(place) for _, placed in members for place in placed.at)
            form, slash, tier = str(option).partition("/")
            words.append(f"table:{which}={form}{'@' + at if at else ''}{slash}{tier}")
        return " ".join(words)


_SHARE = r"(0(?:\.\d+)?(?:e-\d+)?|\.\d+|\d(?:\.\d+)?e-\d+)"
_OPTION = re.compile(
    rf"(?:hot\({_SHARE}\)\+)?(whole|column|node-row|row|copy)(\d{{1,5}})?(?:@(all|[\d,]+))?(?:/(host|cached\({_SHARE}\)))?",
    re.ASCII,
)
_WORD = re.compile(r"table:(\d{1,6})(?:-(\d{1,6}))?=(\S+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class TableWord:
    """One word of a sharding: the option of tables `first` to `last`, and its places."""

    first: int
    last: int
    option: Option
    at: tuple[int, ...] = ()


def parse_words(text: str, num_tables: int) -> tuple[TableWord, ...]:
    """The words of a sharding, or of a part of one.

    Raises:
        InputError: words that are none, tables that are not there, or numbers of places that do not fit; all at once.
    """
    words, wrong = _read_words(text, num_tables)
    _require(wrong)
    return words


def _read_words(text: str, num_tables: int) -> tuple[tuple[TableWord, ...], list[str]]:
    """The words of a sharding that are valid, and an error for each of the others."""
    words, wrong = [], []
    for word in text.split():
        try:
            words.append(_parse_word(word, num_tables))
        except ValueError as error:
            wrong.append(str(error))
    return tuple(words), wrong


def _require(wrong: Sequence[str]) -> None:
    """Raise InputError with all errors, where there are any."""
    if len(wrong) == 1:
        raise InputError(wrong[0])
    if wrong:
        raise InputError(
            f"{len(wrong)} things are wrong with the sharding",
            problems=first_of([Problem("", one) for one in wrong]),
        )


def parse_sharding(text: str, num_tables: int) -> Sharding:
    """The sharding of `num_tables` tables from its notation.

    Raises:
        InputError: as `parse_words`; or tables without a word, with two, or without a place; all at once.
    """
    found: dict[int, Placed | None] = {}
    words, wrong = _read_words(text, num_tables)
    unread = bool(wrong)
    for said in words:
        shards = said.option.shards if said.option.placed else 0
        tables = range(said.first, said.last + 1)
        if lost := shards and not said.at:
            wrong.append(f"table:{said.first} has no place; write it like `{said.option}@0`")
        for nth, table in enumerate(tables):
            if table in found:
                wrong.append(f"table:{table} is said twice")
            found[table] = None if lost else Placed(said.option, said.at[nth * shards : (nth + 1) * shards])
    if (missing := [table for table in range(num_tables) if table not in found]) and not unread:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        wrong.append(f"nothing is said of table:{missing[0]}{more}")
    _require(wrong)
    return Sharding(tuple(placed for table in range(num_tables) if (placed := found[table]) is not None))


def parse_option(text: str) -> Option:
    """An option without places, as `column4` or `hot(0.02)+row/host`. Raises ValueError."""
    option, at = _parse_option(text)
    if at:
        raise ValueError(f"`{printable(text)}` names places; leave out `@...`")
    return option


def _parse_word(word: str, num_tables: int) -> TableWord:
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(
            f"`{printable(word)}` is no word of a sharding; write it like `table:5=row` or `table:0-3=whole@0,1,2,3`"
        )
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first or last >= num_tables:
        raise ValueError(f"`{printable(word)}` names tables beyond 0 to {num_tables - 1}")
    option, at = _parse_option(match[3])
    places = (last - first + 1) * option.shards if option.placed else 0
    if at and len(at) != places:
        raise ValueError(f"`{printable(word)}` names {len(at)} places and has {places} shards")
    return TableWord(first, last, option, at)


def _parse_option(text: str) -> tuple[Option, tuple[int, ...]]:
    match = _OPTION.fullmatch(text)
    if match is None:
        forms = ", ".join(FORMS)
        raise ValueError(
            f"`{printable(text)}` is no way to split a table; there are {forms}, as `column2/host`"
        )
    hot, form, count, at, tier, cached = match.groups()
    if count and form not in _SLICED:
        raise ValueError(f"only {', '.join(_SLICED)} have a number of slices, not `{form}`")
    places = () if at in (None, "all") else tuple(int(place) for place in at.split(",") if place)
    option = Option(
        form=form,  # type: ignore[arg-type]
        shards=int(count or 1),
        hot=float(hot or 0),
        tier="host" if tier else "device",
        cached=float(cached or 0),
    )
    return option, places
