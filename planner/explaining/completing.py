"""What a layout of a few words means, in every verb: what it does not say is free, and searched.

A layout is whole, as tables write it, where its degrees account for all GPUs and it says `mbs` and `zero`: what it does
not name is then off. One that places blocks, or says how many are recomputed, is whole, too. Of any other the fastest
that surely fits is meant.
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

_AXIS = re.compile(r"[a-z]+", re.ASCII)
_PLACING = {"layers", "pools", "replicas"}
"""Axes that say where blocks lie."""
_SEARCH_SECONDS = 20.0
"""Time limit of the search for what is not said; its answer is then the best found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """The layout that some words mean, priced."""

    estimate: Estimate
    filled: tuple[str, ...] = ()
    """Words that were not said and searched; none of a whole layout."""
    certificate: Certificate | None = None
    """The proof that no other words are faster; None where none were searched, or nothing fits."""


def meant(question: Question, text: str, within: Restrictions | None = None) -> Meant:
    """The layout that `text` means, within restrictions (but what the text says itself goes before them).

    What is not said is searched among layouts that fit with `FITTING`, or where none does among all that fit. Where
    nothing fits at all it is the layout that comes closest.

    Raises:
        InputError: `text` is not a layout, or one that cannot run.
    """
    written, limits = parse_layout(text), within or Restrictions()
    closest: Estimate | None = None
    if not _is_whole(question, written, text):
        said = _restricted(written, text, limits)
        for held in dict.fromkeys((FITTING, question.confidence)):
            try:
                found = search(
                    question, top=1, restrictions=said.surely(question, held), time_limit=_SEARCH_SECONDS
                )
            except DoesNotFitError as error:
                closest = error.closest if isinstance(error.closest, Estimate) else None
            except InfeasibleError:  # none is legal, or of those that the search covers
                break
            else:
                return _filled(question, text, found.best.layout, limits, found.certificate)
    if closest is not None:
        return _filled(question, text, closest.layout, limits, None)
    layout = _with_dp(question, written, text)
    require_legal(question, layout, limits.trainer, hosts=False)
    return Meant(estimate=price(question, place_layout(question, layout)).within(limits.max_memory))


def _filled(
    question: Question, text: str, layout: Layout, limits: Restrictions, certificate: Certificate | None
) -> Meant:
    words = str(layout.model_copy(update={"layers": ()})).split()
    filled = tuple(word for word in words if _axis(word) not in _axes(text))
    return Meant(
        estimate=price(question, layout).within(limits.max_memory), filled=filled, certificate=certificate
    )


def _is_whole(question: Question, layout: Layout, text: str) -> bool:
    axes = _axes(text)
    if _PLACING & axes or len(layout.recompute) > 1 or layout.recompute[0] not in RECOMPUTE_POLICIES:
        return True
    has_degrees = layout.num_gpus == question.cluster.num_gpus or {"tp", "pp", "dp"} <= axes
    return has_degrees and {"mbs", "zero"} <= axes


def _restricted(layout: Layout, text: str, limits: Restrictions) -> Restrictions:
    """The restrictions to what the text says, and to those of `limits` that speak of other axes."""
    columns, axes = LayoutColumns.of([layout]), _axes(text) - {"recompute"}
    names = [name for axis in axes for name in AXES[axis].word.columns(axis)]
    free = limits.without(names)
    only = free.only | {name: frozenset({int(getattr(columns, name)[0])}) for name in names}
    if "recompute" in _axes(text):
        others = frozenset(RECOMPUTE_POLICIES) - {layout.recompute[0]}
        free = replace(free, forbidden_recompute=others)
    return replace(free, only=only)


def _with_dp(question: Question, layout: Layout, text: str) -> Layout:
    """The layout with all GPUs of the question in `dp`, where it does not say that and the others divide them."""
    left, rest = divmod(question.cluster.num_gpus, layout.tp * layout.cp * layout.pp)
    return layout if "dp" in _axes(text) or rest else parse_layout(f"{text} dp{left}")


def _axes(text: str) -> set[str]:
    return {_axis(word) for word in text.split()}


def _axis(word: str) -> str:
    match = _AXIS.match(word)
    return match[0] if match else word
