"""The answer of `calibrate --from-runs`: profiles fitted to tables of timed runs, and what moved them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cost_models.documents import printable
from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.profile_fits import Selection, UnseenSource
from cost_models.measured.calibration.step_time_fit import StepTimeFit
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted
from meshwright.render.tables import Table, table
from meshwright.render.words import change, in_unit, percent, sentence_list, time_unit, wrapped
from meshwright.terminal.answers import Answer


class Fitted(Answer):
    """A profile for each GPU and stack of the rows, and the rows that took no part."""

    refits: tuple[StepTimeFit, ...]
    selection: Selection
    stack: str | None = None
    """The stack whose rows were asked for."""
    unseen: tuple[UnseenSource, ...] | None = None
    """Each source left out of every fit; None: that was not asked for."""
    files: tuple[Path, ...] = ()
    """Files to which the profiles are written, in the same order."""

    @property
    def profiles(self) -> tuple[HardwareProfile, ...]:
        """Profiles that were fitted."""
        return tuple(one.profile for one in self.refits)

    def save(self) -> None:
        """Write the profiles, one file each."""
        for profile, file in zip(self.profiles, self.files, strict=False):
            save_one(profile, file)

    def csv_rows(self) -> list[dict[str, Any]]:
        """A row for each constant of each profile: the profile's file beside it, runs in one cell."""
        return [
            {"file": profile["file"], **constant, "moved_by": "; ".join(constant["moved_by"])}
            for profile in self.document()["profiles"]
            for constant in profile["constants"]
        ]

    def document(self) -> dict[str, Any]:
        files: Sequence[str | None] = [str(file) for file in self.files] or [None] * len(self.refits)
        return {
            "profiles": [fit_record(*filed) for filed in zip(self.refits, files, strict=True)],
            "left_out": [
                {"row_id": row.row_id, "source_id": row.source_id, "reason": reason}
                for row, reason in self.selection.left_out
            ],
            "read_as_stack": self.stack if self.selection.forced else None,
            "cross_validation": None if self.unseen is None else [asdict(one) for one in self.unseen],
        }

    def view(self) -> Iterator[str | Table]:
        return fits_text(self)


def save_one(profile: HardwareProfile, file: Path) -> None:
    """Write a profile; the last folder of its path is made."""
    file.parent.mkdir(exist_ok=True)
    save_spec(profile, file)


def fit_record(fit: StepTimeFit, file: str | None) -> dict[str, Any]:
    """JSON record of one fitted profile: constants and errors of runs, before and after."""
    return {
        "file": file,
        "gpu": fit.profile.gpu,
        "stack": fit.profile.stack,
        "started_from": fit.start.name,
        "median_error_before": fit.median_before,
        "median_error_after": fit.median_error,
        "constants": constant_records(fit),
        "runs": [
            {"row_id": run, "source_id": fit.sources[run], "before": fit.start_errors[run], "after": after}
            for run, after in fit.residuals.items()
        ],
        "profile": fit.profile.model_dump(mode="json"),
    }


def constant_records(fit: StepTimeFit) -> list[dict[str, Any]]:
    """JSON record of each fitted constant in base units, with its 90 % interval and the runs that moved it most."""
    return [
        {
            "constant": name,
            "before": getattr(fit.start, name),
            "after": getattr(fit.profile, name),
            "low": interval.low,
            "high": interval.high,
            "told": interval.determined,
            "moved_by": list(interval.movers),
        }
        for name, interval in fit.constants.items()
    ]


HEADERS = ("constant", "before", "after", "90 % interval", "learned")
UNSEEN_HEADERS = ("source", "rows", "defaults", "left out", "fitted")
_SILENT = 0.05
"""Share of what was uncertain below which runs say nothing of a constant that stayed where it was."""
_LEAST_CHANGE = 0.02
"""Relative change below which a constant stayed where it was."""
_FAR = 0.15
"""Relative error after the fit beyond which a run deserves a look."""
_MAX_FAR = 5
MAX_REASONS = 8
_ID = 24


