"""Restrictions of the search of shardings: options and places, tables that stay together, forms left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cost_models.errors import InputError, UnknownNameError
from cost_models.recommender.priced import PricedOptions
from cost_models.recommender.prices.pricing import priced_options
from cost_models.recommender.question import RecommenderQuestion
from cost_models.recommender.rows import default_options
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.sharding import FORMS, Option, Sharding, TableWord, parse_words

FORBIDDEN_WORDS: tuple[str, ...] = (*FORMS, "hot", "host", "cached")
"""Words that can be forbidden: forms, copies of hot rows, tables in host memory, those there with a cache."""
ALLOWED_WORDS: tuple[str, ...] = ("hot",)
"""Words that can be allowed though the stack does not run them: copies of hot rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRestrictions:
    """Restrictions on the options and memory of a sharding search; by default all options of all tables are
    allowed."""

    fixed: tuple[TableWord, ...] = ()
    """Options of tables, with or without places."""
    together: tuple[tuple[int, ...], ...] = ()
    """Groups of tables that lie whole on one GPU."""
    forbidden: frozenset[str] = frozenset()
    """Words of FORBIDDEN_WORDS."""
    allowed: frozenset[str] = frozenset()
    """Words of ALLOWED_WORDS."""
    max_memory: float | None = None
    """Bytes of a device that may be filled; None: all that the question leaves."""
    host_memory: float | None = None
    """Bytes of a node's host memory that may be filled; None: the question's."""

    def allows(self, option: Option) -> bool:
        """Whether no forbidden word ("copy", "host", ...) applies to a sharding option."""
        option_words: set[str] = {option.form}
        option_words |= {"hot"} if option.hot else set()
        option_words |= {"host"} if option.tier == "host" else set()
        option_words |= {"cached"} if option.cached else set()
        return not option_words & self.forbidden


def read_restrictions(
    model: RecommenderSpec,
    *,
    fix: Iterable[str] = (),
    together: Iterable[str] = (),
    forbid: Iterable[str] = (),
    allow: Iterable[str] = (),
    max_memory: float | None = None,
    host_memory: float | None = None,
) -> ShardingRestrictions:
    """Parse the user's restrictions, such as `table:5=row`, `user_id,item_id` (or numbers of tables), `copy`.

    Raises:
        InputError: a word that is none, or a table that is not there.
    """
    fixed = parse_words(" ".join(fix), model.num_tables)
    forbidden, allowed = _words(forbid, FORBIDDEN_WORDS), _words(allow, ALLOWED_WORDS)
    return ShardingRestrictions(
        fixed=fixed,
        together=tuple(_group(model, text) for text in together),
        forbidden=forbidden,
        allowed=allowed,
        max_memory=max_memory,
        host_memory=host_memory,
    )


def _words(texts: Iterable[str], vocabulary: tuple[str, ...]) -> frozenset[str]:
    """Words of a command-line flag, each checked against the vocabulary. Raises UnknownNameError for one that
    is not known."""
    words = [word for text in texts for word in text.replace(",", " ").split()]
    for word in words:
        if word not in vocabulary:
            raise UnknownNameError("way to hold a table", word, vocabulary)
    return frozenset(words)


def _group(model: RecommenderSpec, text: str) -> tuple[int, ...]:
    """Table numbers of one group, given names of tables, names of classes or numbers."""
    names = {name: number for number, name in enumerate(model.table_names)}
    starts = dict.fromkeys(one.name for one in model.classes)
    tables: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        if word in names:
            tables.append(names[word])
        elif word in starts:
            tables += [
                number
                for number, index in enumerate(model.class_of_table)
                if model.classes[index].name == word
            ]
        elif word.isdecimal() and len(word) < 7 and int(word) < model.num_tables:
            tables.append(int(word))
        else:
            raise UnknownNameError("table", word, [*names, *starts])
    if len(tables) < 2 or len(set(tables)) < len(tables):
        raise InputError(f"`{text}` must name two tables or more, each once")
    return tuple(tables)


def covered_options(
    question: RecommenderQuestion, restrictions: ShardingRestrictions, sharding: Sharding | None = None
) -> PricedOptions:
    """Prices of all sharding options that a search within these restrictions covers, and of the options of a
    given sharding."""
    class_of_table = question.model.class_of_table
    required = [
        (class_of_table[table], word.option)
        for word in restrictions.fixed
        for table in range(word.first, word.last + 1)
    ]
    if sharding is not None:
        required += [(class_of_table[table], placed.option) for table, placed in enumerate(sharding.tables)]
    pairs = dict.fromkeys([*default_options(question, hot="hot" in restrictions.allowed), *required])
    return priced_options(question, sorted(pairs, key=lambda pair: pair[0]))
