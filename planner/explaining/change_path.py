"""The path from today's layout towards the best: at each step the one change that gains most for its trouble.

A change is chosen on top of those before it, by its gain of step time over the weight of its trouble
(`planner.explaining.changes`), and only if it also breaks no rule, fits and gains by itself. Candidates are put in
order by a quick price (blocks spread evenly) and priced in full from the best down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.explaining.changes import (
    WEIGHT,
    Move,
    Trouble,
    changed_words,
    moves,
    recompute_allowed,
    trouble_between,
)
from planner.explaining.explain import gain
from planner.placement.chunks import covers
from planner.placement.even_prices import balanced_prices
from planner.rules.legality import check
from planner.search.given_layout import place_layout
from planner.space.restrictions import Restrictions, keeps_to

PRICED = 12
"""Most candidates of one change that are priced in full."""
LEAST_GAIN = 1e-3
"""Least relative gain of step time that is worth a change."""
_RECOMPUTE = Move(values={"recompute": ("none",)})
"""The move that recomputes as little as memory allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change on the path, priced alone and on top of those before it."""

    words: str
    """The change in words of the notation: "mbs2"."""
    trouble: Trouble
    by_itself: Estimate
    """Price of today's layout with this change only."""
    with_earlier: Estimate
    """Price of today's layout with this change and all before it."""


@dataclass(slots=True)
class ChangePath:
    """The path so far: today's layout and the changes chosen one after another."""

    question: Question
    restrictions: Restrictions
    today: Estimate
    """What is run, priced for this question: with the switches of the stack that were changed before."""
    alone: ChangePath | None = None
    """The path of the question as it is run, in which each change is priced by itself; None: this one."""
    changes: list[Change] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    """Axes that were changed already."""

    @property
    def reached(self) -> Estimate:
        return self.changes[-1].with_earlier if self.changes else self.today

    def add_change(self) -> bool:
        """Append the change that gains most for its trouble; returns whether there is one."""
        here = self.reached
        found = [
            (self._worth(here, after), move, after)
            for move in self._promising(here)
            if (after := self._after(move, here.layout)) is not None and after.fits
        ]
        for worth, move, after in sorted(found, key=lambda one: (-one[0], str(one[2].layout))):
            first = self.alone or self
            same = first is self and not self.changes
            alone = after if same else first._after(move, first.today.layout)
            if worth <= 0 or alone is None or not alone.fits:
                continue
            if first.today.fits and gain(first.today, alone) < LEAST_GAIN:
                continue
            words = changed_words(here.layout, after.layout)
            trouble = trouble_between(here.layout, after.layout)
            self.changes.append(Change(words=words, trouble=trouble, by_itself=alone, with_earlier=after))
            self.taken |= move.axes
            return True
        return False

    def _worth(self, here: Estimate, there: Estimate) -> float:
        """Gain over trouble; where today's layout does not fit, the speed of one that does."""
        weight = WEIGHT[trouble_between(here.layout, there.layout)]
        if not here.fits:
            return here.step_seconds / there.step_seconds / weight
        gained = gain(here, there)
        return gained / weight if gained >= LEAST_GAIN else 0.0

    def _promising(self, here: Estimate) -> Iterator[Move]:
        """Legal moves of axes not changed yet, the best of each kind by their quick prices."""
        if "recompute" not in self.taken:
            yield _RECOMPUTE
        legal = [
            (move, layout)
            for move in moves(self.question, here.layout)
            if not move.axes & self.taken
            and (layout := move.of(here.layout)) is not None
            and changed_words(here.layout, layout)
            and self._is_legal(layout)
        ]
        if not legal:
            return
        seconds, peaks = self._quick([layout for _, layout in legal])
        order = sorted(
            range(len(legal)),
            key=lambda row: seconds[row] * (1 + (peaks[row] > here.memory_limit)),
        )
        of_kind: dict[frozenset[str], int] = {}
        left = PRICED
        for row in order:
            move = legal[row][0]
            of_kind[move.axes] = of_kind.get(move.axes, 0) + 1
            if of_kind[move.axes] <= 2 and left:
                left -= 1
                yield move

    def _is_legal(self, layout: Layout) -> bool:
        """Whether a layout breaks no rule, keeps to the restrictions and has stages that the search covers."""
        if not covers(layout.schedule, self.question.model.num_layers, layout.num_stages):
            return False
        if check(self.question, layout, self.restrictions.trainer):
            return False
        return keeps_to(self.question, self.restrictions, layout)

    def _quick(self, layouts: list[Layout]) -> tuple[list[float], list[float]]:
        """(seconds, bytes) of each layout, evenly placed; a mix of policies is priced under the fastest of them."""
        prices = balanced_prices(self.question, LayoutColumns.of(layouts))
        seconds, peaks = [], []
        for row, layout in enumerate(layouts):
            own = layout.recompute[0] if len(layout.recompute) == 1 else ""
            policy = (
                RECOMPUTE_POLICIES.index(own)
                if own in RECOMPUTE_POLICIES
                else int(np.argmin(prices.step_seconds[row]))
            )
            seconds.append(float(prices.step_seconds[row, policy]))
            peaks.append(float(prices.peak_bytes[row, policy]))
        return seconds, peaks

    def _after(self, move: Move, layout: Layout) -> Estimate | None:
        """The price of a layout after a move; None where the move breaks a rule.

        Where the move changes recompute, or changes the stages so that recompute by stage loses its meaning, as little
        is recomputed as memory allows.
        """
        moved = move.of(layout)
        if moved is None:
            return None
        by_stage = layout.recompute[0] not in RECOMPUTE_POLICIES or len(layout.recompute) > 1
        if "recompute" in move.axes or (by_stage and moved.num_stages != layout.num_stages):
            return self._least_recomputed(moved)
        return self._price(moved)

    def _price(self, layout: Layout) -> Estimate | None:
        if not self._is_legal(layout):
            return None
        placed = place_layout(self.question, layout)
        if check(self.question, placed, self.restrictions.trainer):
            return None
        return price(self.question, placed).within(self.restrictions.max_memory)

    def _least_recomputed(self, layout: Layout) -> Estimate | None:
        """The layout with the least recompute that fits: none, attention core, or as few whole blocks as possible."""

        def under(policy: str) -> Estimate | None:
            return self._price(layout.model_copy(update={"recompute": (policy,)}))

        allowed = recompute_allowed(self.question, layout)
        tried = [under(policy) for policy in ("none", "selective") if policy in allowed]
        fitting = [one for one in tried if one is not None and one.fits]
        if fitting or "full" not in allowed:
            return min(fitting, key=lambda one: one.step_seconds, default=None)
        best = under("full")
        low, high = 0, -(-self.question.model.num_layers // layout.num_stages)
        while best is not None and best.fits and high - low > 1:
            middle = (low + high) // 2
            found = under(f"full:{middle}")
            if found is not None and found.fits:
                high, best = middle, found
            else:
                low = middle
        return best
