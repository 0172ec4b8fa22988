"""Errors that users meet, as one tree of `ValueError`s.

    MeshwrightError            exit code
    ├── InputError             2   what the user wrote is wrong: a file, a field, a flag, a name
    │   └── UnknownNameError   2   a name that is in no catalogue, with the nearest ones
    ├── InfeasibleError        1   the question is fine, the answer is no
    │   └── DoesNotFitError    1   no layout fits in memory, with what would
    ├── HostError              2   this machine cannot do it: too few devices, missing backend
    └── RunError               1   a run failed: out of memory, a diverging loss, a lost rank
        └── NothingPlacedError 1   a search ended before any layout was placed, though some may fit

Every error carries all its problems at once (of a file that is nothing but problems the first) and at most one hint;
the front door draws them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

WARNING = "warning: "
"""Prefix of a note about lost data, which is shown even where notes are not."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in the user's input, as location `where` (`file:line field.path`, or a flag) and sentence
    `what` without a full stop."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


MOST_PROBLEMS = 20
"""Maximum problems listed for one file, or printed for one error."""


class MeshwrightError(ValueError):
    """Base class of all errors shown to users; `str(error)` begins with a headline in the user's terms and
    numbers."""

    exit_code = 2

    def __init__(
        self, headline: str, *, problems: Sequence[Problem] = (), more: int = 0, hint: str = ""
    ) -> None:
        """Create the error; `more` is the number of further problems beyond the listed ones."""
        super().__init__(headline)
        self.headline = headline
        self.problems = (*problems, *_and_more(more))
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.headline, *(f"  {problem}" for problem in self.problems)]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class InputError(MeshwrightError):
    """Invalid user input in a file, a field, a flag or a name."""


class UnknownNameError(InputError):
    """A name is in no catalogue; `like` is the part of that name to compare with known names."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, like: str | None = None, hint: str = ""
    ) -> None:
        guess = did_you_mean(like or name, alike(like or name, known))
        super().__init__(f"unknown {kind} `{name}`{guess}", hint=hint)


class InfeasibleError(MeshwrightError):
    """A valid question has no solution, such as no layout that fits."""

    exit_code = 1
    space = ""
    """The searched space in words; empty where nothing was legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A variant of an infeasible question that does have a solution, with the plan that fits."""

    change: str
    """The change as typed on the command line or written in a file: `--gpus 16`."""
    note: str = ""
    """A further fact about the change: "the fewest above 8"."""
    gpus: int
    layout: str
    step_seconds: float
    peak_bytes: float
    """Peak bytes of the fullest device."""
    memory_limit: float
    """Bytes of that device that a plan may use."""

    def __str__(self) -> str:
        from cost_models.units import format_bytes, format_seconds  # imports pydantic, so late

        note = f" ({self.note})" if self.note else ""
        size, step = format_bytes(self.peak_bytes), format_seconds(self.step_seconds)
        words = [word for word in self.layout.split() if not word.startswith(("layers=", "recompute="))]
        return f"{self.change}{note}: {size}, {step} a step, {' '.join(words)}"


class DoesNotFitError(InfeasibleError):
    """No layout of the question fits in memory."""

    would_fit: tuple[Alternative, ...] = ()
    """Changes of the question after which a plan fits, if any were searched for."""

    def __init__(self, headline: str, *, state_bytes: float = 0.0, closest: Any = None, **words: Any) -> None:
        """Create the error; `words` are its problems and its hint."""
        super().__init__(headline, **words)
        self.state_bytes = state_bytes
        """Lower bound on bytes of weights, gradients and optimizer states over all devices together; 0:
        unknown."""
        self.closest = closest
        """`Estimate` of the closest layout, if there is one."""

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"would fit: {one}" for one in self.would_fit)])


class HostError(MeshwrightError):
    """The machine running the command cannot do the requested work."""


class RunError(MeshwrightError):
    """A training or measuring run failed."""

    exit_code = 1


class NothingPlacedError(RunError):
    """A search ended before placing the blocks of any layout, though some layout may fit."""

    def __init__(self, headline: str, *, hint: str = "", space: str = "") -> None:
        """Create the error; `space` describes in words the layouts that were to be searched."""
        super().__init__(headline, hint=hint)
        self.space = space


class StoppedError(RunError):
    """A training run was stopped on request, after completing a step."""

    exit_code = 130


def first_of(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The first `MOST_PROBLEMS` problems, followed by one that says how many more there are."""
    if len(problems) <= MOST_PROBLEMS + 1:
        return tuple(problems)
    return (*problems[:MOST_PROBLEMS], *_and_more(len(problems) - MOST_PROBLEMS))


def _and_more(number: int) -> tuple[Problem, ...]:
    return (Problem("", f"and {number:,} more"),) if number > 0 else ()


def closest(name: str, known: Iterable[str]) -> str | None:
    """Known name with the most similar spelling; None if none is similar."""
    spellings = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), list(spellings), n=1, cutoff=0.6)
    return spellings[close[0]] if close else None


def alike(name: str, known: Iterable[str]) -> list[str]:
    """Known names of which `name` may be a misspelling, and not simply another model, GPU, cluster or stack.

    Their numbers (sizes, releases) are equal and their letters almost; if the first word is a known family,
    only that family's names count. If there are none, all names that begin with the given one.
    """
    listed, (first, letters, numbers, plain) = list(known), _spelt(name)

    def slip(word: str) -> bool:
        return sorted(word) == sorted(letters) or difflib.SequenceMatcher(None, letters, word).ratio() > 0.7

    family = [one for one in listed if _spelt(one)[0] == first] or listed
    return [one for one in family if _spelt(one)[2] == numbers and slip(_spelt(one)[1])] or [
        one for one in listed if len(plain) > 2 and _spelt(one)[3].startswith(plain)
    ]


def _spelt(name: str) -> tuple[str, str, list[str], str]:
    """Parts of a name for spelling comparison, as (first word, letters, numbers, letters and digits without
    separators)."""
    low = name.strip().lower()
    numbers, plain = re.findall(r"[\d.]*\d", low), re.sub(r"[^a-z\d]", "", low)
    return re.split(r"[^a-z]", low, maxsplit=1)[0], re.sub(r"\d", "", plain), numbers, plain


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Suggestion "; did you mean `x`?" with the closest known name, or an empty text."""
    guess = closest(name, known)
    return "" if guess is None else f"; did you mean `{guess}`?"


def either(words: list[str]) -> str:
    """Words joined by commas and "or", such as "a", "a or b", "a, b or c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def require_installed(what: str, **requirements: str) -> None:
    """Raise HostError if a package that the feature `what` needs is missing, as in `require_installed("`run`",
    torch="torch>=2")`.

    The hint has all of them, as packages of one extra come together.
    """
    missing = [package for package in requirements if find_spec(package) is None]
    if missing:
        raise HostError(
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            hint="pip install " + " ".join(f"'{one}'" for one in requirements.values()),
        )
