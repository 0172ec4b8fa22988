"""Exceptions shown to users, all subclasses of `MeshwrightError`, and suggestions for misspelt names.

    MeshwrightError            exit code
    ├── InputError             2   what the user wrote is wrong: a file, a field, a flag, a name
    │   └── UnknownNameError   2   a name that is in no catalogue, with the nearest ones
    ├── InfeasibleError        1   the question is fine, the answer is no
    │   └── DoesNotFitError    1   no layout fits in memory, with what would
    ├── HostError              2   this machine cannot do it: too few devices, missing backend
    └── RunError               1   a run failed: out of memory, a diverging loss, a lost rank
        └── NothingPlacedError 3   a search ended before any layout was placed, though some may fit

An answer whose proof time did not allow ends with exit code 3, too; it is printed and saved as any other.

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
"""Prefix of a note about lost data, which is printed even where other notes are not."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in the user's input, with its location `where` (`file:line field.path`, or a flag) and a
    sentence `what` without a full stop."""

    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


MOST_PROBLEMS = 20
"""Maximum number of problems listed for one file, or printed for one error."""


class MeshwrightError(ValueError):
    """Base class of all errors shown to users, with a headline in the user's terms and numbers, problems and
    a hint."""

    exit_code = 2

    def __init__(
        self, headline: str, *, problems: Sequence[Problem] = (), more: int = 0, hint: str = ""
    ) -> None:
        """Create the error; `more` is the number of problems in addition to the listed `problems`."""
        super().__init__(headline)
        self.headline = headline
        self.problems = (*problems, *_unlisted_problems(more))
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.headline, *(f"  {problem}" for problem in self.problems)]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class InputError(MeshwrightError):
    """Invalid user input, such as a wrong file, field, flag or name."""


class UnknownNameError(InputError):
    """Error about a name that is in no catalogue. It suggests the known name most similar to `like` (by
    default the name)."""

    def __init__(self, kind: str, name: str, names: Iterable[str], *, like: str = "", hint: str = "") -> None:
        guess = did_you_mean(like or name, similar_names(like or name, names))
        super().__init__(f"unknown {kind} `{name}`{guess}", hint=hint)


class InfeasibleError(MeshwrightError):
    """A valid question has no solution, for instance because no layout fits in memory."""

    exit_code = 1
    space = ""
    """Description of the searched layouts; empty if no layout was legal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Changed question that has a solution, with a plan that fits, suggested in place of an infeasible
    question."""

    change: str
    """Change of the question, as typed on the command line or written in a file: `--gpus 16`."""
    note: str = ""
    """Further remark on the change, such as "the fewest above 8"; empty: none."""
    gpus: int
    layout: str
    step_seconds: float
    peak_bytes: float
    """Peak memory of the fullest device, bytes."""
    memory_limit: float
    """Memory of the fullest device that a plan may use, bytes."""

    def __str__(self) -> str:
        from cost_models.units import format_bytes, format_seconds  # imports pydantic, so late

        note = f" ({self.note})" if self.note else ""
        size, step = format_bytes(self.peak_bytes), format_seconds(self.step_seconds)
        words = [word for word in self.layout.split() if not word.startswith(("layers=", "recompute="))]
        return f"{self.change}{note}: {size}, {step} a step, {' '.join(words)}"


class DoesNotFitError(InfeasibleError):
    """No layout of the question fits in memory."""

    would_fit: tuple[Alternative, ...] = ()
    """Changed questions that a plan fits; empty if none were searched for."""

    def __init__(self, headline: str, *, state_bytes: float = 0.0, closest: Any = None, **words: Any) -> None:
        """Create the error; `words` are the arguments `problems`, `more` and `hint` of the base class."""
        super().__init__(headline, **words)
        self.state_bytes = state_bytes
        """Lower bound on the bytes of weights, gradients and optimizer states, summed over all devices; 0:
        unknown."""
        self.closest = closest
        """`Estimate` of the closest layout, if there is one."""

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"would fit: {one}" for one in self.would_fit)])


class HostError(MeshwrightError):
    """The machine that runs the command cannot do the requested work, such as for want of a package."""


class RunError(MeshwrightError):
    """A training or measuring run failed after it started."""

    exit_code = 1


class NothingPlacedError(RunError):
    """A search ran out of time before it placed the blocks of any layout on pipeline stages, though a layout
    may fit."""

    exit_code = 3

    def __init__(self, headline: str, *, hint: str = "", space: str = "") -> None:
        """Create the error; `space` describes the layouts that were to be searched."""
        super().__init__(headline, hint=hint)
        self.space = space


class StoppedError(RunError):
    """A training run was stopped on request (by a signal), after completing a step."""

    exit_code = 130


def first_few(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Problems to show of a list: the first `MOST_PROBLEMS`, and one more that states the number of the
    others. A single other problem is shown itself."""
    unlisted = len(problems) - MOST_PROBLEMS
    return tuple(problems) if unlisted <= 1 else (*problems[:MOST_PROBLEMS], *_unlisted_problems(unlisted))


