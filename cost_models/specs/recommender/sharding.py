"""Shardings: the parts of every embedding table that each GPU holds, as text and as values.

    table:0-3=column2@0,4,1,5,2,6,3,7 table:4=row table:5-20=whole@0,1,2,... table:21-25=copy
    table:0=hot(0.02)+row/host table:7=whole@3/cached(0.1)

    whole@g       the table on one GPU; its samples' vectors travel in an all-to-all
    column K@...  K slices of its columns, each on one GPU; travel as whole tables do
    row           its rows over all GPUs; partial sums travel in a reduce-scatter
    row K@...     K slices of its rows, each on one GPU; each sends sums over its rows as whole tables do
    node-row@n    its rows over the GPUs of node n; summed in the node, then an all-to-all between nodes
    node-row K@.. K slices of its rows, each over the GPUs of a node
    copy          the table on every GPU; gradients of its rows travel in an all-reduce
    hot(f)+...    the share f of its rows that is used most is copied to every GPU; the rest is sharded
    .../host      in the memory of the host; .../cached(f): there, with the most used share f cached on the GPU

After `@` stand the GPUs (for `node-row`: nodes) of the tables in turn, one per shard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, first_few

Form = Literal["whole", "column", "row", "node-row", "copy"]
FORMS: tuple[Form, ...] = ("whole", "column", "row", "node-row", "copy")

PLACED: tuple[Form, ...] = ("whole", "column", "node-row")
"""Forms whose shards are placed on single GPUs or nodes, as slices of rows also are; other forms load all
GPUs alike."""
_SLICED: tuple[Form, ...] = ("column", "row", "node-row")


@dataclass(frozen=True, slots=True, order=True)
class Option:
    """Division of an embedding table into shards, without the GPUs of the shards. Raises ValueError for
    settings that contradict one another, such as slices of `copy`."""

    form: Form
    shards: int = 1
    """Number of slices of the columns, or of the rows if these are not spread over all GPUs; 1 for all other
    forms."""
    hot: float = 0.0
    """Share of the rows, those used most, that is copied to every GPU."""
    tier: Literal["device", "host"] = "device"
    """Memory that holds the rows."""
    cached: float = 0.0
    """Share of the rows, those used most, that the GPU caches from a table in host memory."""

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
        """Whether each shard is placed on a single GPU or node, instead of all GPUs alike."""
        return self.form in PLACED or self.shards > 1

    def __str__(self) -> str:
        count = str(self.shards) if self.shards > 1 else ""
        tier = "" if self.tier == "device" else f"/cached({self.cached:g})" if self.cached else "/host"
        return f"{f'hot({self.hot:g})+' if self.hot else ''}{self.form}{count}{tier}"


@dataclass(frozen=True, slots=True)
class TablePlacement:
    """Division of one embedding table into shards, with the place of each shard: a GPU, or for `node-row` a
    node."""

    option: Option
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.at) != (self.option.shards if self.option.placed else 0):
            raise ValueError(f"`{self.option}` does not lie at {self.at}")


@dataclass(frozen=True, slots=True)
class Sharding:
    """Placement of every embedding table of a recommender, in the order in which tables are numbered."""

    tables: tuple[TablePlacement, ...]

    def __str__(self) -> str:
        words = []
        for option, run in groupby(enumerate(self.tables), key=lambda pair: pair[1].option):
            members = list(run)
            first, last = members[0][0], members[-1][0]
            numbers = str(first) if first == last else f"{first}-{last}"
            at = ",".join(str(place) for _, placement in members for place in placement.at)
            form, slash, tier = str(option).partition("/")
            words.append(f"table:{numbers}={form}{'@' + at if at else ''}{slash}{tier}")
        return " ".join(words)


_SHARE = r"(0(?:\.\d+)?(?:e-\d+)?|\.\d+|\d(?:\.\d+)?e-\d+)"
_OPTION = re.compile(
    rf"(?:hot\({_SHARE}\)\+)?(whole|column|node-row|row|copy)(\d{{1,5}})?(?:@(all|[\d,]+))?(?:/(host|cached\({_SHARE}\)))?",
    re.ASCII,
)
_HEADLINE = "things are wrong with the sharding"
_WORD = re.compile(r"table:(\d{1,6})(?:-(\d{1,6}))?=(\S+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class TableWord:
    """One word of a sharding's text, such as `table:0-3=whole@0,1,2,3`: tables `first` to `last`, their
    option, and the places (GPUs or nodes) of their shards."""

    first: int
    last: int
    option: Option
    at: tuple[int, ...] = ()

    @property
    def places(self) -> dict[int, tuple[int, ...]]:
        """Places (GPUs or nodes) of the shards of each table, by table number; () if the word names no
        places."""
        tables = range(self.first, self.last + 1)
        shards = len(self.at) // len(tables)
        return {table: self.at[nth * shards : (nth + 1) * shards] for nth, table in enumerate(tables)}


def parse_words(text: str, num_tables: int) -> tuple[TableWord, ...]:
    """Parse the words of a sharding's text, or of a part of one.

    Raises:
        InputError: invalid words, tables that do not exist, or numbers of places that do not fit; all at once.
    """
    words, problems = _read_words(text, num_tables)
    require_none(problems, _HEADLINE)
    return tuple(words)


def _read_words(text: str, num_tables: int) -> tuple[list[TableWord], list[Problem]]:
    """Parse a sharding's text into its valid words and one problem for each invalid word."""
    words, problems = list[TableWord](), list[Problem]()
    for word in text.split():
        try:
            words.append(_parse_word(word, num_tables))
        except ValueError as error:
            problems.append(Problem("", str(error)))
    return words, problems


