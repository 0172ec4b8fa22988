"""Hardware profiles that `calibrate` writes: measured here, updated by runs on this machine, or fitted to tables of
runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files import catalog
from cost_models.files.catalog import save_spec
from cost_models.measured.calibration.profile_fits import Selection, UnseenSource, refit, select_runs
from cost_models.measured.calibration.profile_fits import cross_validate as leave_sources_out
from cost_models.measured.calibration.refinement import STEP, ObservedRun, Refinement, quantities, refine
from cost_models.measured.calibration.step_time_fit import StepTimeFit
from cost_models.measured.runs.cases import read_rows
from cost_models.measured.runs.rows import Row
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, format_bandwidth, format_seconds, grouped
from executor.measure.observed_run import machine_of, observed_run
from executor.measure.report import RunReport
from meshwright.inputs.problems import Problems
from meshwright.records.runs import comparison, read_report
from meshwright.render.measured import quantity_label
from meshwright.render.tables import Table, table, table_of
from meshwright.render.words import change, in_unit, part_label, percent, sentence_list, time_unit, wrapped
from meshwright.terminal.answers import Answer, SavedAnswer
from meshwright.verbs.calibrate import CalibrateFlags
from meshwright.verbs.ran import AnyRan

if TYPE_CHECKING:
    pass

_SILENT = 0.05
"""Share of a constant's uncertainty that runs must remove to count as determining the constant."""


def calibrate_from_run(
    *runs: str | Path | AnyRan[Any] | RunReport,
    profile: str | HardwareProfile | None = None,
    out: str | Path | None = None,
) -> Calibrated:
    """Update a hardware profile by training runs measured on this machine: their reports, or answers of `run`.

    It starts from `profile`, else from the profile of the first run's plan, and in both cases from the constants
    measured before any run updated them. The profile is written to `out` if given.

    Raises:
        InputError: no run, a file that is no report or too old, runs of several machines, torch versions, precisions or
            software stacks, or a profile of another GPU.
    """
    if not runs:
        raise InputError("there is no run to calibrate from", hint="meshwright run writes run-report.json")
    problems, reports, observations = Problems(), list[RunReport](), list[ObservedRun]()
    for number, run in enumerate(runs, start=1):
        if isinstance(run, (str, Path)):
            name, report = str(run), problems.read(read_report, Path(run))
        else:
            answer = run if isinstance(run, RunReport) else run.report
            assert isinstance(answer, RunReport), "profiles are moved by runs of transformers"
            name, report = f"run {number}", answer
        if report is not None:
            reports.append(report)
            observations.append(problems.read(observed_run, report, name))
    start = problems.read(catalog.load_profile, profile) if isinstance(profile, str) else profile
    problems.require()
    machines = {one.name: machine_of(report) for one, report in zip(observations, reports, strict=True)}
    machine, *strangers = set(machines.values())
    if strangers:
        raise InputError(
            f"{len(reports)} runs are of {1 + len(strangers)} kinds, and one profile is of one",
            problems=[Problem(name, machine) for name, machine in machines.items()],
            hint="calibrate from those that are alike",
        )
    refinement = refine(start or observations[0].question.hardware, observations)
    calibrated = Calibrated(machine=machine, refinement=refinement, reports=tuple(reports))
    if out is None:
        return calibrated
    calibrated.save(out)
    return replace(calibrated, file=Path(out))


