"""Restrictions of the user on layouts: allowed and forbidden values, bounds, and a trainer whose rules a
layout must obey.

`--fix`, `--forbid` and `--allow` as people write them: `tp=8`, `tp=2,4`, `pp>=2`, `zero3`, `cp`, `offload`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.columns import COLUMNS, LayoutColumns, context_ways, places_ranks_as
from cost_models.axes.layout import AXES as LAYOUT_AXES
from cost_models.axes.layout import RESOLVED_AS, Layout
from cost_models.axes.words import Choice, Number, Switch
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.operators.block import selective_saves_bytes
from cost_models.question import Question
from cost_models.risk import confident_share
from cost_models.specs.choices import ORDERS, RECOMPUTE_POLICIES, Recompute
from cost_models.specs.training import CHANGE_WORDS
from planner.formats.trainers import rows_for, trainer_named
from planner.space.axes import CLOSED

_COMMON = ("tp", "pp", "vpp", "dp", "mbs", "zero", "sp", "schedule")
AXES = (*_COMMON, *(name for name in COLUMNS if name not in _COMMON))
"""Columns that may be fixed or forbidden, common axes first; recompute is restricted separately."""
FULL_COUNT_POLICIES: tuple[Recompute, ...] = ("none", "full")
"""Recompute policies of a stage's blocks if the trainer only counts the blocks recomputed in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Restrictions of the user on the layouts of a search, with values as the integers of `LayoutColumns`."""

    only: dict[str, frozenset[int]] = field(default_factory=dict)
    """Allowed values of each restricted axis, by axis."""
    never: dict[str, frozenset[int]] = field(default_factory=dict)
    """Forbidden values of each restricted axis, by axis."""
    minima: dict[str, int] = field(default_factory=dict)
    """Minimum value of each restricted axis, by axis."""
    maxima: dict[str, int] = field(default_factory=dict)
    """Maximum value of each restricted axis, by axis."""
    unused: frozenset[str] = frozenset()
    """Names of the axes that keep their defaults, such as cp1, zero0, no `sp`, etp = tp, one shard group."""
    forbidden_recompute: frozenset[Recompute] = frozenset()
    allowed: frozenset[str] = frozenset()
    """Names of the closed axes, such as `offload`, that the search may use."""
    max_memory: float | None = None
    """Bytes of one device that a plan may use, if less than the device allows."""
    confidence: float | None = None
    """Minimum probability of fitting in memory, for recommended plans; None for the question's."""
    extreme_mbs: bool = False
    """Whether only the smallest and the largest microbatch size are tried, as no size between them needs less
    memory. Activations grow with the microbatch, and some bytes exist only with several microbatches."""
    trainer: str | None = None
    """Trainer whose rules a layout must obey (a name in `planner.formats.trainers.TRAINERS`)."""

    def allows(self, columns: LayoutColumns) -> Bools:
        """Whether each layout satisfies the restrictions, (N,), apart from the trainer's rules (see
        `allowed_rows`). The kind of context parallelism must be given. An order is allowed under any name
        that seats the ranks of the layout alike."""
        allowed = np.ones(len(columns), dtype=np.bool_)
        for axis in self.named_axes:
            values = getattr(columns, axis)
            if axis == "order":
                allowed &= places_ranks_as(columns, self.permitted(axis, range(len(ORDERS))))
            else:
                allowed &= self.permits(axis, values) | ((axis == "context") & (columns.cp == 1))
            if axis in self.unused and axis in RESOLVED_AS:
                allowed &= values == (columns.tp if axis == "etp" else columns.replicas)
        return allowed

    def apply_confidence(self, question: Question) -> Question:
        """Copy of the question whose minimum probability of fitting in memory is the higher of the question's
        and the restrictions'."""
        if self.confidence is None or self.confidence <= question.confidence:
            return question
        return replace(question, confidence=self.confidence)

    def with_confidence(self, question: Question, confidence: float) -> Restrictions:
        """Copy of the restrictions that requires the probability `confidence` of fitting, if it is above the
        question's. The limit `max_memory` shrinks accordingly."""
        if confidence <= question.confidence:
            return self
        shares = [confident_share(one, question.memory_error) for one in (confidence, question.confidence)]
        limit = None if self.max_memory is None else self.max_memory * shares[0] / shares[1]
        return replace(self, confidence=confidence, max_memory=limit)

    def fix_layout(self, question: Question, layout: Layout) -> Restrictions:
        """Create restrictions that only one layout satisfies, with any placement and recompute policy. Memory
        limit, confidence and trainer stay."""
        columns = with_context_ways(question, LayoutColumns.of([layout]))
        only = {axis: frozenset({int(getattr(columns, axis)[0])}) for axis in AXES}
        shared = ("forbidden_recompute", "max_memory", "confidence", "trainer")
        return Restrictions(only=only, **{name: getattr(self, name) for name in shared})

    def opens(self, name: str) -> bool:
        """Whether the search may use an axis, such as `offload`, that is closed unless the user asks for it."""
        return name in self.allowed or bool({*self.only, *self.minima} & {*LAYOUT_AXES[name].columns(name)})

    def without(self, axes: Collection[str]) -> Restrictions:
        """Copy of the restrictions without those on the named axes."""
        fields: dict[str, Any] = {
            name: {axis: value for axis, value in getattr(self, name).items() if axis not in axes}
            for name in ("only", "never", "minima", "maxima")
        }
        return replace(self, **fields, unused=self.unused.difference(axes))

    def permits(self, axis: str, values: Ints) -> Bools:
        """Whether the restrictions on an axis allow each of the values, (N,)."""
        permitted = ~np.isin(values, [*self.never.get(axis, ())])
        if axis in self.only:
            permitted &= np.isin(values, [*self.only[axis]])
        permitted &= values >= self.minima.get(axis, -np.inf)
        permitted &= values <= self.maxima.get(axis, np.inf)
        if axis in self.unused and axis not in RESOLVED_AS:
            permitted &= values == COLUMNS[axis].simplest
        return permitted

    def permitted(self, axis: str, values: Iterable[int]) -> list[int]:
        """Select the values of an axis that its restrictions allow."""
        numbers = np.fromiter(values, dtype=np.int64)
        permitted: list[int] = numbers[self.permits(axis, numbers)].tolist()
        return permitted

    def unbounded(self, axis: str, smallest: int) -> range:
        """First values to try of an axis without an upper limit, from `smallest` or the axis's minimum
        upwards. They are one more than the forbidden values, so that at least one is allowed."""
        minimum = max(smallest, self.minima.get(axis, smallest))
        return range(minimum, minimum + len(self.never.get(axis, ())) + 1)

    @property
    def named_axes(self) -> set[str]:
        """Names of the axes that have a restriction."""
        return {*self.only, *self.never, *self.minima, *self.maxima, *self.unused}

    def recompute(self, question: Question) -> tuple[Recompute, ...]:
        """Recompute policies that a stage may use, in the order of `RECOMPUTE_POLICIES`. Next to `none`,
        selective only if it drops something. Raises InputError: none is left."""
        policies = {*question.training.recompute} - self.forbidden_recompute
        if "none" in policies and not selective_saves_bytes(question.model, question.stack):
            policies.discard("selective")
        if policies:
            return tuple(policy for policy in RECOMPUTE_POLICIES if policy in policies)
        raise InputError("every recompute policy is forbidden", hint="allow `full`: it needs least memory")

    def recomputes_by_count(self, question: Question) -> bool:
        """Whether the trainer sets recompute by a single number, that of the first blocks of every stage to
        recompute in full."""
        counts = self.trainer is not None and trainer_named(self.trainer).counts_full
        return counts and self.recompute(question) == FULL_COUNT_POLICIES

    def by_recompute(self, question: Question) -> tuple[Restrictions, ...]:
        """Split the restrictions by recompute setting, for a trainer with one setting for all stages; empty
        if there is nothing to split. A setting is one policy or, where the trainer counts, the number of
        blocks of a stage recomputed in full.

        Raises:
            InputError: no policy is left.
        """
        policies = self.recompute(question)
        if self.trainer is None:
            return ()
        trainer = trainer_named(self.trainer)
        usable = tuple(policy for policy in policies if policy in trainer.policies)
        if not usable:
            hint = f"it has {' and '.join(trainer.policies)}"
            raise InputError(f"{trainer.name} has no recompute policy of {', '.join(policies)}", hint=hint)
        if len(policies) == 1 or self.recomputes_by_count(question):
            return ()
        joins_counts = trainer.counts_full and {*FULL_COUNT_POLICIES} <= {*usable}
        single = [{policy} for policy in usable if not (joins_counts and policy in FULL_COUNT_POLICIES)]
        settings = [*single, {*FULL_COUNT_POLICIES}] if joins_counts else single
        everything = frozenset(RECOMPUTE_POLICIES)
        return tuple(replace(self, forbidden_recompute=everything - setting) for setting in settings)

    @property
    def fix_words(self) -> tuple[str, ...]:
        """Arguments of `--fix` that give these allowed values and bounds, in the order of `AXES`."""
        bounds = [f"{axis}>={self.minima[axis]}" for axis in AXES if axis in self.minima]
        bounds += [f"{axis}<={self.maxima[axis]}" for axis in AXES if axis in self.maxima]
        return (*_words(self.only), *bounds)

    @property
    def forbid_words(self) -> tuple[str, ...]:
        """Arguments of `--forbid` that give these forbidden values."""
        unwanted = ",".join(policy for policy in RECOMPUTE_POLICIES if policy in self.forbidden_recompute)
        left_out = [axis for axis in AXES if axis in self.unused]
        return (*_words(self.never), *left_out, *([f"recompute={unwanted}"] if unwanted else []))

    @property
    def flags(self) -> tuple[str, ...]:
        """Command-line flags that give these restrictions, without `--max-memory`."""
        words = {"--fix": self.fix_words, "--forbid": self.forbid_words, "--allow": sorted(self.allowed)}
        flags = [f"{flag} {word}" for flag, some in words.items() for word in some]
        return (*flags, *([f"--for {self.trainer}"] if self.trainer else []))


