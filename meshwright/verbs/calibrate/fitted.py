"""The answer of `calibrate --from-runs`: profiles fitted to tables of timed runs, and what moved them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.files.parsing import save_spec
from cost_models.measured.calibration.families import UnseenSource
from cost_models.measured.calibration.refitting import Refit, Selection
from cost_models.specs.hardware import HardwareProfile
from meshwright.records import JSON_SCHEMA
from meshwright.records.fits import constant_rows, left_out_record, refit_record, unseen_record
from meshwright.render.runs.fits import fits_text
from meshwright.render.tables import Table


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted:
    """A profile for each GPU and stack of the rows, and the rows that took no part."""

    refits: tuple[Refit, ...]
    selection: Selection
    stack: str | None = None
    """The stack whose rows were asked for."""
    unseen: tuple[UnseenSource, ...] | None = None
    """Each source left out of every fit; None: that was not asked for."""
    files: tuple[Path, ...] = ()
    """Where the profiles are written, in their order."""

    @property
    def profiles(self) -> tuple[HardwareProfile, ...]:
        """What was fitted."""
        return tuple(one.profile for one in self.refits)

    def save(self) -> None:
        """Write each profile to its file."""
        for profile, file in zip(self.profiles, self.files, strict=False):
            save_one(profile, file)

    @property
    def _filed(self) -> list[tuple[Refit, Path | None]]:
        return list(zip(self.refits, self.files or (None,) * len(self.refits), strict=True))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each constant of each profile."""
        return [row for one, file in self._filed for row in constant_rows(one, file)]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "profiles": [refit_record(one, file) for one, file in self._filed],
            "left_out": [left_out_record(row, reason) for row, reason in self.selection.left_out],
            "read_as_stack": self.stack if self.selection.forced else None,
            "cross_validation": None if self.unseen is None else [unseen_record(one) for one in self.unseen],
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright calibrate --from-runs` prints."""
        return tuple(fits_text(self.refits, self.selection, self.unseen or (), stack=self.stack))

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))


def save_one(profile: HardwareProfile, file: Path) -> None:
    """Write a profile; the last folder of its path is made."""
    file.parent.mkdir(exist_ok=True)
    save_spec(profile, file)