class Calibrated(SavedAnswer):
    """Answer of `calibrate --from-run`: the profile updated by runs, with errors before and after."""

    machine: str
    """Machine and software with which all runs ran, in words."""
    refinement: Refinement
    reports: tuple[RunReport, ...]
    file: Path | None = None
    """File to which the profile was written."""

    @property
    def profile(self) -> HardwareProfile:
        """Profile updated by the runs."""
        return self.refinement.profile

    def runs(self) -> list[dict[str, Any]]:
        """Row for each run and quantity: measured value, prediction errors before and after the update, noise among
        steps."""
        records = []
        estimated = zip(self.refinement.runs, self.reports, self.refinement.estimates, strict=True)
        for run, report, estimate in estimated:
            start = {line.quantity: line.predicted for line in comparison(report)}
            final = quantities(estimate)
            for quantity, name in _COMPARED.items():
                if (seen := run.seen.get(quantity)) is not None:
                    cells: dict[str, Any] = {"run": run.name, "layout": report.layout.brief, "quantity": name}
                    predicted = {"before": start[name], "after": final[quantity]}
                    errors = {when: seconds / seen.seconds - 1 for when, seconds in predicted.items()}
                    records.append({**cells, "measured": seen.seconds, **errors, "noise": seen.noise})
        return records

    def factors(self) -> list[dict[str, Any]]:
        """Row for each kind of seconds: factor by which the runs correct the calibrated constant, 90 % interval, and
        share of uncertainty removed."""
        return [
            {"kind": kind, "factor": one.value, "low": one.low, "high": one.high, "told": one.determined}
            for kind, one in self.refinement.factors.items()
        ]

    csv_rows = runs

    def document(self) -> dict[str, Any]:
        """JSON document: machine, errors of runs, factors and profile."""
        return {
            "file": None if self.file is None else str(self.file),
            "machine": self.machine,
            "started_from": self.refinement.start.source,
            "runs": self.runs(),
            "factors": self.factors(),
            "profile": self.profile.model_dump(mode="json"),
        }

    def view(self) -> Iterator[str | Table]:
        """Text that `meshwright calibrate --from-run` prints: errors of the runs before and after, and factors that
        the runs determine."""
        number, start = len(self.reports), self.refinement.start.source
        moved = f"moved by {counted(number, 'run')} on {self.machine}"
        yield wrapped(f"{self.profile.name}: {moved}; from: {start}")
        yield from ("", self._runs_table())
        yield "(before: of the plan that ran; noise: what the middle half of its steps spans)"
        factors = self.factors()
        if learned := [factor for factor in factors if factor["told"] >= _SILENT]:
            columns = {
                "seconds of": [part_label(factor["kind"]) for factor in learned],
                "factor": [f"x {factor['factor']:.2f}" for factor in learned],
                "90 % interval": [f"{factor['low']:.2f}-{factor['high']:.2f}" for factor in learned],
                "learned": [percent(factor["told"], ".0%") for factor in learned],
            }
            meaning = (
                "factor: correction to the calibrated constant; learned: share of its uncertainty removed"
            )
            yield from ("", table_of(columns, words=("seconds of",)))
            yield wrapped(f"({meaning} by these runs)", indent=" ")
        if silent := [part_label(factor["kind"]) for factor in factors if factor["told"] < _SILENT]:
            yield wrapped(f"These runs do not determine, and leave as calibrated: {sentence_list(silent)}")

    def _runs_table(self) -> Table:
        """Table of measured quantities, with prediction errors before and after the update."""
        runs = self.runs()
        columns = {
            "run": [run["layout"] for run in runs],
            "quantity": [quantity_label(run["quantity"]) for run in runs],
            "measured": [format_seconds(run["measured"]) for run in runs],
            "before": [percent(run["before"], "+.1%") for run in runs],
            "after": [percent(run["after"], "+.1%") for run in runs],
            "noise": [percent(run["noise"]) for run in runs],
        }
        return table_of(columns, words=("run",), names=("quantity",))

    def save(self, path: str | Path) -> None:
        """Write the profile to a file, for `--profile`."""
        save_spec(self.profile, Path(path))

    def __repr__(self) -> str:
        """Table of runs with errors before and after, as text."""
        return str(self._runs_table())


_COMPARED = {STEP: "step_seconds", "thread": "thread_cpu_seconds"}
"""Quantity of a run that is compared → its name in rows."""


def _gigaflops(rate: float) -> str:
    """Rate as text in GFLOP/s."""
    return f"{rate / 1e9:.4g} GFLOP/s"


def _nanoseconds(seconds: float) -> str:
    """Time as text in nanoseconds per parameter."""
    return f"{seconds * 1e9:.3g} ns a parameter"


_RATES = ("gemm_efficiency", "gemm_settled", "attention_forward_efficiency", "attention_backward_efficiency")
_SHARES = (*_RATES, "memory_efficiency", "optimizer_efficiency", "link_efficiency")
_TIMES = ("kernel_seconds", "host_layer_seconds", "collective_seconds", "step_seconds")
_CHECKED: dict[str, Callable[[float], str]] = {
    "measured_peak": _gigaflops,
    "measured_bandwidth": format_bandwidth,
    **dict.fromkeys(_SHARES, percent),
    **dict.fromkeys(_TIMES, format_seconds),
}
"""Constants worth checking by eye → function that writes their value; the profile's file has the rest."""