def allowed_rows(question: Question, restrictions: Restrictions, columns: LayoutColumns) -> Bools:
    """Whether each layout satisfies the restrictions and the trainer's rules, (N,)."""
    allowed = restrictions.allows(with_context_ways(question, columns))
    if restrictions.trainer is not None:
        rows = np.flatnonzero(allowed)
        allowed[rows] = rows_for(restrictions.trainer, question, columns.rows(rows))
    return allowed


def satisfies(question: Question, restrictions: Restrictions, layout: Layout) -> bool:
    """Whether a layout satisfies the restrictions and the trainer's rules."""
    allowed = allowed_rows(question, restrictions, LayoutColumns.of([layout]))
    return bool(allowed[0]) and restrictions.forbidden_recompute.isdisjoint(layout.policies)


def with_context_ways(question: Question, columns: LayoutColumns) -> LayoutColumns:
    """Copies of the layouts that name their kind of context parallelism, even the stack's default."""
    return replace(columns, context=context_ways(question, columns))


def names_of(axis: str) -> tuple[str, ...]:
    """Names of the values of an axis in the order of their numbers; empty for numeric axes."""
    if axis == "recompute":
        return RECOMPUTE_POLICIES
    word = COLUMNS[axis]
    return word.names if isinstance(word, Choice) else ()


