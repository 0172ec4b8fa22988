"""The answer of `calibrate --from-runs`: profiles fitted to tables of timed runs, and what moved them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cost_models.documents import printable
from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.least_squares import Interval
from cost_models.measured.calibration.profile_fits import Refit, Selection, UnseenSource, named_sources
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted
from meshwright.render.tables import Table, table
from meshwright.render.words import change, in_unit, percent, sentence_list, time_unit, wrapped
from meshwright.verbs.contract.answer import AnswerBase


@dataclass(frozen=True, kw_only=True, repr=False)
class Fitted(AnswerBase):
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

    def document(self) -> dict[str, Any]:
        return {
            "profiles": [refit_record(one, file) for one, file in self._filed],
            "left_out": [
                {"row_id": row.row_id, "source_id": row.source, "reason": reason}
                for row, reason in self.selection.left_out
            ],
            "read_as_stack": self.stack if self.selection.forced else None,
            "cross_validation": None if self.unseen is None else [unseen_record(one) for one in self.unseen],
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        return tuple(fits_text(self.refits, self.selection, self.unseen or (), stack=self.stack))


def save_one(profile: HardwareProfile, file: Path) -> None:
    """Write a profile; the last folder of its path is made."""
    file.parent.mkdir(exist_ok=True)
    save_spec(profile, file)


def refit_record(refit: Refit, file: Path | None) -> dict[str, Any]:
    """One profile: what it was, what it is, and what every run says of both."""
    die, stack = refit.pair
    return {
        "file": None if file is None else str(file),
        "gpu": die,
        "stack": stack,
        "started_from": refit.start.name,
        "median_error_before": refit.median_before,
        "median_error_after": refit.fit.median_error,
        "constants": constant_records(refit),
        "runs": [
            {
                "row_id": run,
                "source_id": refit.fit.sources[run],
                "before": refit.start_errors[run],
                "after": after,
            }
            for run, after in refit.fit.residuals.items()
        ],
        "profile": refit.profile.model_dump(mode="json"),
    }


def constant_records(refit: Refit) -> list[dict[str, Any]]:
    """Every fitted constant in base units, with its 90 % interval and the runs that moved it most."""
    return [
        {
            "constant": name,
            "before": getattr(refit.start, name),
            "after": getattr(refit.profile, name),
            "low": interval.low,
            "high": interval.high,
            "told": interval.determined,
            "moved_by": list(interval.movers),
        }
        for name, interval in refit.fit.constants.items()
    ]


def constant_rows(refit: Refit, file: Path | None) -> list[dict[str, Any]]:
    """The same, flat: the profile's file beside every constant, runs in one cell."""
    return [
        {"file": None if file is None else str(file)} | record | {"moved_by": "; ".join(record["moved_by"])}
        for record in constant_records(refit)
    ]


def unseen_record(source: UnseenSource) -> dict[str, Any]:
    """Median errors of one source."""
    return {"source_id": source.source} | {
        key: value for key, value in asdict(source).items() if key != "source"
    }


HEADERS = ("constant", "before", "after", "90 % interval", "told")
UNSEEN_HEADERS = ("source", "rows", "defaults", "left out", "fitted")
_SILENT = 0.05
"""Share of what was uncertain below which runs say nothing of a constant that stayed where it was."""
_MOVED = 0.02
"""Relative change below which a constant stayed where it was."""
_FAR = 0.15
"""Relative error after the fit beyond which a run deserves a look."""
_MAX_FAR = 5
_MAX_REASONS = 8
_ID = 24


def fits_text(
    refits: Sequence[Refit], selection: Selection, unseen: Sequence[UnseenSource], *, stack: str | None
) -> Iterator[str | Table]:
    """Each profile with what moved it, sources left out, then the rows that took no part."""
    if selection.forced:
        yield wrapped(f"every row is read as run on {stack}")
    for refit in refits:
        yield from _refit_text(refit)
        yield ""
    if unseen:
        yield "Each source left out of every fit (median errors; fits start from the defaults)"
        yield ""
        yield table(UNSEEN_HEADERS, [_unseen_cells(one) for one in unseen], words=("source",))
        if len(unseen) == 1:
            yield "one source only: nothing is left to fit to when it is left out"
        yield ""
    used, left_out = len(selection.cases), len(selection.left_out)
    yield f"{counted(used, 'row')} fitted to, {left_out} left out"
    reasons = Counter(reason for _, reason in selection.left_out).most_common(_MAX_REASONS)
    for reason, rows in reasons:
        yield wrapped(f"  {rows} left out: {printable(reason)}", indent="    ")


