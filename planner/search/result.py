"""Result of a search: the k best layouts with their proof, or an error that says why nothing was placed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cost_models.errors import NothingPlacedError
from cost_models.estimate import Estimate
from cost_models.units import counted, format_seconds
from planner.certificate import Certificate

if TYPE_CHECKING:
    from planner.search.branching import BranchAndBound


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The k best layouts, best first, each with its best placement, and the certificate that nothing else is better."""

    estimates: tuple[Estimate, ...]
    certificate: Certificate
    interrupted: bool = False
    """Whether Ctrl-C ended the search early."""
    searches: tuple[BranchAndBound, ...] = field(default=(), repr=False, compare=False)
    """Final state of each search; follow-up queries resume from it. It holds as much memory as searching does."""

    @property
    def best(self) -> Estimate:
        """The fastest plan."""
        return self.estimates[0]


def out_of_time(space: str = "") -> NothingPlacedError:
    """Error: the user's time limit is over."""
    return NothingPlacedError(
        "time ran out before any layout was placed", hint="allow more with --time-limit", space=space
    )


def out_of_own_time(seconds: float) -> NothingPlacedError:
    """Error: the time of one search of several is over."""
    return NothingPlacedError(
        f"no layout was placed in {format_seconds(seconds)}, which is what each search of this answer gets",
        hint="--fix and --forbid leave it fewer layouts",
    )


def placement_abandoned(layouts: int, *, weighed: bool, space: str) -> NothingPlacedError:
    """Error: exact placement was abandoned for every layout left, with time to spare."""
    return NothingPlacedError(
        f"{counted(layouts, 'layout')} could neither be placed nor be shown not to fit, though there was time",
        hint="--risk none places them on paper" if weighed else "please report the question",
        space=space,
    )


def by_speed(estimate: Estimate) -> tuple[float, float, int, str]:
    """Sort key: fastest first, then least peak memory, then the shortest name."""
    name = str(estimate.layout)
    return estimate.compared_seconds, estimate.peak_bytes, len(name), name
