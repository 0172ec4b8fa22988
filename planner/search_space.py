"""All legal layouts of a model on a cluster, as columns, within what the user fixed or forbade."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.question import Question
from cost_models.specs.columns import Ints, LayoutColumns
from cost_models.specs.layout import SCHEDULES
from cost_models.specs.recompute import RECOMPUTE_POLICIES, Recompute
from cost_models.specs.training import TrainingSpec
from planner.chunks import goes_in_chunks
from planner.legality import Bools, legal_rows

SEARCHED_AXES = ("tp", "pp", "vpp", "dp", "mbs", "zero", "sp", "schedule")
"""The columns a layout is searched over; recompute is chosen stage by stage inside each layout."""
GIVEN_AXES = ("cp", "ep", "etp", "shard")
"""The columns that stay at their default unless the user fixes them."""
AXES = SEARCHED_AXES + GIVEN_AXES

ZERO_STAGES = 4
"""ZeRO 0 to 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """What the user fixed or forbade, in the integers of `LayoutColumns`."""

    only: dict[str, frozenset[int]] = field(default_factory=dict)
    """Axis → the values it may take."""
    never: dict[str, frozenset[int]] = field(default_factory=dict)
    """Axis → values it must not take."""
    forbidden_recompute: frozenset[Recompute] = frozenset()
    max_memory: float | None = None
    """Bytes of one device a plan may fill, where that is less than the device allows."""

    def allows(self, columns: LayoutColumns) -> Bools:
        """(N,): which layouts keep to them."""
        allowed = np.ones(len(columns), dtype=np.bool_)
        for axis, values in self.only.items():
            allowed &= np.isin(getattr(columns, axis), list(values))
        for axis, values in self.never.items():
            allowed &= ~np.isin(getattr(columns, axis), list(values))
        return allowed

    def recompute(self, training: TrainingSpec) -> tuple[Recompute, ...]:
        """The policies a stage may use, in the order of `RECOMPUTE_POLICIES`.

        Raises:
            InputError: none is left.
        """
        kept = tuple(
            policy
            for policy in RECOMPUTE_POLICIES
            if policy in training.recompute and policy not in self.forbidden_recompute
        )
        if not kept:
            raise InputError(
                "every recompute policy is forbidden", hint="allow `full`: it needs least memory"
            )
        return kept

    @property
    def fix_words(self) -> tuple[str, ...]:
        """`only` as `--fix` reads it, in the order of `AXES`."""
        return _words(self.only)

    @property
    def forbid_words(self) -> tuple[str, ...]:
        """`never` and `forbidden_recompute` as `--forbid` reads them."""
        unwanted = [policy for policy in RECOMPUTE_POLICIES if policy in self.forbidden_recompute]
        return (*_words(self.never), *(f"recompute={policy}" for policy in unwanted))


def _words(values: Mapping[str, frozenset[int]]) -> tuple[str, ...]:
    """`tp=8`, `schedule=1f1b`: a word for each value of each axis."""
    return tuple(
        f"{axis}={_NAMES[axis][value] if axis in _NAMES else value}"
        for axis in AXES
        for value in sorted(values.get(axis, ()))
    )


_DEGREES = ("tp", "pp", "vpp", "dp", "mbs", "zero", *GIVEN_AXES)
_WORD = re.compile(rf"({'|'.join(_DEGREES)})=?(\d{{1,12}})$", re.ASCII)
_NAMES: dict[str, tuple[str, ...]] = {"schedule": SCHEDULES, "recompute": RECOMPUTE_POLICIES}


def parse_restrictions(
    fix: Sequence[str] = (), forbid: Sequence[str] = (), *, max_memory: float | None = None
) -> Restrictions:
    """Read `--fix tp=8 --fix schedule=1f1b --forbid zero3 --forbid recompute=full`; repeating an axis allows both.

    Raises:
        InputError: every word that is wrong, at once.
    """
    problems: list[Problem] = []
    only, never = _collect("--fix", fix, problems), _collect("--forbid", forbid, problems)
    if problems:
        raise InputError(
            f"{len(problems)} restrictions cannot be read"
            if len(problems) > 1
            else "a restriction cannot be read",
            problems=problems,
            hint="write them like `--fix tp=8` or `--forbid zero3`",
        )
    unwanted = never.pop("recompute", set())
    if kept := only.pop("recompute", set()):
        unwanted |= set(range(len(RECOMPUTE_POLICIES))) - kept
    return Restrictions(
        only={axis: frozenset(values) for axis, values in only.items()},
        never={axis: frozenset(values) for axis, values in never.items()},
        forbidden_recompute=frozenset(RECOMPUTE_POLICIES[index] for index in unwanted),
        max_memory=max_memory,
    )


