"""Completion of partial layouts, in every verb: what a layout does not say is free, and searched.

A layout is complete, as tables write it, where its degrees account for all GPUs and it says `mbs` and `zero`: what it
does not name is then off. One that places blocks, or says how many are recomputed, is complete, too. Of any other the
fastest that surely fits is meant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, Layout, parse_layout
from cost_models.errors import DoesNotFitError, InfeasibleError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from cost_models.risk import FITTING
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.certificate import Certificate
from planner.rules.legality import require_legal
from planner.search.given_layout import place_layout
from planner.search.search import search
from planner.space.restrictions import Restrictions

_AXIS = re.compile(r"[a-z]+|\S+", re.ASCII)
_PLACING = {"layers", "pools", "replicas"}
"""Axes that say where blocks lie."""
_SEARCH_SECONDS = 20.0
"""Time limit of the search for what is not said; its answer is then the best found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedLayout:
    """The layout that some words mean, priced."""

    estimate: Estimate
    filled: tuple[str, ...] = ()
    """Words that were not said and searched; none of a complete layout."""
    certificate: Certificate | None = None
    """The proof that no other words are faster; None where none were searched, or nothing fits."""


def complete_layout(question: Question, text: str, within: Restrictions | None = None) -> CompletedLayout:
    """The layout that `text` means, within restrictions (but what the text says itself goes before them).

    What is not said is searched among layouts that fit with `FITTING`, or where none does among all that fit. Where
    nothing fits at all it is the layout that comes closest.

    Raises:
        InputError: `text` is not a layout, or one that cannot run.
    """
    written, limits, axes = parse_layout(text), within or Restrictions(), _axes(text)
    layout: Layout | None = None
    certificate: Certificate | None = None
    if not _is_complete(question, written, axes):
        restricted = _restricted(written, axes, limits)
        for confidence in dict.fromkeys((FITTING, question.confidence)):
            sure = restricted.with_confidence(question, confidence)
            try:
                result = search(question, top=1, restrictions=sure, time_limit=_SEARCH_SECONDS)
            except DoesNotFitError as error:
                layout = error.closest.layout if isinstance(error.closest, Estimate) else None
            except InfeasibleError:  # none is legal, or of those that the search covers
                break
            else:
                layout, certificate = result.best.layout, result.certificate
                break
    filled: tuple[str, ...] = ()
    if layout is not None:
        words = str(layout.model_copy(update={"layers": ()})).split()
        filled = tuple(word for word in words if not _axes(word) & axes)
    else:
        layout = written
        dp, rest = divmod(question.cluster.num_gpus, layout.tp * layout.cp * layout.pp)
        if "dp" not in axes and not rest:  # all GPUs that the other degrees leave
            layout = parse_layout(f"{text} dp{dp}")
        require_legal(question, layout, limits.trainer, hosts=False)
        layout = place_layout(question, layout)
    priced = price(question, layout).within(limits.max_memory)
    return CompletedLayout(estimate=priced, filled=filled, certificate=certificate)


def _is_complete(question: Question, layout: Layout, axes: set[str]) -> bool:
    if _PLACING & axes or len(layout.recompute) > 1 or layout.recompute[0] not in RECOMPUTE_POLICIES:
        return True
    has_degrees = layout.num_gpus == question.cluster.num_gpus or {"tp", "pp", "dp"} <= axes
    return has_degrees and {"mbs", "zero"} <= axes


def _restricted(layout: Layout, axes: set[str], limits: Restrictions) -> Restrictions:
    """The restrictions to what the text says, and to those of `limits` that speak of other axes."""
    columns = LayoutColumns.of([layout])
    names = [name for axis in axes - {"recompute"} for name in AXES[axis].columns(axis)]
    free = limits.without(names)
    if "recompute" in axes:
        others = frozenset(RECOMPUTE_POLICIES) - {layout.recompute[0]}
        free = replace(free, forbidden_recompute=others)
    return replace(
        free, only=free.only | {name: frozenset({int(getattr(columns, name)[0])}) for name in names}
    )


def _axes(text: str) -> set[str]:
    """Axes that the words of a layout name."""
    return {match[0] for word in text.split() if (match := _AXIS.match(word))}