class MeasuredProfile(Answer):
    """Answer of `calibrate`: the profile measured on this machine, and its file."""

    profile: HardwareProfile
    file: Path

    def csv_rows(self) -> list[dict[str, str]]:
        """Row for each measured rate, efficiency and latency; constants that were not measured have none."""
        values = {name: getattr(self.profile, name) for name in _CHECKED}
        rows = [(name, value, _CHECKED[name](value)) for name, value in values.items() if value is not None]
        rows += _host_rates(self.profile)
        records = [{"constant": name, "value": repr(value), "text": text} for name, value, text in rows]
        if (kernel := self.profile.attention_kernel) is not None:
            records.append({"constant": "attention_kernel", "value": kernel, "text": kernel})
        return records

    def document(self) -> dict[str, Any]:
        """JSON document: file and profile."""
        return {"file": str(self.file), "profile": self.profile.model_dump(mode="json")}

    def view(self) -> tuple[str | Table, ...]:
        """Text that `meshwright calibrate` prints."""
        cells = [(row["constant"], row["text"]) for row in self.rows]
        source = wrapped(f"profile {self.profile.name}: {self.profile.source}")
        return source, "", table(("constant", "value"), cells, words=("constant",))


def _host_rates(profile: HardwareProfile) -> list[tuple[str, float, str]]:
    """Name, value and text of the host's measured rates for offload (CPU updates, copies); empty if not measured."""
    update, call, rates = profile.host_update_seconds, profile.host_call_seconds, profile.host_rates
    if update is None or rates is None:
        return []
    updates = {f"update, {counted(run.threads, 'thread')} a rank": run.seconds for run in rates.updates}
    rows = [
        ("host_update_seconds", update, _nanoseconds(update)),
        ("host_call_seconds", call, f"{format_seconds(call)} a block"),
        ("host_overlap", profile.host_overlap, percent(profile.host_overlap)),
        *((name, seconds, _nanoseconds(seconds)) for name, seconds in updates.items()),
    ]
    prefix = "copy within memory" if profile.measured_peak is not None else "pinned copy"
    for run in rates.copies:
        for way, rate in (("down", run.down), ("up", run.up), ("each way", run.both)):
            name = f"{prefix} {way}, {counted(run.ranks, 'rank')} at once"
            rows.append((name, rate, format_bandwidth(rate)))
    return rows


def calibrate_from_runs(
    *tables: str | Path,
    stack: str | None = None,
    gpu: str | None = None,
    cross_validate: bool = False,
    out: str | Path | None = None,
) -> Fitted:
    """Fit a hardware profile to timed runs in tables, for each GPU and stack that the tables name.

    `stack` and `gpu` select rows; `cross_validate` also reports errors on sources left out of every fit. A single
    profile is written to the file `out`, several into the folder `out`.

    Raises:
        InputError: a table, a stack or a GPU cannot be read, no row was timed, or rows of several GPUs or stacks for
            one file.
    """
    paths = tuple(map(Path, tables))
    options = CalibrateFlags(from_runs=paths, stack=stack, gpu=gpu, cross_validate=cross_validate)
    fitted = fit_tables(read_tables(options), options, None if out is None else str(out))
    for write in fitted.writers:
        write()
    return fitted


def read_tables(options: CalibrateFlags) -> list[Row]:
    """Read tables of timed runs, after checking that the chosen stack and GPU exist.

    Raises:
        InputError: a table, a stack or a GPU cannot be read; everything that cannot, at once.
    """
    problems = Problems()
    tables = [problems.read(read_rows, path) for path in options.from_runs]
    problems.read(lambda: catalog.load_stack(options.stack) if options.stack else None)
    problems.read(lambda: catalog.load_gpu(options.gpu) if options.gpu else None)
    problems.require()
    return [*chain(*tables)]


