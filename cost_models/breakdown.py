"""A breakdown: a total and the named parts that sum to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Named parts of one quantity (seconds or bytes), in order of importance; `total` is their sum."""

    parts: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, **parts: float) -> Breakdown:
        """A breakdown from keywords: `Breakdown.of(compute=1.0, bubble=0.2)`."""
        return cls(tuple((name, float(value)) for name, value in parts.items()))

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return sum(value for _, value in self.parts)

    def __getitem__(self, name: str) -> float:
        return dict(self.parts)[name]

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return iter(self.parts)

    def as_dict(self) -> dict[str, float]:
        """Part → value, in order."""
        return dict(self.parts)

    @classmethod
    def from_dict(cls, parts: Mapping[str, float]) -> Breakdown:
        """A breakdown from part → value; the inverse of `as_dict`."""
        return cls(tuple((str(name), float(value)) for name, value in parts.items()))
