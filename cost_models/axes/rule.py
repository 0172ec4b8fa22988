"""Rules that layouts must obey: a condition on many layouts at once, and a sentence for a layout that breaks
the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from string import Formatter
from typing import Any, NamedTuple

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.errors import InputError, Problem, either
from cost_models.question import Question


class Words(NamedTuple):
    """Error sentence about a broken rule, and a hint, which may be empty."""

    what: str
    hint: str = ""


Broken = Callable[[Question, LayoutColumns], Bools | bool]
Sentence = Callable[[Question, Layout], Words]
Row = tuple[Broken, str | Sentence] | tuple[Broken, str, str]
"""Condition under which a rule is broken, and its error sentence: a function, or templates of sentence and
hint."""


class _Template(Formatter):
    """Formatter of sentence templates that can also write a list as alternatives ("a, b or c"). Each item is
    put into a pattern: `{stack.zero_stages:zero*}` is "zero0, zero1 or zero2"."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format a value as usual, or a list as alternatives if `format_spec` is a pattern with `*` for the
        item."""
        if "*" in format_spec:
            return either([format_spec.replace("*", str(item)) for item in value])
        return format(value, format_spec)


@dataclass(frozen=True, slots=True)
class Rule:
    """Named rule that layouts must obey, shared by search, error messages and explanations."""

    name: str
    broken: Broken
    """Function that returns whether each of N layouts breaks the rule, (N,), or one value for all."""
    what: str | Sentence
    """Template of the error sentence, with fields `layout`, `question`, `model`, `training` and `stack` ("not
    with `zero{layout.zero}`"), or a function that returns sentence and hint."""
    hint: str = ""
    """Template of the hint; used only if `what` is a template."""
    unknown: Callable[[Question], bool] | None = None
    """Function that returns whether a question does not specify the limit that the rule checks. None: it
    always does."""

    def sentence(self, question: Question, layout: Layout) -> Words:
        """Error sentence and hint for a layout that breaks the rule."""
        if not isinstance(self.what, str):
            return self.what(question, layout)
        parts = {name: getattr(question, name) for name in ("model", "training", "stack")}
        values, template = {"layout": layout, "question": question, **parts}, _Template()
        return Words(template.format(self.what, **values), template.format(self.hint, **values))


def rules(table: Mapping[str, Row]) -> tuple[Rule, ...]:
    """Build rules from a table of conditions and error sentences by rule name, in the table's order."""
    return tuple(Rule(name, *row) for name, row in table.items())


def unbroken(rules: Iterable[Rule], question: Question, columns: LayoutColumns) -> Bools:
    """Whether each layout obeys all of the rules, (N,)."""
    legal = np.ones(len(columns), dtype=np.bool_)
    for rule in rules:
        legal &= np.logical_not(rule.broken(question, columns))
    return legal


def objections(rules: Iterable[Rule], question: Question, layout: Layout) -> list[Words]:
    """Error sentence and hint for each broken rule of one layout, in the order of the rules."""
    columns = LayoutColumns.of([layout])
    return [rule.sentence(question, layout) for rule in rules if np.all(rule.broken(question, columns))]


def divisors_clause(axis: str, total: int, limit: int) -> str:
    """Clause of an error message with the degrees up to `limit` that divide `total`, such as "tp1, tp2 or tp4
    divide them"."""
    fitting = [f"{axis}{degree}" for degree in range(1, limit + 1) if gcd(total, limit) % degree == 0]
    return f"{either(fitting)} divide{'s' if len(fitting) == 1 else ''} them"


def raise_problems(words: Sequence[Words], headline: str) -> None:
    """Raise one InputError with all sentences and hints in `words` under a `headline`; do nothing if there
    are none.

    Raises:
        InputError: the only problem, or all under a headline, with the hint of the first.
    """
    if len(words) == 1:
        raise InputError(words[0].what, hint=words[0].hint)
    if words:
        raise InputError(headline, problems=[Problem("", one.what) for one in words], hint=words[0].hint)
