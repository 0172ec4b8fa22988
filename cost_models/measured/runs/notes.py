"""Assumptions made to predict a row: collected while it is read, shown beside the prediction."""

from __future__ import annotations

from dataclasses import dataclass, field


class UnpredictableError(Exception):
    """A row cannot be predicted; the message is the reason that readers need."""


@dataclass(slots=True)
class Notes:
    """Assumptions about one row, in the order they were made."""

    assumed: list[str] = field(default_factory=list)

    def assume(self, what: str) -> None:
        """Note one assumption."""
        self.assumed.append(what)
