"""Rules about layouts: a condition on many layouts at once, and the sentence for a layout that breaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.errors import InputError, Problem, either
from cost_models.question import Question


@dataclass(frozen=True, slots=True)
class Words:
    """Sentence that tells the user of a broken rule, and one hint (may be empty)."""

    what: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One named rule; `broken` takes N layouts and returns (N,) booleans."""

    name: str
    broken: Callable[[Question, LayoutColumns], Bools]
    sentence: Callable[[Question, Layout], Words]
    unknown: Callable[[Question], bool] | None = None
    """Whether a question leaves out the limit that a pricing rule asks for, so that no price shows it."""


Broken = Callable[[Question, LayoutColumns], Bools]
Sentence = Callable[[Question, Layout], Words]
Row = tuple[Broken, Sentence] | tuple[Broken, str] | tuple[Broken, str, str]
"""Condition that breaks a rule, and its words: a function, or templates of `refuses` for sentence and hint."""


def rules(table: Mapping[str, Row]) -> tuple[Rule, ...]:
    """Rules of a table, by name and in order."""
    return tuple(refuses(name, *row) for name, row in table.items())


def rule_when(
    name: str, broken: Broken, *, unknown: Callable[[Question], bool] | None = None
) -> Callable[[Sentence], Rule]:
    """Decorator that makes a rule of the function with its words."""
    return lambda sentence: Rule(name=name, broken=broken, sentence=sentence, unknown=unknown)


def refuses(name: str, broken: Broken, what: str | Sentence, hint: str = "") -> Rule:
    """A rule whose message is a template of `layout`, `question`, `model` and `stack`: "not with
    `zero{layout.zero}`"."""
    if callable(what):
        return Rule(name=name, broken=broken, sentence=what)

    def worded(question: Question, layout: Layout) -> Words:
        known = {"layout": layout, "question": question, "model": question.model, "stack": question.stack}
        return Words(what.format(**known), hint.format(**known))

    return Rule(name=name, broken=broken, sentence=worded)


def dividing(axis: str, total: int, limit: int) -> str:
    """Clause on the degrees up to `limit` that divide `total`: "tp1, tp2 or tp4 divide them"."""
    fitting = [
        f"{axis}{degree}" for degree in range(1, limit + 1) if total % degree == 0 and limit % degree == 0
    ]
    return f"{either(fitting)} divide{'s' if len(fitting) == 1 else ''} them"


def raise_problems(words: Sequence[Words], headline: str) -> None:
    """Raise one error for all problems; return if there are none.

    Raises:
        InputError: the only problem, or all under a headline, with the hint of the first.
    """
    if len(words) == 1:
        raise InputError(words[0].what, hint=words[0].hint)
    if words:
        raise InputError(headline, problems=[Problem("", one.what) for one in words], hint=words[0].hint)
