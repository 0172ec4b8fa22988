"""What the user keeps the search to: values, bounds, choices left out, and a trainer whose rules a layout must obey."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.columns import COLUMNS, LayoutColumns, context_ways
from cost_models.axes.layout import AXES as LAYOUT_AXES
from cost_models.axes.layout import RESOLVED_AS, Layout
from cost_models.axes.order import same_seats_of
from cost_models.axes.recompute import policies_in
from cost_models.axes.words import Choice
from cost_models.errors import InputError
from cost_models.operators.block import drops_something
from cost_models.question import MixedQuestion, Question
from cost_models.risk import confident_share
from cost_models.specs.choices import ORDERS, RECOMPUTE_POLICIES, Recompute
from planner.formats.trainers import rows_for, trainer_named

_COMMON = ("tp", "pp", "vpp", "dp", "mbs", "zero", "sp", "schedule")
AXES = (*_COMMON, *(name for name in COLUMNS if name not in _COMMON))
"""What may be fixed or forbidden, first what every stack has; recompute, which is no column, is restricted besides."""
_COUNTED: tuple[Recompute, ...] = ("none", "full")
"""What the blocks of a stage do where a trainer counts those it recomputes in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """What the user fixed or forbade, in the integers of `LayoutColumns`."""

    only: dict[str, frozenset[int]] = field(default_factory=dict)
    """Axis → the values it may take."""
    never: dict[str, frozenset[int]] = field(default_factory=dict)
    """Axis → values it must not take."""
    at_least: dict[str, int] = field(default_factory=dict)
    """Axis → the least it may be."""
    at_most: dict[str, int] = field(default_factory=dict)
    """Axis → the most it may be."""
    unused: frozenset[str] = frozenset()
    """Axes that stay as if the layout did not name them: cp1, zero0, no `sp`, etp = tp, one shard group, ..."""
    forbidden_recompute: frozenset[Recompute] = frozenset()
    allowed: frozenset[str] = frozenset()
    """Axes that the search leaves alone unless they are named here: `offload`."""
    max_memory: float | None = None
    """Bytes of one device a plan may fill, where that is less than the device allows."""
    confidence: float | None = None
    """Least probability of fitting, where that is more than the question's: what is recommended keeps to it."""
    extreme_mbs: bool = False
    """Whether of its microbatch sizes a layout has only the smallest and the largest: one of them needs least memory,
    as what a microbatch keeps grows with it, and some bytes are there only beside several."""
    trainer: str | None = None
    """Whose rules a layout must obey (a name in `planner.formats.trainers.TRAINERS`)."""

    def allows(self, columns: LayoutColumns) -> Bools:
        """(N,): which layouts keep to them, the trainer aside (`allowed_rows`); the way of context parallelism must be
        given. An order is allowed under any name that seats the ranks of the layout alike."""
        allowed = np.ones(len(columns), dtype=np.bool_)
        for axis in self._axes():
            allowed &= self._allows(axis, columns)
        for axis in self.unused:
            allowed &= getattr(columns, axis) == _unused(axis, columns)
        return allowed

    def held(self, question: Question) -> Question:
        """The question that is searched within them: with the confidence of the stricter."""
        if self.confidence is None or self.confidence <= question.confidence:
            return question
        return replace(question, confidence=self.confidence)

    def surely(self, question: Question, confidence: float) -> Restrictions:
        """The same, held to a higher confidence; a memory limit leaves as much more room."""
        if confidence <= question.confidence:
            return self
        shares = [confident_share(one, question.memory_error) for one in (confidence, question.confidence)]
        limit = None if self.max_memory is None else self.max_memory * shares[0] / shares[1]
        return replace(self, confidence=confidence, max_memory=limit)

    def alone(self, question: Question, layout: Layout) -> Restrictions:
        """One layout, however its blocks are placed and recomputed, within as much memory and as surely as these."""
        columns = settled(question, LayoutColumns.of([layout]))
        only = {axis: frozenset({int(getattr(columns, axis)[0])}) for axis in AXES}
        kept = {
            name: getattr(self, name)
            for name in ("forbidden_recompute", "max_memory", "confidence", "trainer")
        }
        return Restrictions(only=only, **kept)

    def opens(self, name: str) -> bool:
        """Whether an axis that is closed unless asked for may be searched."""
        return name in self.allowed or bool({*self.only, *self.at_least} & {*LAYOUT_AXES[name].columns(name)})

    def without(self, axes: Collection[str]) -> Restrictions:
        """The same, but for what they say of some axes."""

        def left(values: dict[str, Any]) -> dict[str, Any]:
            return {axis: value for axis, value in values.items() if axis not in axes}

        return replace(
            self,
            only=left(self.only),
            never=left(self.never),
            at_least=left(self.at_least),
            at_most=left(self.at_most),
            unused=self.unused.difference(axes),
        )

    def permits(self, axis: str, values: Ints) -> Bools:
        """(N,): which values of an axis they allow by themselves, without those of other axes."""
        permitted = np.ones(len(values), dtype=np.bool_)
        if axis in self.only:
            permitted &= np.isin(values, list(self.only[axis]))
        if axis in self.never:
            permitted &= ~np.isin(values, list(self.never[axis]))
        if axis in self.at_least:
            permitted &= values >= self.at_least[axis]
        if axis in self.at_most:
            permitted &= values <= self.at_most[axis]
        if axis in self.unused and axis not in RESOLVED_AS:
            permitted &= values == COLUMNS[axis].simplest
        return permitted

    def include(self, other: Restrictions) -> bool:
        """Whether every layout that keeps to others surely keeps to these."""
        return (
            self.trainer in (None, other.trainer)
            and self.extreme_mbs <= other.extreme_mbs
            and self.unused <= other.unused
            and other.allowed <= self.allowed
            and all(own >= other.only.get(axis, own | {-1}) for axis, own in self.only.items())
            and all(own <= other.never.get(axis, frozenset()) for axis, own in self.never.items())
            and all(own <= other.at_least.get(axis, own - 1) for axis, own in self.at_least.items())
            and all(own >= other.at_most.get(axis, own + 1) for axis, own in self.at_most.items())
        )

    @property
    def named(self) -> set[str]:
        """The axes they speak of."""
        return {*self._axes(), *self.unused}

    def _axes(self) -> set[str]:
        return {*self.only, *self.never, *self.at_least, *self.at_most}

    def _allows(self, axis: str, columns: LayoutColumns) -> Bools:
        column = getattr(columns, axis)
        if axis == "order":
            seats = same_seats_of(columns.cp, columns.dp, columns.pp)
            named = self.permits(axis, np.arange(len(ORDERS), dtype=np.int64))
            same = seats == np.take_along_axis(seats, column[:, None], axis=1)
            allowed: Bools = (same & named).any(axis=1)
            return allowed
        permitted = self.permits(axis, column)
        return permitted | (columns.cp == 1) if axis == "context" else permitted

    def recompute(self, question: Question | MixedQuestion) -> tuple[Recompute, ...]:
        """The policies a stage may use, in the order of `RECOMPUTE_POLICIES`; beside `none` selective only where it
        drops something. Raises InputError: none is left."""
        kept = tuple(
            policy
            for policy in RECOMPUTE_POLICIES
            if policy in question.training.recompute and policy not in self.forbidden_recompute
        )
        if "none" in kept and not drops_something(question.model, question.stack):
            kept = tuple(policy for policy in kept if policy != "selective")
        if not kept:
            raise InputError(
                "every recompute policy is forbidden", hint="allow `full`: it needs least memory"
            )
        return kept

    def counts_blocks(self, question: Question | MixedQuestion) -> bool:
        """Whether the choice that is left is how many first blocks of every stage a trainer recomputes in full."""
        counts = self.trainer is not None and trainer_named(self.trainer).counts_full
        return counts and self.recompute(question) == _COUNTED

    def by_recompute(self, question: Question | MixedQuestion) -> tuple[Restrictions, ...]:
        """Restrictions to one recompute policy each, where the trainer has one setting for all stages, or to how many
        blocks of a stage are recomputed in full, where that is its setting; else none.

        Raises:
            InputError: no policy is left.
        """
        policies = self.recompute(question)
        if self.trainer is None:
            return ()
        known = trainer_named(self.trainer)
        own = tuple(policy for policy in policies if policy in known.policies)
        if not own:
            raise InputError(
                f"{known.name} has no recompute policy of {', '.join(policies)}",
                hint=f"it has {' and '.join(known.policies)}",
            )
        if len(policies) == 1 or self.counts_blocks(question):
            return ()
        together = known.counts_full and {*_COUNTED} <= {*own}
        alone = [{policy} for policy in own if not (together and policy in _COUNTED)]
        settings = [*alone, {*_COUNTED}] if together else alone
        return tuple(
            replace(self, forbidden_recompute=frozenset(RECOMPUTE_POLICIES) - one) for one in settings
        )

    @property
    def fix_words(self) -> tuple[str, ...]:
        """Values and bounds as `--fix` reads them, in the order of `AXES`."""
        bounds = [f"{axis}>={self.at_least[axis]}" for axis in AXES if axis in self.at_least]
        bounds += [f"{axis}<={self.at_most[axis]}" for axis in AXES if axis in self.at_most]
        return (*_words(self.only), *bounds)

    @property
    def forbid_words(self) -> tuple[str, ...]:
        """What is left out as `--forbid` reads it."""
        unwanted = ",".join(policy for policy in RECOMPUTE_POLICIES if policy in self.forbidden_recompute)
        left_out = [axis for axis in AXES if axis in self.unused]
        return (*_words(self.never), *left_out, *([f"recompute={unwanted}"] if unwanted else []))

    @property
    def flags(self) -> tuple[str, ...]:
        """All of them as the command line takes them, but for `--max-memory`."""
        return (
            *(f"--fix {word}" for word in self.fix_words),
            *(f"--forbid {word}" for word in self.forbid_words),
            *(f"--allow {name}" for name in sorted(self.allowed)),
            *([f"--for {self.trainer}"] if self.trainer else []),
        )


