"""What the answers of `run` share, whatever family of models was trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from executor.measure.operations import OperationsReport
from meshwright.records import JSON_SCHEMA
from meshwright.records.operations import operations_rows
from meshwright.render.runs.operations import operations_text
from meshwright.render.tables import Table
from meshwright.render.words import as_html

if TYPE_CHECKING:
    import pandas as pd


class Measured(Protocol):
    """A report of a run."""

    @property
    def operations(self) -> OperationsReport | None:
        """What saves and failures took; None where nothing was saved."""

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of every step, warm-up included."""

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        """As plain values."""


R = TypeVar("R", bound=Measured)


@dataclass(frozen=True, kw_only=True, repr=False)
class AnyRan(Generic[R]):
    """What a run measured, beside what was predicted: a family says which quantities, and how that is told."""

    report: R
    steps: int
    """Optimizer steps that were asked for."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each quantity, as of `--json`."""
        raise NotImplementedError

    def told(self) -> Iterable[str | Table]:
        """What is printed of the run but its saves and failures."""
        raise NotImplementedError

    @property
    def losses(self) -> tuple[float, ...]:
        """Mean loss of every step, warm-up included."""
        return self.report.losses

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "comparison": self.rows,
            "operations": self.operations,
            "report": self.report.model_dump(mode="json"),
        }

    @property
    def operations(self) -> list[dict[str, Any]]:
        """A row for each part of the time, of a run that saved: training, saving, work done again, restarting."""
        return [] if self.report.operations is None else operations_rows(self.report.operations)

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright run` prints."""
        lines = list(self.told())
        if self.report.operations is not None:
            lines += operations_text(self.report.operations, self.operations)
        return tuple(lines)

    def to_frame(self) -> pd.DataFrame:
        """A row per quantity: `quantity`, `predicted`, `measured`, in base units."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))

    def _repr_html_(self) -> str:
        return f"<pre>{as_html(repr(self))}</pre>"