def _words(values: Mapping[str, frozenset[int]]) -> tuple[str, ...]:
    """Arguments such as `tp=2,4` and `schedule=1f1b`, one for each axis with values."""
    words = []
    for axis in AXES:
        names, accepted = names_of(axis), sorted(values.get(axis, ()))
        written = ",".join(names[value] if names else str(value) for value in accepted)
        words += [f"{axis}={written}"] * bool(accepted)
    return tuple(words)


MOST_WORDS = 1000
"""Maximum number of words of `--fix` and `--forbid` together."""

_OPENS = (*CLOSED, *CHANGE_WORDS)
"""Names that `--allow` takes: axes of layouts, and options that change the mathematics."""
_PARTS = [name for name in COLUMNS if "_" in name]
_WORD = re.compile(rf"({'|'.join([*_PARTS, '[a-z]+'])})(<=|>=|<|>|=)?(.*)$", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}$", re.ASCII)
_NEGATION = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
"""Negation of each comparison operator, for `--forbid`."""
_BOUNDS = {"<": ("maxima", -1), "<=": ("maxima", 0), ">": ("minima", 1), ">=": ("minima", 0)}
"""Field of `Restrictions` that each comparison operator sets, and the integer added to the number."""


class _Word(NamedTuple):
    """One word of `--fix` or `--forbid`, such as `tp=2,4`, after parsing."""

    flag: str
    text: str
    axis: str
    kind: str
    """Field of `Restrictions` that the word sets."""
    values: frozenset[int]
    """Values or bound in the text, as far as it can be read."""


