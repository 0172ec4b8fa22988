"""Slices of tables: which rows and columns of a table lie on which rank, and in which memory."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.specs.recommender.sharding import Form


@dataclass(frozen=True, slots=True)
class Places:
    """Number of ranks of a run and of each node; ranks of a node are neighbours."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.ranks // self.per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a table on one rank, or, of a copy, on each.

    Of `rows` rows from `first` on it has every `ways`-th, beginning with the one at `residue`; of each the columns from
    `begin` to `end` − 1.
    """

    table: int
    form: Form
    rank: int | None = None
    """Rank that holds the slice; None if every rank does."""
    first: int = 0
    rows: int
    ways: int = 1
    residue: int = 0
    begin: int = 0
    end: int
    bags: int
    """Bags of a sample: 1, or with `concat` one for each of its ids."""
    cached: float = 1.0
    """Share of the rows on the device, those used most; the rest is in host memory."""
    hashed: bool = False
    """Whether ids are keys: key k lies in slice k mod `ways`, in a row assigned when it first came."""

    @property
    def held_rows(self) -> int:
        """Rows of the slice."""
        return -(-(self.rows - self.residue) // self.ways)

    @property
    def rows_before(self) -> int:
        """Rows of the slices that come before this one."""
        return sum(-(-(self.rows - residue) // self.ways) for residue in range(self.residue))

    @property
    def device_rows(self) -> int:
        """Number of rows on the device, the first ones: tables are numbered by how often rows are used."""
        return round(self.held_rows * self.cached)

    @property
    def width(self) -> int:
        """Columns of the slice."""
        return self.end - self.begin