def _collect(flag: str, words: Sequence[str], problems: list[Problem]) -> dict[str, set[int]]:
    """Axis → values; what cannot be read is added to `problems`."""
    values: dict[str, set[int]] = {}
    for word in words:
        axis, _, name = word.partition("=")
        if match := _WORD.match(word):
            axis, value = match[1], int(match[2])
            values.setdefault(axis, set()).add(value)
            if complaint := _out_of_range(axis, value):
                problems.append(Problem(f"{flag} {word}", complaint))
        elif axis == "sp" and name in ("", "0", "1"):
            values.setdefault("sp", set()).add(int(name or "1"))
        elif name in _NAMES.get(axis, ()):
            values.setdefault(axis, set()).add(_NAMES[axis].index(name))
        elif axis in _NAMES:
            known = _NAMES[axis]
            what = f"`{name}` is not one of {', '.join(known)}{did_you_mean(name, known)}"
            problems.append(Problem(f"{flag} {word}", what))
        elif axis in AXES:
            number = "0 or 1" if axis == "sp" else "a whole number"
            problems.append(Problem(f"{flag} {word}", f"`{name}` is not {number}"))
        else:
            known = (*AXES, "recompute")
            problems.append(
                Problem(f"{flag} {word}", f"`{axis}` is not part of a layout{did_you_mean(axis, known)}")
            )
    return values


def _out_of_range(axis: str, value: int) -> str:
    """What is wrong with a value no layout can have, or nothing."""
    if axis == "zero":
        return "" if value < ZERO_STAGES else f"ZeRO has stages 0 to {ZERO_STAGES - 1}"
    return "" if value > 0 else "must be above zero"


def enumerate_layouts(question: Question, restrictions: Restrictions) -> LayoutColumns:
    """Every layout that breaks no rule of `planner.legality` and keeps to the restrictions.

    The candidates are the divisors of GPUs and batch; the rules do the rest.
    """
    model, cluster = question.model, question.cluster
    blocks = [
        _candidates(question, restrictions, tp, pp, cp)
        for cp in sorted(restrictions.only.get("cp", {1}))
        for tp in _divisors(cluster.gpus_per_node)
        if cluster.num_gpus % (tp * cp) == 0
        for pp in _divisors(cluster.num_gpus // (tp * cp))
        if pp <= model.num_layers
    ]
    columns = _columns(np.concatenate(blocks) if blocks else np.empty((0, len(AXES)), dtype=np.int64))
    columns = columns.rows(np.flatnonzero(restrictions.allows(columns)))
    return columns.rows(np.flatnonzero(legal_rows(question, columns)))


def _candidates(question: Question, restrictions: Restrictions, tp: int, pp: int, cp: int) -> Ints:
    """(N, axes): the layouts of one tp × pp × cp; every legal one is among them."""
    model, training, only = question.model, question.training, restrictions.only
    dp = question.cluster.num_gpus // (tp * pp * cp)
    if training.global_batch % dp:
        return np.empty((0, len(AXES)), dtype=np.int64)
    one_chunk = [(1, SCHEDULES.index("1f1b"))] + ([(1, SCHEDULES.index("gpipe"))] if pp > 1 else [])
    chunks = [
        vpp for vpp in range(2, model.num_layers // pp + 1) if goes_in_chunks(model.num_layers, pp * vpp)
    ]
    interleaved = [(vpp, SCHEDULES.index("interleaved")) for vpp in chunks if pp > 1]
    shapes = np.array(one_chunk + interleaved, dtype=np.int64)
    mbs = np.array(_divisors(training.global_batch // dp), dtype=np.int64)
    switches = np.array(
        list(product(range(ZERO_STAGES if dp * cp > 1 else 1), range(2 if tp > 1 else 1))), dtype=np.int64
    )
    defaults = {"ep": 1, "etp": tp, "shard": dp * cp}
    given = np.array(
        list(product(*(sorted(only.get(axis, {default})) for axis, default in defaults.items()))),
        dtype=np.int64,
    )
    sizes = (len(shapes), len(mbs), len(switches), len(given))
    shape_i, mbs_i, switch_i, given_i = (index.ravel() for index in np.indices(sizes, dtype=np.int64))
    same = np.ones_like(shape_i)
    vpp, schedule = shapes[shape_i].T
    zero, sp = switches[switch_i].T
    searched = [tp * same, pp * same, vpp, dp * same, mbs[mbs_i], zero, sp, schedule]
    return np.stack([*searched, cp * same, *given[given_i].T], axis=1)


def _columns(table: Ints) -> LayoutColumns:
    return LayoutColumns(**{axis: np.ascontiguousarray(table[:, i]) for i, axis in enumerate(AXES)})


def _divisors(number: int) -> list[int]:
    """In rising order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
