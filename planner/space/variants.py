"""Which ZeRO stages and shard groups go with a core, worked out once for each family of cores that have the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.axes.axis import divisors, loaded
from cost_models.axes.columns import Ints, LayoutColumns, columns_that_touch
from cost_models.axes.distinct import first_of_each
from cost_models.axes.layout import AXES
from cost_models.axes.rule import Bools
from cost_models.question import Question
from planner.rules.legality import legal_rows
from planner.space.restrictions import Restrictions, allowed_rows


def families_of(cores: LayoutColumns, core: Ints, mbs: Ints) -> tuple[LayoutColumns, Ints]:
    """One layout of every family, and (N,) the family of (N,) cores with (N,) microbatch sizes, where
    some axis says that these matter."""
    if not _sized(cores).any():
        first, family = first_of_each([getattr(cores, name) for name in columns_that_touch("states")])
        return cores.rows(first), family[core]
    sized = replace(cores.rows(core), mbs=mbs)
    own = [getattr(sized, name) for name in columns_that_touch("states")]
    first, family = first_of_each([*own, np.where(_sized(sized), mbs, 0)])
    return sized.rows(first), family


def variants_of(
    question: Question, restrictions: Restrictions, families: LayoutColumns, most: LayoutColumns
) -> tuple[Ints, ...]:
    """(V, 2) the legal variants of each family; `most` are the families with the most blocks that they count: what is
    needless is left out where it is so even then."""
    family: list[int] = []
    zero: list[int] = []
    shard: list[int] = []
    for index, replicas in enumerate(families.replicas.tolist()):
        groups = divisors(replicas)[1:] if question.stack.hybrid_shard else [replicas]
        for stage in question.stack.zero_stages:
            groups_of = groups if stage else [replicas]
            family += [index] * len(groups_of)
            zero += [stage] * len(groups_of)
            shard += groups_of
    rows = families.rows(np.array(family, dtype=np.int64))
    own = {"zero": np.array(zero, dtype=np.int64), "shard": np.array(shard, dtype=np.int64)}
    rows, full = replace(rows, **own), replace(most.rows(np.array(family, dtype=np.int64)), **own)
    allowed = legal_unscheduled(question, restrictions, rows)
    allowed &= ~needless_rows(question, restrictions, full)
    legal = np.flatnonzero(allowed)
    both = np.stack([rows.zero, rows.shard], axis=1)[legal]
    borders = np.searchsorted(np.array(family, dtype=np.int64)[legal], np.arange(1, len(families)))
    return tuple(np.split(both, borders)) if len(families) else ()


def _sized(columns: LayoutColumns) -> Bools:
    """(N,): of which layouts the microbatch size decides what is legal."""
    told = [axis.sized(columns) for axis in AXES.values() if axis.sized]
    found: Bools = np.any([np.zeros(len(columns), dtype=np.bool_), *told], axis=0)
    return found


def needless_rows(question: Question, restrictions: Restrictions, columns: LayoutColumns) -> Bools:
    """(N,): which layouts have what leaves memory and time as they are, and no restriction names."""
    found = np.zeros(len(columns), dtype=np.bool_)
    for own in (axis.needless for axis in AXES.values() if axis.needless):
        if not restrictions.named.intersection(own.columns):
            found |= loaded(own.rows)(question, columns)
    return found


def legal_unscheduled(question: Question, restrictions: Restrictions, rows: LayoutColumns) -> Bools:
    """(N,): which rows keep to restrictions and rules, those of the schedule aside."""
    legal = allowed_rows(question, restrictions, rows)
    left = np.flatnonzero(legal)
    legal[left] = legal_rows(question, rows.rows(left), scheduled=False, hosts=False)
    return legal
