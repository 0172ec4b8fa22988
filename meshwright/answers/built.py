"""The answer of `run --dry-run`: what the first rank of every stage holds, built without its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from meshwright.records import JSON_SCHEMA
from meshwright.render.runs.run import built_table
from meshwright.render.tables import Table
from meshwright.render.words import wrapped
from planner.plan import Plan

if TYPE_CHECKING:
    from executor.emulate.dry_run import BuiltRank


@dataclass(frozen=True, kw_only=True, repr=False)
class Built:
    """A plan and the ranks that were built of it."""

    plan: Plan
    ranks: Sequence[BuiltRank]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each rank."""
        return [asdict(rank) for rank in self.ranks]

    @property
    def mesh(self) -> dict[str, int]:
        """Degrees by axis; `cp` where there is any."""
        layout = self.plan.layout
        axes = ("pp", "dp", "cp", "tp") if layout.cp > 1 else ("pp", "dp", "tp")
        return {axis: getattr(layout, axis) for axis in axes}

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {"schema": JSON_SCHEMA, "mesh": self.mesh, "ranks": self.rows}

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What is printed."""
        degrees = " x ".join(f"{axis}{degree}" for axis, degree in self.mesh.items())
        told = wrapped(
            f"{self.plan.model.name}, {self.plan.layout}: built without devices on a mesh of {degrees}; the first"
            " rank of each stage holds"
        )
        return told, "", built_table(self.ranks)
