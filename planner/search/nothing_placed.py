"""Why a search ended before any layout was placed, though some may fit: each reason in words."""

from __future__ import annotations

from cost_models.errors import NothingPlacedError
from cost_models.units import counted, format_seconds


def out_of_time(space: str = "") -> NothingPlacedError:
    """The time that the user gave is over."""
    return NothingPlacedError(
        "time ran out before any layout was placed", hint="allow more with --time-limit", space=space
    )


def out_of_own_time(seconds: float) -> NothingPlacedError:
    """The time that one search of several gets is over, however much the user gave."""
    return NothingPlacedError(
        f"no layout was placed in {format_seconds(seconds)}, which is what each search of this answer gets",
        hint="--fix and --forbid leave it fewer layouts",
    )


def given_up(layouts: int, *, weighed: bool, space: str) -> NothingPlacedError:
    """There was time, but the exact placement of every layout that is left gave up."""
    return NothingPlacedError(
        f"{counted(layouts, 'layout')} could neither be placed nor be shown not to fit, though there was time",
        hint="--risk none places them on paper" if weighed else "please report the question",
        space=space,
    )