def parse_restrictions(
    fix: Sequence[str] = (),
    forbid: Sequence[str] = (),
    *,
    max_memory: float | None = None,
    trainer: str | None = None,
    allow: Sequence[str] = (),
) -> Restrictions:
    """Parse `--fix tp=8 --fix pp>=2 --forbid zero3 --forbid cp --for megatron`; a layout satisfies every word.

    `--allow offload` opens an axis that the search otherwise leaves alone, `--forbid offload` keeps it closed.

    Raises:
        InputError: every word that is wrong, at once, or words that contradict one another.
    """
    if (count := len(fix) + len(forbid)) > MOST_WORDS:
        raise InputError(f"{count:,} restrictions are more than anybody needs: {MOST_WORDS} at most")
    problems: list[Problem] = []
    shut = [name for name in CLOSED if name in forbid]
    words = [*_read("--fix", fix, problems)]
    words += _read("--forbid", [word for word in forbid if word not in shut], problems)
    problems += _unusable_words(words, shut, allow, trainer)
    names = ("only", "never", "minima", "maxima", "unused")
    sets = {name: dict[str, frozenset[int]]() for name in names}
    for word in words:
        if word.values or word.kind == "unused":
            combine = frozenset.intersection if word.kind == "only" else frozenset.union
            sets[word.kind][word.axis] = combine(word.values, sets[word.kind].get(word.axis, word.values))
    only, never, minima, maxima, unused = sets.values()
    policies = frozenset(range(len(RECOMPUTE_POLICIES)))
    unwanted = never.pop("recompute", frozenset()) | (policies - only.pop("recompute", policies))
    restrictions = Restrictions(
        only=only,
        never=never,
        minima={axis: max(bounds) for axis, bounds in minima.items()},
        maxima={axis: min(bounds) for axis, bounds in maxima.items()},
        unused=frozenset(unused),
        forbidden_recompute=frozenset(RECOMPUTE_POLICIES[index] for index in unwanted),
        max_memory=max_memory,
        trainer=trainer,
        allowed=frozenset(allow),
    )
    emptied = [axis for axis in (*AXES, "recompute") if not _leaves_something(restrictions, axis)]
    of_axes = {axis: [word for word in words if word.axis == axis] for axis in emptied}
    written = {axis: " ".join(f"{word.flag} {word.text}" for word in some) for axis, some in of_axes.items()}
    contradictions = [Problem(text, f"no value of `{axis}` is left") for axis, text in written.items()]
    if problems:
        unread = "a restriction" if len(problems) == 1 else f"{len(problems)} restrictions"
        hint = "write them like `--fix tp=8`, `--fix pp>=2`, `--forbid zero3` or `--forbid cp`"
        raise InputError(f"{unread} cannot be read", problems=[*problems, *contradictions], hint=hint)
    if emptied:
        hint = _either(of_axes[emptied[0]]) or "every one of them must hold: drop one"
        raise InputError("--fix and --forbid contradict one another", problems=contradictions, hint=hint)
    return restrictions


def _unusable_words(
    words: Sequence[_Word], shut: Sequence[str], allow: Sequence[str], trainer: str | None
) -> Iterator[Problem]:
    """Yield problems with axes that are both opened and closed, with words that lack a value, and with
    unknown names."""
    for name in shut:
        columns = LAYOUT_AXES[name].columns(name)
        opening = [f"`--allow {name}`"] * (name in allow)
        fixes = [word for axis in columns for word in words if word.flag == "--fix" and word.axis == axis]
        opening += [f"`--fix {word.text}`" for word in fixes]
        if opening:
            yield Problem(f"--forbid {name}", f"is opened by {' and '.join(opening)}")
    bare = {(word.flag, word.axis): names_of(word.axis) for word in words if word.text == word.axis}
    for (flag, axis), names in sorted(bare.items()):
        example = f"{axis}={names[0]}" if names else f"{axis}=2` or `{axis}>=2"
        if flag == "--fix" and not isinstance(COLUMNS.get(axis), Switch):
            yield Problem(f"--fix {axis}", f"needs a value, like `{example}`")
        elif flag == "--forbid" and axis in ("schedule", "context"):
            yield Problem(f"--forbid {axis}", f"say which, like `{example}`")
    for name in allow:
        if name not in CLOSED:
            yield Problem(f"--allow {name}", f"is none of {', '.join(_OPENS)}{did_you_mean(name, _OPENS)}")
    if trainer is not None:
        try:
            trainer_named(trainer)
        except InputError as error:
            yield Problem(f"--for {trainer}", f"{error.headline} ({error.hint})")


