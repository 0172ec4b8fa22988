"""`--fix`, `--forbid` and `--allow` as people write them: `tp=8`, `tp=2,4`, `pp>=2`, `zero3`, `cp`, `offload`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from cost_models.axes.columns import COLUMNS
from cost_models.axes.layout import AXES as LAYOUT_AXES
from cost_models.axes.words import Number, Switch
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.specs.changes import WORDS
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.formats.trainers import trainer_named
from planner.space.axes import CLOSED
from planner.space.restrictions import AXES, Restrictions, names_of

MOST_WORDS = 1000
"""Maximum number of words of `--fix` and `--forbid` together."""

_OPENS = (*CLOSED, *WORDS)
"""Names that `--allow` takes: axes of layouts, and options that change the mathematics."""
_PARTS = [name for name in COLUMNS if "_" in name]
_WORD = re.compile(rf"({'|'.join([*_PARTS, '[a-z]+'])})(<=|>=|<|>|=)?(.*)$", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}$", re.ASCII)
_OTHERWISE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
"""Comparison → its negation, for `--forbid`."""


@dataclass(slots=True)
class _Read:
    """Parsed words of one flag; unreadable words are in `problems`."""

    flag: str
    problems: list[Problem]
    words: dict[str, list[str]] = field(default_factory=dict)
    """Axis → words about the axis."""
    values: dict[str, set[int]] = field(default_factory=dict)
    at_least: dict[str, int] = field(default_factory=dict)
    at_most: dict[str, int] = field(default_factory=dict)
    bare: set[str] = field(default_factory=set)

    def choose(self, axis: str, values: set[int]) -> None:
        """Combine values: repeated `--fix` intersects, repeated `--forbid` adds."""
        earlier = self.values.get(axis, values)
        self.values[axis] = earlier & values if self.flag == "--fix" else earlier | values

    def bound(self, axis: str, comparison: str, value: int) -> None:
        """Tighten the bound of an axis."""
        if comparison.startswith(">"):
            lower = value + (comparison == ">")
            self.at_least[axis] = max(lower, self.at_least.get(axis, lower))
        else:
            upper = value - (comparison == "<")
            self.at_most[axis] = min(upper, self.at_most.get(axis, upper))


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
    if len(fix) + len(forbid) > MOST_WORDS:
        raise InputError(
            f"{len(fix) + len(forbid):,} restrictions are more than anybody needs: {MOST_WORDS} at most"
        )
    problems: list[Problem] = []
    shut = [name for name in CLOSED if name in forbid]
    fixed = _read("--fix", fix, problems)
    left_out = _read("--forbid", [word for word in forbid if word not in shut], problems)
    problems.extend(
        Problem(f"--forbid {name}", f"is opened by {words}")
        for name in shut
        if (words := _opening(name, fixed, allow))
    )
    problems += _unusable(fixed, left_out, allow, trainer)
    unwanted = _turned_round(fixed, left_out)
    for axis in fixed.bare:
        fixed.choose(axis, {1})
    restrictions = Restrictions(
        only={axis: frozenset(values) for axis, values in fixed.values.items()},
        never={axis: frozenset(values) for axis, values in left_out.values.items()},
        at_least=fixed.at_least,
        at_most=fixed.at_most,
        unused=frozenset(left_out.bare - {"recompute"}),
        forbidden_recompute=frozenset(RECOMPUTE_POLICIES[index] for index in unwanted),
        max_memory=max_memory,
        trainer=trainer,
        allowed=frozenset(allow),
    )
    emptied = [axis for axis in (*AXES, "recompute") if not _leaves_something(restrictions, axis)]
    if problems:
        raise InputError(
            "a restriction cannot be read"
            if len(problems) == 1
            else f"{len(problems)} restrictions cannot be read",
            problems=[*problems, *_contradictions(emptied, fixed, left_out)],
            hint="write them like `--fix tp=8`, `--fix pp>=2`, `--forbid zero3` or `--forbid cp`",
        )
    if emptied:
        raise InputError(
            "--fix and --forbid contradict one another",
            problems=_contradictions(emptied, fixed, left_out),
            hint=_either(emptied[0], fixed, left_out) or "every one of them must hold: drop one",
        )
    return restrictions


def _turned_round(fixed: _Read, left_out: _Read) -> set[int]:
    """Turn forbidden bounds into fixed bounds; returns the recompute policies that no stage may use."""
    for axis, upper in left_out.at_most.items():
        fixed.bound(axis, "<=", upper)
    for axis, lower in left_out.at_least.items():
        fixed.bound(axis, ">=", lower)
    policies = set(range(len(RECOMPUTE_POLICIES)))
    unwanted = left_out.values.pop("recompute", set())
    unwanted |= policies - fixed.values.pop("recompute", policies)
    if "recompute" in left_out.bare:
        unwanted |= policies - {RECOMPUTE_POLICIES.index("none")}
    return unwanted


def _unusable(fixed: _Read, left_out: _Read, allow: Sequence[str], trainer: str | None) -> Iterator[Problem]:
    """Problems of words that say too little, and of unknown names."""
    for axis in sorted(axis for axis in fixed.bare if not _is_switch(axis)):
        names = names_of(axis)
        example = f"{axis}={names[0]}" if names else f"{axis}=2` or `{axis}>=2"
        yield Problem(f"--fix {axis}", f"needs a value, like `{example}`")
    yield from (
        Problem(f"--forbid {axis}", f"say which, like `{axis}={names_of(axis)[0]}`")
        for axis in sorted(left_out.bare - {"recompute"})
        if axis in ("schedule", "context")
    )
    yield from (
        Problem(f"--allow {name}", f"is none of {', '.join(_OPENS)}{did_you_mean(name, _OPENS)}")
        for name in allow
        if name not in CLOSED
    )
    if trainer is not None:
        try:
            trainer_named(trainer)
        except InputError as error:
            yield Problem(f"--for {trainer}", f"{error.headline} ({error.hint})")


def _opening(name: str, fixed: _Read, allow: Sequence[str]) -> str:
    """Words of `--allow` and `--fix` that open a closed axis; empty if none does."""
    requested = [word for axis in LAYOUT_AXES[name].columns(name) for word in fixed.words.get(axis, [])]
    return " and ".join([f"`--allow {name}`"] * (name in allow) + [f"`--fix {word}`" for word in requested])


def _contradictions(emptied: Sequence[str], fixed: _Read, left_out: _Read) -> list[Problem]:
    """Problem of each axis without a permitted value: the words that contradict one another."""
    problems = []
    for axis in emptied:
        words = [f"{read.flag} {word}" for read in (fixed, left_out) for word in read.words.get(axis, ())]
        problems.append(Problem(" ".join(words), f"no value of `{axis}` is left"))
    return problems


def _either(axis: str, fixed: _Read, left_out: _Read) -> str:
    """Hint to allow several fixed values; empty if there are not several."""
    lists = [word.removeprefix(axis).removeprefix("=") for word in fixed.words.get(axis, ())]
    if axis in left_out.words or len(lists) < 2 or not all(text[:1].isalnum() for text in lists):
        return ""
    return f"`--fix {axis}={','.join(lists)}` allows either"


def _leaves_something(limits: Restrictions, axis: str) -> bool:
    """Whether some value of an axis is permitted, apart from other axes."""
    if axis == "recompute":
        return len(limits.forbidden_recompute) < len(RECOMPUTE_POLICIES)
    word, values = COLUMNS[axis], COLUMNS[axis].every
    if axis == "context" and axis not in limits.only and limits.permits("cp", np.array([1])).all():
        return True  # no choice is needed where the degree is one
    if values is None:  # a number: beyond those left out and those below the bound there is one more
        minimum = max(word.simplest, limits.at_least.get(axis, word.simplest))
        values = range(minimum, minimum + len(limits.never.get(axis, ())) + 1)
    return bool(limits.permits(axis, np.array([*values, *limits.only.get(axis, ())], dtype=np.int64)).any())


def _is_switch(axis: str) -> bool:
    return axis in COLUMNS and isinstance(COLUMNS[axis], Switch)


def _read(flag: str, words: Sequence[str], problems: list[Problem]) -> _Read:
    read = _Read(flag, problems)
    for word in words:
        match = _WORD.match(word)
        axis, comparison, text = (match[1], match[2] or "", match[3]) if match else (word, "", "")
        axes = (*AXES, "recompute")
        if axis not in axes:
            complaint = f"`{axis}` is not part of a layout{did_you_mean(axis, axes)}"
            problems.append(Problem(f"{flag} {word}", complaint))
            continue
        read.words.setdefault(axis, []).append(word)
        if not comparison and not text:
            read.bare.add(axis)
        elif names_of(axis):
            _read_names(read, word, axis, comparison, text)
        else:
            _read_numbers(read, word, axis, comparison, text)
    return read


def _read_names(read: _Read, word: str, axis: str, comparison: str, text: str) -> None:
    """`schedule=1f1b,gpipe`."""
    names = names_of(axis)
    if comparison != "=":
        complaint = f"`{axis}` is a choice: write `{axis}={names[0]}`"
        read.problems.append(Problem(f"{read.flag} {word}", complaint))
        return
    values = set()
    for name in text.split(","):
        if name in names:
            values.add(names.index(name))
        else:
            complaint = f"`{name}` is not one of {', '.join(names)}{did_you_mean(name, names)}"
            read.problems.append(Problem(f"{read.flag} {word}", complaint))
    if values:
        read.choose(axis, values)


def _read_numbers(read: _Read, word: str, axis: str, comparison: str, text: str) -> None:
    """`tp=2,4`, `tp8`, `pp>=2`, `sp=0`."""
    bound, values = comparison not in ("", "="), set()
    for number in [text] if bound else text.split(","):
        if not _NUMBER.match(number):
            kind = "0 or 1" if _is_switch(axis) else "a whole number"
            read.problems.append(Problem(f"{read.flag} {word}", f"`{number}` is not {kind}"))
        elif complaint := _out_of_range(axis, int(number), bound=bound):
            read.problems.append(Problem(f"{read.flag} {word}", complaint))
        elif bound:
            read.bound(axis, _OTHERWISE[comparison] if read.flag == "--forbid" else comparison, int(number))
        else:
            values.add(int(number))
    if values:
        read.choose(axis, values)


def _out_of_range(axis: str, value: int, *, bound: bool) -> str:
    """Complaint about a value that no layout can have; empty if there is none."""
    if _is_switch(axis):
        return f"`{axis}` is a switch, not a number" if bound else f"`{value}` is not 0 or 1" * (value > 1)
    word = COLUMNS[axis]
    assert isinstance(word, Number)
    return "" if word.least <= value and (word.most is None or value <= word.most) else word.outside
