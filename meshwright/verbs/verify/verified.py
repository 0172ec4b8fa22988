"""The answer of `verify`: every check of a plan file with its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cost_models.units import counted
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.verify import Check

_VERDICTS = {True: "pass", False: "FAIL", None: "open"}


@dataclass(frozen=True, kw_only=True, repr=False)
class Verified(AnswerBase):
    """A plan file and what its checks found."""

    path: Path
    about: str
    """The plan's model and GPUs in a few words."""
    searched: bool
    """Whether the plan was searched for, and claims an optimum."""
    checks: tuple[Check, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The plan's price, as `explain` writes it."""

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(one.passed for one in self.checks)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each check."""
        return [
            {"check": one.name, "verdict": _VERDICTS[one.passed], "found": one.what} for one in self.checks
        ]

    def document(self) -> dict[str, Any]:
        return {
            "plan": str(self.path),
            "verified": self.passed,
            "proof": self.searched,
            **self.figures,
            "checks": [{"check": one.name, "passed": one.passed, "found": one.what} for one in self.checks],
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        return (
            wrapped(f"{self.path.name}: {self.about}"),
            "",
            table(
                ("check", "verdict", "found"),
                [(row["check"], row["verdict"], row["found"]) for row in self.rows],
                words=("found",),
                names=("check", "verdict"),
            ),
            "",
            wrapped(self._conclusion),
        )

    @property
    def _conclusion(self) -> str:
        """The verdict in a sentence."""
        checks = counted(len(self.checks), "check")
        failed = [one for one in self.checks if one.passed is False]
        still_open = [one for one in self.checks if one.passed is None]
        if failed:
            return f"Not verified: {len(failed)} of {checks} failed"
        if still_open:
            return f"Not verified: {len(still_open)} of {checks} could not be decided in time"
        if not self.searched:
            return (
                "Verified as a price: the layout was asked for, not searched, so the file claims no optimum"
            )
        return f"Verified: {checks}, prices and proof"
