"""Restrictions of a sharding search: prescribed options and places, tables that stay together, and forbidden
options."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cost_models.base import Spec
from cost_models.errors import InputError, UnknownNameError
from cost_models.recommender.options import PricedOptions, default_options
from cost_models.recommender.prices import priced_options
from cost_models.recommender.question import RecommenderQuestion
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.sharding import FORMS, Option, Sharding, TableWord, parse_words
from cost_models.units import Bytes

FORBIDDEN_WORDS: tuple[str, ...] = (*FORMS, "hot", "host", "cached")
"""Words for options that a user can forbid: forms, copies of hot rows, tables in host memory, and those there
with a cache."""
ALLOWED_WORDS: tuple[str, ...] = ("hot",)
"""Words for options that a user can allow though the stack does not run them: copies of hot rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingRestrictions:
    """Restrictions on the options and memory of a sharding search; by default all options of all tables are
    allowed."""

    fixed: tuple[TableWord, ...] = ()
    """Prescribed sharding options of tables, with or without places."""
    together: tuple[tuple[int, ...], ...] = ()
    """Groups of tables that lie whole on one GPU."""
    forbidden: frozenset[str] = frozenset()
    """Forbidden kinds of options, words of `FORBIDDEN_WORDS`."""
    allowed: frozenset[str] = frozenset()
    """Kinds of options allowed though the stack does not run them, words of `ALLOWED_WORDS`."""
    max_memory: float = math.inf
    """Bytes of a device that may be filled; by default all that the question leaves."""

    def allows(self, option: Option) -> bool:
        """Whether no forbidden word ("copy", "host", ...) applies to a sharding option."""
        words = {"hot": option.hot, "host": option.tier == "host", "cached": option.cached, option.form: True}
        return not any(words.get(word) for word in self.forbidden)


UNRESTRICTED = ShardingRestrictions()


class ShardingLimits(Spec):
    """Restrictions of a sharding search, as texts of the command line."""

    fix: tuple[str, ...] = ()
    """Texts of the flag `--fix`, such as "table:5=row"."""
    together: tuple[str, ...] = ()
    """Texts of the flag `--together`, such as "c1,c2" or numbers of tables."""
    forbid: tuple[str, ...] = ()
    """Texts of the flag `--forbid`, such as "copy"."""
    allow: tuple[str, ...] = ()
    """Texts of the flag `--allow`, such as "hot"."""
    max_memory: Bytes | None = None
    """Bytes of one GPU that a plan may fill, from the flag `--max-memory`."""

    def read(self, model: RecommenderSpec) -> ShardingRestrictions:
        """Parse the texts into restrictions of the search.

        Raises:
            InputError: a word that is none, or a table that is not there.
        """
        return ShardingRestrictions(
            fixed=parse_words(" ".join(self.fix), model.num_tables),
            forbidden=_words(self.forbid, FORBIDDEN_WORDS),
            allowed=_words(self.allow, ALLOWED_WORDS),
            together=tuple(_group(model, text) for text in self.together),
            max_memory=math.inf if self.max_memory is None else self.max_memory,
        )


def _words(texts: Iterable[str], vocabulary: tuple[str, ...]) -> frozenset[str]:
    """Set of words of a command-line flag, each checked against the vocabulary. Raises UnknownNameError for
    one that is not known."""
    words = [word for text in texts for word in text.replace(",", " ").split()]
    if unknown := [word for word in words if word not in vocabulary]:
        raise UnknownNameError("way to hold a table", unknown[0], vocabulary)
    return frozenset(words)


def _group(model: RecommenderSpec, text: str) -> tuple[int, ...]:
    """Table numbers of one group, from names of tables, names of classes or numbers."""
    classes: dict[str, list[int]] = {}
    for number, index in enumerate(model.class_of_table):
        classes.setdefault(model.classes[index].name, []).append(number)
    names = classes | {name: [number] for number, name in enumerate(model.table_names)}
    tables: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        if word in names:
            tables += names[word]
        elif word.isdecimal() and len(word) < 7 and int(word) < model.num_tables:
            tables.append(int(word))
        else:
            raise UnknownNameError("table", word, [*model.table_names, *classes])
    if len(tables) < 2 or len(set(tables)) < len(tables):
        raise InputError(f"`{text}` must name two tables or more, each once")
    return tuple(tables)


def covered_options(
    question: RecommenderQuestion, restrictions: ShardingRestrictions, sharding: Sharding | None = None
) -> PricedOptions:
    """Prices of the sharding options that a search within these restrictions covers, and of the options that
    `sharding` uses."""
    class_of_table = question.model.class_of_table
    required = [(class_of_table[table], word.option) for word in restrictions.fixed for table in word.places]
    if sharding is not None:
        required += [(class_of_table[table], placed.option) for table, placed in enumerate(sharding.tables)]
    pairs = dict.fromkeys([*default_options(question, hot="hot" in restrictions.allowed), *required])
    return priced_options(question, sorted(pairs, key=lambda pair: pair[0]))