def fits_text(fitted: Fitted) -> Iterator[str | Table]:
    """Each profile with what moved it, sources left out, then the rows that took no part."""
    selection, unseen = fitted.selection, fitted.unseen or ()
    if selection.forced:
        yield wrapped(f"every row is read as run on {fitted.stack}")
    for fit in fitted.refits:
        yield from _fit_text(fit)
        yield ""
    if unseen:
        yield "Each source left out of every fit (median errors; fits start from the defaults)"
        yield ""
        cells = []
        for source in unseen:
            errors = map(percent, (source.defaults, source.left_out, source.fitted))
            cells.append((printable(source.source_id, 40), str(source.runs), *errors))
        yield table(UNSEEN_HEADERS, cells, words=("source",))
        if len(unseen) == 1:
            yield "one source only: nothing is left to fit to when it is left out"
        yield ""
    used, left_out = len(selection.cases), len(selection.left_out)
    yield f"{counted(used, 'row')} fitted to, {left_out} left out"
    reasons = Counter(reason for _, reason in selection.left_out).most_common(MAX_REASONS)
    for reason, rows in reasons:
        yield wrapped(f"  {rows} left out: {printable(reason)}", indent="    ")


def _fit_text(fit: StepTimeFit) -> Iterator[str | Table]:
    rows = f"{counted(len(fit.residuals), 'row')} ({fit.named_sources})"
    yield wrapped(f"{fit.profile.gpu} under {fit.profile.stack}: {rows}, from profile {fit.start.name}")
    yield f"median error {percent(fit.median_before)} before, {percent(fit.median_error)} after"
    constants = constant_records(fit)
    spoken = [constant for constant in constants if constant["told"] >= _SILENT or _has_moved(constant)]
    if spoken:
        yield ""
        yield table(HEADERS, [_cells(constant) for constant in spoken], words=("constant",))
        yield ""
        yield "(learned: share of a constant's uncertainty removed by these rows)"
    for constant in spoken:
        if constant["told"] >= _SILENT and _has_moved(constant):
            movers = ", ".join(printable(run, _ID) for run in constant["moved_by"])
            movement = change(constant["before"], constant["after"])
            yield wrapped(f"  {constant['constant']} {movement}: most by {movers}", indent="    ")
    if silent := [constant["constant"] for constant in constants if constant not in spoken]:
        yield wrapped(f"These rows do not determine, and leave as before: {sentence_list(silent)}")
    # runs that the fitted profile still misses, the worst first
    far = [(run, error) for run, error in fit.residuals.items() if abs(error) > _FAR]
    far.sort(key=lambda item: -abs(item[1]))
    words = [f"{printable(run, _ID)} {percent(error, '+.0%')}" for run, error in far[:_MAX_FAR]]
    words += [f"{len(far) - _MAX_FAR} more"] if len(far) > _MAX_FAR else []
    if words:
        yield wrapped(f"Far off still: {sentence_list(words)}; look at these rows again")


def _has_moved(constant: dict[str, Any]) -> bool:
    return bool(abs(constant["after"] / constant["before"] - 1) >= _LEAST_CHANGE)


def _cells(constant: dict[str, Any]) -> list[str]:
    """A constant in words; both ends of its interval are in one unit: "84.2-92.0 %"."""
    name, low, high = constant["constant"], constant["low"], constant["high"]
    values = constant["before"], constant["after"]
    if name.endswith("seconds"):
        units = [time_unit(value) for value in values]
        words = [f"{in_unit(value, unit)} {unit[0]}" for value, unit in zip(values, units, strict=True)]
        span = f"{in_unit(low, units[1])}-{in_unit(high, units[1])} {units[1][0]}"
    else:
        words, span = list(map(_share, values)), f"{_share(low).removesuffix(' %')}-{_share(high)}"
    return [name, *words, span, percent(constant["told"], ".0%")]


def _share(value: float) -> str:
    """Share as percent with a decimal; with two decimals if small, such as jitter."""
    return percent(value, ".1%" if value >= 0.1 else ".2%")
