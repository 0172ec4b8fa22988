"""Restrictions by the user: values, bounds, forbidden choices, and a trainer whose rules a layout must obey."""

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
"""Columns that may be fixed or forbidden, common axes first; recompute is restricted separately."""
_FULL_COUNT_POLICIES: tuple[Recompute, ...] = ("none", "full")
"""Policies of the blocks of a stage if a trainer counts the blocks that it recomputes in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Restrictions on layouts, in the integers of `LayoutColumns`."""

    only: dict[str, frozenset[int]] = field(default_factory=dict)
    """Axis → allowed values."""
    never: dict[str, frozenset[int]] = field(default_factory=dict)
    """Axis → forbidden values."""
    at_least: dict[str, int] = field(default_factory=dict)
    """Axis → minimum value."""
    at_most: dict[str, int] = field(default_factory=dict)
    """Axis → maximum value."""
    unused: frozenset[str] = frozenset()
    """Axes that keep their defaults: cp1, zero0, no `sp`, etp = tp, one shard group, ..."""
    forbidden_recompute: frozenset[Recompute] = frozenset()
    allowed: frozenset[str] = frozenset()
    """Closed axes that the search may use: `offload`."""
    max_memory: float | None = None
    """Bytes of one device a plan may fill, where that is less than the device allows."""
    confidence: float | None = None
    """Minimum probability of fitting, if higher than the question's: for recommended plans."""
    extreme_mbs: bool = False
    """Whether only the smallest and the largest microbatch size are tried: one of these needs least memory, as
    activations grow with the microbatch and some bytes exist only with several microbatches."""
    trainer: str | None = None
    """Trainer whose rules a layout must obey (a name in `planner.formats.trainers.TRAINERS`)."""

    def allows(self, columns: LayoutColumns) -> Bools:
        """Layouts that satisfy the restrictions, (N,), apart from the trainer (`allowed_rows`); the way of context
        parallelism must be given. An order is allowed under any name that seats the ranks of the layout alike."""
        allowed = np.ones(len(columns), dtype=np.bool_)
        for axis in self._axes():
            allowed &= self._allows(axis, columns)
        for axis in self.unused:
            allowed &= getattr(columns, axis) == _unused(axis, columns)
        return allowed

    def apply_confidence(self, question: Question) -> Question:
        """The question with the stricter confidence of both."""
        if self.confidence is None or self.confidence <= question.confidence:
            return question
        return replace(question, confidence=self.confidence)

    def with_confidence(self, question: Question, confidence: float) -> Restrictions:
        """Restrictions with a higher confidence; a memory limit grows with the margin."""
        if confidence <= question.confidence:
            return self
        shares = [confident_share(one, question.memory_error) for one in (confidence, question.confidence)]
        limit = None if self.max_memory is None else self.max_memory * shares[0] / shares[1]
        return replace(self, confidence=confidence, max_memory=limit)

    def fix_layout(self, question: Question, layout: Layout) -> Restrictions:
        """Restrictions to one layout, any placement and recompute, with this memory limit and confidence."""
        columns = with_context_ways(question, LayoutColumns.of([layout]))
        only = {axis: frozenset({int(getattr(columns, axis)[0])}) for axis in AXES}
        fields = {
            name: getattr(self, name)
            for name in ("forbidden_recompute", "max_memory", "confidence", "trainer")
        }
        return Restrictions(only=only, **fields)

    def opens(self, name: str) -> bool:
        """Whether an axis that is closed unless asked for may be searched."""
        return name in self.allowed or bool({*self.only, *self.at_least} & {*LAYOUT_AXES[name].columns(name)})

    def without(self, axes: Collection[str]) -> Restrictions:
        """Restrictions without those on `axes`."""

        def remaining(values: dict[str, Any]) -> dict[str, Any]:
            return {axis: value for axis, value in values.items() if axis not in axes}

        return replace(
            self,
            only=remaining(self.only),
            never=remaining(self.never),
            at_least=remaining(self.at_least),
            at_most=remaining(self.at_most),
            unused=self.unused.difference(axes),
        )

    def permits(self, axis: str, values: Ints) -> Bools:
        """Values of an axis that its own restrictions allow, (N,)."""
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

    def contains(self, narrower: Restrictions) -> bool:
        """Whether every layout within `narrower` is surely within these restrictions."""
        return (
            self.trainer in (None, narrower.trainer)
            and self.extreme_mbs <= narrower.extreme_mbs
            and self.unused <= narrower.unused
            and narrower.allowed <= self.allowed
            and all(own >= narrower.only.get(axis, own | {-1}) for axis, own in self.only.items())
            and all(own <= narrower.never.get(axis, frozenset()) for axis, own in self.never.items())
            and all(own <= narrower.at_least.get(axis, own - 1) for axis, own in self.at_least.items())
            and all(own >= narrower.at_most.get(axis, own + 1) for axis, own in self.at_most.items())
        )

    @property
    def named_axes(self) -> set[str]:
        """Axes with a restriction."""
        return {*self._axes(), *self.unused}

    def _axes(self) -> set[str]:
        return {*self.only, *self.never, *self.at_least, *self.at_most}

    def _allows(self, axis: str, columns: LayoutColumns) -> Bools:
        column = getattr(columns, axis)
        if axis == "order":
            seats = same_seats_of(columns.cp, columns.dp, columns.pp)
            is_named = self.permits(axis, np.arange(len(ORDERS), dtype=np.int64))
            is_equal = seats == np.take_along_axis(seats, column[:, None], axis=1)
            allowed: Bools = (is_equal & is_named).any(axis=1)
            return allowed
        permitted = self.permits(axis, column)
        return permitted | (columns.cp == 1) if axis == "context" else permitted

    def recompute(self, question: Question | MixedQuestion) -> tuple[Recompute, ...]:
        """Policies that a stage may use, in the order of `RECOMPUTE_POLICIES`; next to `none`, selective only if it
        drops something. Raises InputError: none is left."""
        policies = tuple(
            policy
            for policy in RECOMPUTE_POLICIES
            if policy in question.training.recompute and policy not in self.forbidden_recompute
        )
        if "none" in policies and not drops_something(question.model, question.stack):
            policies = tuple(policy for policy in policies if policy != "selective")
        if not policies:
            raise InputError(
                "every recompute policy is forbidden", hint="allow `full`: it needs least memory"
            )
        return policies

    def counts_blocks(self, question: Question | MixedQuestion) -> bool:
        """Whether the trainer chooses the number of first blocks of every stage that it recomputes in full."""
        counts = self.trainer is not None and trainer_named(self.trainer).counts_full
        return counts and self.recompute(question) == _FULL_COUNT_POLICIES

    def by_recompute(self, question: Question | MixedQuestion) -> tuple[Restrictions, ...]:
        """Restrictions to one recompute policy each, where the trainer has one setting for all stages, or to how many
        blocks of a stage are recomputed in full, where that is its setting; else none.

        Raises:
            InputError: no policy is left.
        """
        policies = self.recompute(question)
        if self.trainer is None:
            return ()
        trainer = trainer_named(self.trainer)
        usable = tuple(policy for policy in policies if policy in trainer.policies)
        if not usable:
            raise InputError(
                f"{trainer.name} has no recompute policy of {', '.join(policies)}",
                hint=f"it has {' and '.join(trainer.policies)}",
            )
        if len(policies) == 1 or self.counts_blocks(question):
            return ()
        joins_counts = trainer.counts_full and {*_FULL_COUNT_POLICIES} <= {*usable}
        single = [{policy} for policy in usable if not (joins_counts and policy in _FULL_COUNT_POLICIES)]
        settings = [*single, {*_FULL_COUNT_POLICIES}] if joins_counts else single
        return tuple(
            replace(self, forbidden_recompute=frozenset(RECOMPUTE_POLICIES) - setting) for setting in settings
        )

    @property
    def fix_words(self) -> tuple[str, ...]:
        """Values and bounds as `--fix` reads them, in the order of `AXES`."""
        bounds = [f"{axis}>={self.at_least[axis]}" for axis in AXES if axis in self.at_least]
        bounds += [f"{axis}<={self.at_most[axis]}" for axis in AXES if axis in self.at_most]
        return (*_words(self.only), *bounds)

    @property
    def forbid_words(self) -> tuple[str, ...]:
        """Forbidden values as `--forbid` reads them."""
        unwanted = ",".join(policy for policy in RECOMPUTE_POLICIES if policy in self.forbidden_recompute)
        left_out = [axis for axis in AXES if axis in self.unused]
        return (*_words(self.never), *left_out, *([f"recompute={unwanted}"] if unwanted else []))

    @property
    def flags(self) -> tuple[str, ...]:
        """Restrictions as flags of the command line, without `--max-memory`."""
        return (
            *(f"--fix {word}" for word in self.fix_words),
            *(f"--forbid {word}" for word in self.forbid_words),
            *(f"--allow {name}" for name in sorted(self.allowed)),
            *([f"--for {self.trainer}"] if self.trainer else []),
        )


