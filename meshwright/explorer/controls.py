"""The explorer's controls: what the address of its page may say, each by the word of a flag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

import yaml

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, did_you_mean

LONGEST = 200
"""Characters of a value; nobody turns a control further."""
OFFLOAD = "offload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One control of the page."""

    name: str
    """In the address of the page; with two hyphens before it, in errors."""
    label: str
    note: str = ""
    """What it means, where its label does not say enough."""
    catalogue: str = ""
    """The kind of catalogue entries, or `precision`, that there are to choose from; empty: text is typed."""


GROUPS: Mapping[str, Sequence[Control]] = {
    group: tuple(Control(**control) for control in controls)
    for group, controls in yaml.safe_load(
        (files("meshwright.explorer") / "page.yaml").read_text(encoding="utf-8")
    ).items()
}
CONTROLS: Mapping[str, Control] = {one.name: one for group in GROUPS.values() for one in group}


def values_of(said: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What an address says of the controls; blank ones are left out.

    Raises:
        InputError: unknown or repeated words, and values that are too long; all of them at once.
    """
    pairs = [(name, value.strip()) for name, value in said]
    problems = [
        Problem(printable(name), f"is no control{did_you_mean(name[:LONGEST], CONTROLS)}")
        for name, _ in pairs
        if name not in CONTROLS
    ]
    known = [(name, value) for name, value in pairs if name in CONTROLS]
    times = Counter(name for name, _ in known)
    problems += [Problem(f"--{name}", f"is said {count} times") for name, count in times.items() if count > 1]
    problems += [
        Problem(f"--{name}", f"has {len(value):,} characters; {LONGEST} are the most")
        for name, value in known
        if len(value) > LONGEST
    ]
    if problems:
        raise InputError("the page's address cannot be read", problems=problems)
    return {name: value for name, value in known if value}