def _refit_text(refit: Refit) -> Iterator[str | Table]:
    die, stack = refit.pair
    yield wrapped(
        f"{die} under {stack}: {counted(len(refit.start_errors), 'row')} ({named_sources(refit.fit)}), from profile"
        f" {refit.start.name}"
    )
    yield f"median error {percent(refit.median_before)} before, {percent(refit.fit.median_error)} after"
    spoken = [name for name in refit.fit.constants if _is_spoken_of(refit, name)]
    if spoken:
        yield ""
        yield table(HEADERS, [_cells(refit, name) for name in spoken], words=("constant",))
        yield ""
        yield "(told: share of what was uncertain about a constant that the rows settle)"
        yield from _movers(refit)
    if silent := [name for name in refit.fit.constants if name not in spoken]:
        yield wrapped(f"The rows say nothing of {sentence_list(silent)}")
    if far := _far(refit):
        yield wrapped(f"Far off still: {far}; look at these rows again")


def _cells(refit: Refit, name: str) -> list[str]:
    interval = refit.fit.constants[name]
    return [
        name,
        _value(name, getattr(refit.start, name)),
        _value(name, getattr(refit.profile, name)),
        _span(name, interval),
        percent(interval.determined, ".0%"),
    ]


def _movers(refit: Refit) -> Iterator[str]:
    """For each constant that the rows know and moved, by how much, and the rows that moved it most."""
    for name, interval in refit.fit.constants.items():
        if interval.determined >= _SILENT and _has_moved(refit, name):
            before, after = getattr(refit.start, name), getattr(refit.profile, name)
            movers = ", ".join(printable(run, _ID) for run in interval.movers)
            yield wrapped(f"  {name} {change(before, after)}: most by {movers}", indent="    ")


def _is_spoken_of(refit: Refit, name: str) -> bool:
    return refit.fit.constants[name].determined >= _SILENT or _has_moved(refit, name)


def _has_moved(refit: Refit, name: str) -> bool:
    before, after = getattr(refit.start, name), getattr(refit.profile, name)
    return bool(abs(after / before - 1) >= _MOVED)


def _far(refit: Refit) -> str:
    """Runs that the fitted profile still misses, the worst first."""
    worst = sorted(refit.fit.residuals.items(), key=lambda item: -abs(item[1]))
    far = [(run, error) for run, error in worst if abs(error) > _FAR]
    words = [f"{printable(run, _ID)} {percent(error, '+.0%')}" for run, error in far[:_MAX_FAR]]
    if len(far) > _MAX_FAR:
        words.append(f"{len(far) - _MAX_FAR} more")
    return sentence_list(words)


def _unseen_cells(one: UnseenSource) -> list[str]:
    errors = (one.defaults, one.left_out, one.fitted)
    return [printable(one.source, 40), str(one.runs), *map(percent, errors)]


def _is_time(name: str) -> bool:
    return name.endswith("seconds")


def _value(name: str, value: float) -> str:
    if not _is_time(name):
        return _share(value)
    unit = time_unit(value)
    return f"{in_unit(value, unit)} {unit[0]}"


def _span(name: str, interval: Interval) -> str:
    """Both ends in one unit: "84.2-92.0 %"."""
    if _is_time(name):
        unit = time_unit(interval.value)
        return f"{in_unit(interval.low, unit)}-{in_unit(interval.high, unit)} {unit[0]}"
    return f"{_share(interval.low).removesuffix(' %')}-{_share(interval.high)}"


def _share(value: float) -> str:
    """Shares with a decimal, small ones such as jitter with two."""
    return percent(value, ".1%" if value >= 0.1 else ".2%")