def fit_tables(
    rows: Sequence[Row],
    options: CalibrateFlags,
    out: str | None,
    on_status: Callable[[str], None] = lambda _: None,
) -> Fitted:
    """Fit a hardware profile to the `rows` of the tables that the options name; if `out` is a folder or None, one
    profile for each GPU and stack.

    A folder ends in `/` or exists. `on_status` is called with a text on the work that begins.

    Raises:
        InputError: no row was timed, or rows of several GPUs or stacks for one file.
    """

    def count_rows(rows_done: int) -> None:
        """Report how many rows were read."""
        on_status(f"reading  {grouped(rows_done)}/{grouped(len(rows))} rows")

    def name_source(source: str) -> None:
        """Report which source is left out of the fit."""
        on_status(f"fitting without {printable(source, 40)}")

    def count_round(fitting: str, number: int, error: float) -> None:
        """Report a round of the fit and its error."""
        on_status(f"{fitting}  round {number}  median error {percent(error)}")

    stack = options.stack
    selection = select_runs(rows, stack=stack, gpu=options.gpu, on_row=count_rows)
    pairs, has_folder = selection.pairs(), out is None or out.endswith("/") or Path(out).is_dir()
    tables = [f"`{path}`" for path in options.from_runs]
    subject = ", ".join(tables) + (" has" if len(tables) == 1 else " have")
    if not pairs:
        reasons = [Problem(counted(count, "row"), reason) for reason, count in _reasons(selection)]
        hint = "a row needs `step_seconds`, of a step; see docs/guides/calibrating-from-runs.md"
        raise InputError(f"{subject} no usable row", problems=reasons, hint=hint)
    if len(pairs) > 1 and not has_folder:
        counts = {f"--gpu {die} --stack {name}": len(cases) for (die, name), cases in pairs.items()}
        problems = [Problem(flags, counted(count, "row")) for flags, count in counts.items()]
        hint = "choose one, or write a file each: -o profiles/"
        raise InputError(f"{subject} runs for {len(pairs)} profiles", problems=problems, hint=hint)
    refits = []
    for pair, cases in pairs.items():
        fitting = f"fitting {pair[0]} {pair[1]}  {counted(len(cases), 'row')}"
        on_status(fitting)
        refits.append(refit(pair, cases, on_round=partial(count_round, fitting)))
    unseen: tuple[UnseenSource, ...] | None = None
    if options.cross_validate:
        errors = {run: error for one in refits for run, error in one.residuals.items()}
        unseen = leave_sources_out(selection.cases, errors, on_source=name_source)
    files = []
    if out is not None:
        names = (one.profile.name.replace("/", "-") for one in refits)
        files = [Path(out) / f"{name}.yaml" for name in names] if has_folder else [Path(out)]
    return Fitted(refits=tuple(refits), selection=selection, stack=stack, unseen=unseen, files=tuple(files))


