"""The result of a search: the k best layouts, and the proof that nothing else is better."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.estimate import Estimate
from planner.certificate import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The k best layouts, best first, each with its best placement, and the certificate that nothing else is better."""

    estimates: tuple[Estimate, ...]
    certificate: Certificate
    interrupted: bool = False
    """True where Ctrl-C ended the search; the result is what was found by then."""

    @property
    def best(self) -> Estimate:
        """The fastest plan."""
        return self.estimates[0]
