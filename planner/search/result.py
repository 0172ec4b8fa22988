"""What a search gives back: the k best layouts, and the proof that nothing else is better."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.estimate import Estimate
from planner.plan import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The k best layouts, best first, each with its best placement, and why nothing else is better."""

    estimates: tuple[Estimate, ...]
    certificate: Certificate
    interrupted: bool = False
    """Ctrl-C ended it, with what it had by then."""

    @property
    def best(self) -> Estimate:
        """The fastest."""
        return self.estimates[0]