class Fitted(Answer):
    """Answer of `calibrate --from-runs`: a profile for each GPU and stack in the tables, and the rows left out."""

    refits: tuple[StepTimeFit, ...]
    selection: Selection
    stack: str | None = None
    """Software stack that was asked for; None: every stack in the tables."""
    unseen: tuple[UnseenSource, ...] | None = None
    """Errors of each source when it is left out of every fit; None if not asked for."""
    files: tuple[Path, ...] = ()
    """Files of the profiles, in the same order."""

    @property
    def profiles(self) -> tuple[HardwareProfile, ...]:
        """Fitted profiles."""
        return tuple(one.profile for one in self.refits)

    @property
    def writers(self) -> list[Callable[[], None]]:
        """Functions that each write one profile to its file, making the file's folder if need be."""

        def write(profile: HardwareProfile, file: Path) -> None:
            """Write a profile to its file."""
            file.parent.mkdir(exist_ok=True)
            save_spec(profile, file)

        return [partial(write, *filed) for filed in zip(self.profiles, self.files, strict=False)]

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each fitted constant of each profile: the profile's file, the constant, and the runs that moved it
        most."""
        return [
            {"file": profile["file"], **constant, "moved_by": "; ".join(constant["moved_by"])}
            for profile in self.document()["profiles"]
            for constant in profile["constants"]
        ]

    def document(self) -> dict[str, Any]:
        """JSON document: profiles with their fits, rows left out, and cross-validation."""
        files: Sequence[str | None] = [str(file) for file in self.files] or [None] * len(self.refits)
        filed = zip(files, self.refits, strict=True)
        return {
            "profiles": [{"file": file} | _fit_record(fit) for file, fit in filed],
            "left_out": [
                {"row_id": row.row_id, "source_id": row.source_id, "reason": reason}
                for row, reason in self.selection.left_out
            ],
            "read_as_stack": self.stack if self.selection.forced else None,
            "cross_validation": None if self.unseen is None else [asdict(one) for one in self.unseen],
        }

    def view(self) -> Iterator[str | Table]:
        """Text: each profile with its fit, errors of sources left out of every fit, and rows left out."""
        selection, unseen = self.selection, self.unseen
        if selection.forced:
            yield wrapped(f"every row is read as run on {self.stack}")
        for fit in self.refits:
            yield from _fit_text(fit)
            yield ""
        if unseen:
            yield from ("Each source left out of every fit (median errors; fits start from the defaults)", "")
            columns = {
                "source": [printable(source.source_id, 40) for source in unseen],
                "rows": [str(source.runs) for source in unseen],
                "defaults": [percent(source.defaults) for source in unseen],
                "left out": [percent(source.left_out) for source in unseen],
                "fitted": [percent(source.fitted) for source in unseen],
            }
            yield table_of(columns, words=("source",))
            if len(unseen) == 1:
                yield "one source only: nothing is left to fit to when it is left out"
            yield ""
        yield f"{counted(len(selection.cases), 'row')} fitted to, {len(selection.left_out)} left out"
        for reason, rows in _reasons(selection):
            yield wrapped(f"  {rows} left out: {reason}", indent="    ")


def _reasons(selection: Selection) -> list[tuple[str, int]]:
    """Reasons why rows are left out of a fit, with the number of rows; most frequent first."""
    counts = Counter(reason for _, reason in selection.left_out).most_common(_MAX_REASONS)
    return [(printable(reason), rows) for reason, rows in counts]


_MAX_REASONS = 8
_LEAST_CHANGE = 0.02
"""Relative change from which a constant counts as moved."""
_FAR = 0.15
"""Relative error after the fit above which text names a run."""
_MAX_FAR = 5
_MAX_ID_CHARACTERS = 24


def _fit_record(fit: StepTimeFit) -> dict[str, Any]:
    """JSON object of one fitted profile: constants, and errors of runs before and after."""
    return {
        "gpu": fit.profile.gpu,
        "stack": fit.profile.stack,
        "started_from": fit.start.name,
        "median_error_before": fit.median_before,
        "median_error_after": fit.median_error,
        "constants": _constant_records(fit),
        "runs": [
            {"row_id": run, "source_id": fit.sources[run], "before": fit.start_errors[run], "after": after}
            for run, after in fit.residuals.items()
        ],
        "profile": fit.profile.model_dump(mode="json"),
    }


def _constant_records(fit: StepTimeFit) -> list[dict[str, Any]]:
    """JSON objects of fitted constants in base units: values before and after, 90 % interval, and the runs that moved
    the constant most."""
    return [
        {"constant": name, "before": getattr(fit.start, name), "after": getattr(fit.profile, name)}
        | {"low": interval.low, "high": interval.high, "told": interval.determined}
        | {"moved_by": list(interval.movers)}
        for name, interval in fit.constants.items()
    ]


def _fit_text(fit: StepTimeFit) -> Iterator[str | Table]:
    """Text on a fit: errors before and after, constants that the rows determine, and runs that are still far off."""
    rows = f"{counted(len(fit.residuals), 'row')} ({fit.named_sources})"
    yield wrapped(f"{fit.profile.gpu} under {fit.profile.stack}: {rows}, from profile {fit.start.name}")
    yield f"median error {percent(fit.median_before)} before, {percent(fit.median_error)} after"
    constants = _constant_records(fit)
    has_moved = {one["constant"]: abs(one["after"] / one["before"] - 1) >= _LEAST_CHANGE for one in constants}
    learned = [one for one in constants if one["told"] >= _SILENT or has_moved[one["constant"]]]
    if learned:
        headers = ("constant", "before", "after", "90 % interval", "learned")
        yield from ("", table(headers, [_cells(one) for one in learned], words=("constant",)))
        yield from ("", "(learned: share of a constant's uncertainty removed by these rows)")
    for one in learned:
        if one["told"] >= _SILENT and has_moved[one["constant"]]:
            movers = ", ".join(printable(run, _MAX_ID_CHARACTERS) for run in one["moved_by"])
            movement = change(one["before"], one["after"])
            yield wrapped(f"  {one['constant']} {movement}: most by {movers}", indent="    ")
    if silent := [one["constant"] for one in constants if one not in learned]:
        yield wrapped(f"These rows do not determine, and leave as before: {sentence_list(silent)}")
    far = [(run, error) for run, error in fit.residuals.items() if abs(error) > _FAR]
    far.sort(key=lambda item: -abs(item[1]))
    named = [(printable(run, _MAX_ID_CHARACTERS), error) for run, error in far[:_MAX_FAR]]
    words = [f"{run} {percent(error, '+.0%')}" for run, error in named]
    words += [f"{len(far) - _MAX_FAR} more"] if len(far) > _MAX_FAR else []
    if words:
        yield wrapped(f"Far off still: {sentence_list(words)}; look at these rows again")


def _cells(constant: dict[str, Any]) -> list[str]:
    """Cells of a constant as text; both ends of its interval share a unit: "84.2-92.0 %"."""
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
    """Share as percent text: one decimal, two if below 10 %."""
    return percent(value, ".1%" if value >= 0.1 else ".2%")