def allowed_rows(question: Question, restrictions: Restrictions, columns: LayoutColumns) -> Bools:
    """Layouts that satisfy the restrictions and the trainer's rules, (N,)."""
    allowed = restrictions.allows(with_context_ways(question, columns))
    if restrictions.trainer is not None:
        rows = np.flatnonzero(allowed)
        allowed[rows] = rows_for(restrictions.trainer, question, columns.rows(rows))
    return allowed


def satisfies(question: Question, restrictions: Restrictions, layout: Layout) -> bool:
    """Whether a layout satisfies the restrictions and the trainer's rules."""
    allowed = allowed_rows(question, restrictions, LayoutColumns.of([layout]))
    return bool(allowed[0]) and not restrictions.forbidden_recompute.intersection(
        policy for mix in layout.recompute for policy in policies_in(mix)
    )


def with_context_ways(question: Question, columns: LayoutColumns) -> LayoutColumns:
    """Layouts with an explicit way of context parallelism, even if it is the stack's default."""
    return replace(columns, context=context_ways(question, columns))


def _unused(axis: str, columns: LayoutColumns) -> Ints | int:
    """Default of an axis."""
    followed = {"etp": columns.tp, "shard": columns.replicas}
    return followed[axis] if axis in followed else COLUMNS[axis].simplest


def names_of(axis: str) -> tuple[str, ...]:
    """Names of an axis's values, by number; empty for numeric axes."""
    if axis == "recompute":
        return RECOMPUTE_POLICIES
    word = COLUMNS[axis]
    return word.names if isinstance(word, Choice) else ()


def _words(values: Mapping[str, frozenset[int]]) -> tuple[str, ...]:
    """`tp=2,4`, `schedule=1f1b`: a word for each axis."""
    words = []
    for axis in AXES:
        if accepted := values.get(axis):
            names = names_of(axis)
            written = (names[value] if names else str(value) for value in sorted(accepted))
            words.append(f"{axis}={','.join(written)}")
    return tuple(words)