def allowed_rows(question: Question, restrictions: Restrictions, columns: LayoutColumns) -> Bools:
    """(N,): which layouts keep to the restrictions and, where one is named, to the rules of the trainer."""
    allowed = restrictions.allows(settled(question, columns))
    if restrictions.trainer is not None:
        rows = np.flatnonzero(allowed)
        allowed[rows] = rows_for(restrictions.trainer, question, columns.rows(rows))
    return allowed


def keeps_to(question: Question, restrictions: Restrictions, layout: Layout) -> bool:
    """Whether a layout keeps to what was fixed and forbidden, and to the trainer's rules."""
    allowed = allowed_rows(question, restrictions, LayoutColumns.of([layout]))
    return bool(allowed[0]) and not restrictions.forbidden_recompute.intersection(
        policy for mix in layout.recompute for policy in policies_in(mix)
    )


def settled(question: Question, columns: LayoutColumns) -> LayoutColumns:
    """The same layouts with the way of context parallelism said, also where it is the stack's usual one."""
    return replace(columns, context=context_ways(question, columns))


def _unused(axis: str, columns: LayoutColumns) -> Ints | int:
    """What an axis is where a layout does not name it."""
    followed = {"etp": columns.tp, "shard": columns.replicas}
    return followed[axis] if axis in followed else COLUMNS[axis].simplest


def names_of(axis: str) -> tuple[str, ...]:
    """The names of its values, by number; empty where these are numbers."""
    if axis == "recompute":
        return RECOMPUTE_POLICIES
    word = COLUMNS[axis]
    return word.names if isinstance(word, Choice) else ()


def _words(values: Mapping[str, frozenset[int]]) -> tuple[str, ...]:
    """`tp=2,4`, `schedule=1f1b`: a word for each axis."""
    words = []
    for axis in AXES:
        if own := values.get(axis):
            names = names_of(axis)
            words.append(f"{axis}={','.join(names[value] if names else str(value) for value in sorted(own))}")
    return tuple(words)
