"""The answer of `import`: what runs today, priced, and how far it is from the best of the same question."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.units import format_bytes
from meshwright.families.recommender.answers import ShardingEstimated, ShardingPlanned
from meshwright.families.recommender.text import precise
from meshwright.render.tables import Table, table
from meshwright.render.words import as_html, percent, wrapped
from planner.recommender.search.searching import PROVEN


@dataclass(frozen=True, kw_only=True, repr=False)
class Imported:
    """A sharding of another trainer's file, beside the best."""

    today: ShardingEstimated
    best: ShardingPlanned
    assumptions: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """Share of today's step that the best one saves; not below zero."""
        return max(0.0, 1 - self.best.estimate.step_seconds / self.today.estimate.step_seconds)

    def record(self) -> dict[str, Any]:
        """The JSON document: what `estimate` says, with the best beside it."""
        return self.today.record() | {"best": self.best.record(), "gain": self.gain}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each table."""
        return self.today.rows

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright import` prints."""
        return *self.today.text, "", self._beside(), "", wrapped(self._finding())

    def _beside(self) -> Table:
        rows = []
        for name, one in (("today", self.today), ("best", self.best)):
            fullest = float(one.estimate.device_bytes.max())
            stages = one.estimate.stages.as_dict()
            longest = max(stages, key=lambda stage: stages[stage])
            rows.append((name, precise(one.estimate.step_seconds), format_bytes(fullest), longest))
        return table(
            ("which", "step", "fullest GPU", "longest stage"), rows, names=("which", "longest stage")
        )

    def _finding(self) -> str:
        step = precise(self.best.estimate.step_seconds)
        gap = self.best.certificate.gap
        proof = "which is proved" if gap <= PROVEN else f"proved within {percent(gap)}"
        if self.gain <= PROVEN:
            return f"No sharding is faster than what runs today ({proof})"
        return f"What runs today is {percent(1 / (1 - self.gain) - 1)} slower than the best, {step} ({proof})"

    def save(self, path: str | Path) -> None:
        """Write what runs today as a plan."""
        self.today.save(path)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))

    def _repr_html_(self) -> str:
        return f"<pre>{as_html(repr(self))}</pre>"
