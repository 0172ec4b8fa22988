"""What had to be assumed to predict a row: collected while it is read, shown beside the prediction."""

from __future__ import annotations

from dataclasses import dataclass, field


class UnpredictableError(Exception):
    """A row that cannot be predicted, with the reason a reader needs."""


@dataclass(slots=True)
class Notes:
    """Assumptions about one row, in the order they were made."""

    assumed: list[str] = field(default_factory=list)

    def assume(self, what: str) -> None:
        """Remember one assumption."""
        self.assumed.append(what)