def require_none(problems: Sequence[Problem], several: str) -> None:
    """Raise InputError if there are problems. Of several, the headline is their number and the words
    `several`."""
    if len(problems) == 1:
        raise InputError(f"{problems[0].where} {problems[0].what}".lstrip())
    if problems:
        raise InputError(f"{len(problems)} {several}", problems=first_few(problems))


def parse_sharding(text: str, num_tables: int) -> Sharding:
    """Parse a sharding of `num_tables` embedding tables from text such as `table:0-3=whole@0,1,2,3`.

    Raises:
        InputError: as `parse_words`; or tables without a word, with two, or without a place; all at once.
    """
    words, problems = _read_words(text, num_tables)
    placements: dict[int, tuple[Option, tuple[int, ...]]] = {}
    complaints, all_read = [], not problems
    for word in words:
        if word.option.placed and not word.at:
            complaints.append(f"table:{word.first} has no place; write it like `{word.option}@0`")
        for table, at in word.places.items():
            if table in placements:
                complaints.append(f"table:{table} is said twice")
            placements[table] = word.option, at
    if (missing := [table for table in range(num_tables) if table not in placements]) and all_read:
        suffix = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        complaints.append(f"nothing is said of table:{missing[0]}{suffix}")
    require_none([*problems, *(Problem("", what) for what in complaints)], _HEADLINE)
    return Sharding(tuple(TablePlacement(*placements[table]) for table in range(num_tables)))


def _parse_word(word: str, num_tables: int) -> TableWord:
    """Parse one word of a sharding's text, such as `table:5=row`. Raises ValueError for an invalid word or a
    table that does not exist."""
    match = _WORD.fullmatch(word)
    if match is None:
        like = "`table:5=row` or `table:0-3=whole@0,1,2,3`"
        raise ValueError(f"`{printable(word)}` is no word of a sharding; write it like {like}")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first or last >= num_tables:
        raise ValueError(f"`{printable(word)}` names table {last}; the model's are 0 to {num_tables - 1}")
    parts, text = _OPTION.fullmatch(match[3]), printable(match[3])
    if parts is None:
        forms = ", ".join(FORMS)
        raise ValueError(f"`{text}` is no way to split a table; there are {forms}, as `column2/host`")
    hot, form, count, places, tier, cached = parts.groups()
    if count and form not in _SLICED:
        raise ValueError(f"only {', '.join(_SLICED)} have a number of slices, not `{form}`")
    at = () if places in (None, "all") else tuple(int(place) for place in places.split(",") if place)
    option = Option(
        form=form,  # type: ignore[arg-type]
        shards=int(count or 1),
        hot=float(hot or 0),
        tier="host" if tier else "device",
        cached=float(cached or 0),
    )
    shards = (last - first + 1) * option.shards if option.placed else 0
    if at and len(at) != shards:
        raise ValueError(f"`{printable(word)}` names {len(at)} places and has {shards} shards")
    return TableWord(first, last, option, at)
