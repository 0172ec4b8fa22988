"""What axes of a layout add to the coefficients of a stage, beside what the parts of the cost model say themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cost_models.axes.axis import Terms
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES
from cost_models.pipeline.time_parts import Term
from cost_models.question import Question


def axis_seconds(
    question: Question, columns: LayoutColumns, term_of: Callable[[str], Term]
) -> dict[str, Term]:
    """The coefficients of time that some axis adds to, with what it adds."""
    return _added(term_of, (axis.seconds(question, columns) for axis in AXES.values() if axis.seconds))


def axis_bytes(question: Question, columns: LayoutColumns, term_of: Callable[[str], Term]) -> dict[str, Term]:
    """The same of memory."""
    return _added(term_of, (axis.bytes(question, columns) for axis in AXES.values() if axis.bytes))


def _added(term_of: Callable[[str], Term], prices: Iterable[Terms]) -> dict[str, Term]:
    changed: dict[str, Term] = {}
    for price in prices:
        for name, parts in price.items():
            own = changed.get(name) or term_of(name)
            changed[name] = own | {part: own.get(part, 0.0) + value for part, value in parts.items()}
    return changed