def _unlisted_problems(number: int) -> tuple[Problem, ...]:
    """Problem that states the number of further problems; none if the number is zero."""
    return (Problem("", f"and {number:,} more"),) if number > 0 else ()


def closest_name(name: str, names: Iterable[str]) -> str | None:
    """Known name whose spelling is most similar to `name`; None if none is similar."""
    spellings = {one.lower(): one for one in names}
    close = difflib.get_close_matches(name.lower(), list(spellings), n=1, cutoff=0.6)
    return spellings[close[0]] if close else None


def similar_names(name: str, names: Iterable[str]) -> list[str]:
    """Known names of which `name` may be a misspelling.

    Their numbers (sizes, releases) are equal and their letters almost; if the first word is a known family,
    only that family's names count. If there are none, all names that begin with the given one.
    """
    listed, (first, letters, numbers, plain) = list(names), _name_parts(name)

    def is_slip(word: str) -> bool:
        """Whether letters are so similar to the letters of `name` that a typing error explains the
        difference."""
        return sorted(word) == sorted(letters) or difflib.SequenceMatcher(None, letters, word).ratio() > 0.7

    family = [one for one in listed if _name_parts(one)[0] == first] or listed
    return [one for one in family if _name_parts(one)[2] == numbers and is_slip(_name_parts(one)[1])] or [
        one for one in listed if len(plain) > 2 and _name_parts(one)[3].startswith(plain)
    ]


def _name_parts(name: str) -> tuple[str, str, list[str], str]:
    """Parts of a name by which spellings are compared: first word, all letters, list of numbers, and all
    letters and digits."""
    low = name.strip().lower()
    numbers, plain = re.findall(r"[\d.]*\d", low), re.sub(r"[^a-z\d]", "", low)
    return re.split(r"[^a-z]", low, maxsplit=1)[0], re.sub(r"\d", "", plain), numbers, plain


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggestion "; did you mean `x`?" with the known name most similar to `name`; empty text if none is
    similar."""
    guess = closest_name(name, names)
    return "" if guess is None else f"; did you mean `{guess}`?"


def either(words: list[str]) -> str:
    """Join alternatives with commas and "or", as in "a", "a or b", "a, b or c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def require_installed(feature: str, **requirements: str) -> None:
    """Raise HostError if a package that a feature needs is not installed, as in `require_installed("`run`",
    torch="torch>=2")`.

    The hint installs all packages of the feature, as an extra installs them together.
    """
    missing = [package for package in requirements if find_spec(package) is None]
    if missing:
        verb, packages = "is" if len(missing) == 1 else "are", (f"'{one}'" for one in requirements.values())
        hint = f"pip install {' '.join(packages)}"
        raise HostError(f"{feature} needs {' and '.join(missing)}, which {verb} not installed", hint=hint)