def _either(words: Sequence[_Word]) -> str:
    """Hint that `--fix AXIS=A,B` allows several values of an axis, if the user fixed it several times; else
    empty."""
    axis, lists = words[0].axis, [word.text.removeprefix(word.axis).removeprefix("=") for word in words]
    fixes_values = all(word.flag == "--fix" for word in words) and all(text[:1].isalnum() for text in lists)
    return f"`--fix {axis}={','.join(lists)}` allows either" if fixes_values and len(lists) > 1 else ""


def _leaves_something(limits: Restrictions, axis: str) -> bool:
    """Whether the restrictions permit some value of an axis."""
    if axis == "recompute":
        return len(limits.forbidden_recompute) < len(RECOMPUTE_POLICIES)
    if axis == "context" and axis not in limits.only and limits.permitted("cp", [1]):
        return True  # no choice is needed where the degree is one
    values = COLUMNS[axis].number_range or limits.unbounded(axis, COLUMNS[axis].simplest)
    return bool(limits.permitted(axis, [*values, *limits.only.get(axis, ())]))


def _read(flag: str, texts: Sequence[str], problems: list[Problem]) -> Iterator[_Word]:
    """Parse the arguments of one flag, `--fix` or `--forbid`, and append a problem for each that cannot be
    read. Words are `cp`, `schedule=1f1b,gpipe`, `tp=2,4`, `tp8`, `pp>=2`, `sp=0`."""
    axes = (*AXES, "recompute")
    for text in texts:
        match = _WORD.match(text)
        axis, comparison, numbers = match.groups("") if match else (text, "", "")
        if axis not in axes:
            complaint = f"`{axis}` is not part of a layout{did_you_mean(axis, axes)}"
            problems.append(Problem(f"{flag} {text}", complaint))
            continue
        is_bound, names, values = comparison not in ("", "="), names_of(axis), set[int]()
        kind, distance = "only" if flag == "--fix" else "never", 0
        if is_bound:
            kind, distance = _BOUNDS[_NEGATION[comparison] if flag == "--forbid" else comparison]
        if text == axis == "recompute":
            kind, values = "only", {RECOMPUTE_POLICIES.index("none")} if flag == "--forbid" else set()
        elif text == axis:
            kind, values = ("only", {1}) if flag == "--fix" else ("unused", set())
        elif names and comparison != "=":
            problems.append(Problem(f"{flag} {text}", f"`{axis}` is a choice: write `{axis}={names[0]}`"))
        else:
            for value in [numbers] if is_bound else numbers.split(","):
                if complaint := _complaint(axis, value, is_bound):
                    problems.append(Problem(f"{flag} {text}", complaint))
                else:
                    values.add(names.index(value) if names else int(value) + distance)
        yield _Word(flag, text, axis, kind, frozenset(values))


def _complaint(axis: str, text: str, is_bound: bool) -> str:
    """Complaint about a value of an axis that no layout can have; empty for a possible value."""
    if names := names_of(axis):
        unknown = f"`{text}` is not one of {', '.join(names)}{did_you_mean(text, names)}"
        return "" if text in names else unknown
    word = COLUMNS[axis]
    if not _NUMBER.match(text):
        return f"`{text}` is not {'0 or 1' if isinstance(word, Switch) else 'a whole number'}"
    value = int(text)
    if isinstance(word, Switch):
        return f"`{axis}` is a switch, not a number" if is_bound else f"`{value}` is not 0 or 1" * (value > 1)
    assert isinstance(word, Number)
    return "" if word.low <= value and (word.high is None or value <= word.high) else word.outside
