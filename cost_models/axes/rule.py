"""A rule about layouts: a condition on many layouts at once, and the words for a layout that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.errors import either
from cost_models.question import Question


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
    unknown: Callable[[Question], bool] | None = None
    """Of a rule that prices what it asks: whether the question leaves out the limit, so that no price shows it."""


Broken = Callable[[Question, LayoutColumns], Bools]
Sentence = Callable[[Question, Layout], Words]


def rule_when(
    name: str, broken: Broken, *, unknown: Callable[[Question], bool] | None = None
) -> Callable[[Sentence], Rule]:
    """Makes a rule of the function below it, which words what is wrong."""
    return lambda sentence: Rule(name=name, broken=broken, sentence=sentence, unknown=unknown)


def refuses(name: str, broken: Broken, what: str, hint: str = "") -> Rule:
    """A rule whose words are templates of `layout`, `question` and `model`: "not with `zero{layout.zero}`"."""

    def worded(question: Question, layout: Layout) -> Words:
        known = {"layout": layout, "question": question, "model": question.model}
        return Words(what.format(**known), hint.format(**known))

    return Rule(name=name, broken=broken, sentence=worded)


def dividing(axis: str, total: int, limit: int) -> str:
    """ "tp1, tp2 or tp4 divide them": the degrees up to `limit` that divide `total`."""
    fitting = [
        f"{axis}{degree}" for degree in range(1, limit + 1) if total % degree == 0 and limit % degree == 0
    ]
    return f"{either(fitting)} divide{'s' if len(fitting) == 1 else ''} them"
