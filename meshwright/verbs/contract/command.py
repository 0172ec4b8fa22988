"""A verb on the command line: its options, and what is done and printed with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from meshwright.terminal.output import Output

O = TypeVar("O")  # noqa: E741
ALL = ("json", "csv", "quiet")
"""Every flag of `Output`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[O]):
    """One verb of the command line."""

    name: str
    help: str
    options: type[O]
    call: Callable[[O, Output], None]
    shows: tuple[str, ...] = ALL
    """Flags of `Output` that it has."""
    hides: tuple[str, ...] = ()
    """Flags of shared options that it has not."""
    nested: str = ""
    """A record, `module:name`, whose flags are in the field `config` of the options, by name."""
    rest: str = "Options"
    """Heading in its help of the flags that only it has."""


def command(
    options: type[O],
    *,
    name: str,
    shows: Sequence[str] = ALL,
    hides: Sequence[str] = (),
    nested: str = "",
    rest: str = "Options",
) -> Callable[[Callable[[O, Output], None]], Command[O]]:
    """Make a verb of what it does on the command line; its help is the docstring."""

    def of_call(call: Callable[[O, Output], None]) -> Command[O]:
        return Command(
            name=name,
            help=call.__doc__ or "",
            options=options,
            call=call,
            shows=tuple(shows),
            hides=tuple(hides),
            nested=nested,
            rest=rest,
        )

    return of_call
