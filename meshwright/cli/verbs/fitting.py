"""`calibrate --from-runs`: fit a profile to runs that were timed, without touching this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.evidence.calibration.cross_validation import UnseenSource, cross_validate
from cost_models.evidence.calibration.families import Pair
from cost_models.evidence.calibration.refitting import Refit, Selection, refit, select_runs
from cost_models.evidence.calibration.saving import save_profile
from cost_models.evidence.rows.cases import Case
from cost_models.evidence.rows.row import Row, read_rows
from cost_models.files import catalog
from cost_models.specs.hardware import HardwareProfile
from cost_models.units import counted, grouped
from meshwright.cli.output import Output, check_places
from meshwright.cli.progress import Reporter, progress
from meshwright.inputs.problems import Problems
from meshwright.records import JSON_SCHEMA
from meshwright.records.fits import constant_rows, left_out_record, refit_record, unseen_record
from meshwright.render.runs.fits import fits_text
from meshwright.render.words import percent

_MAX_REASONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which runs to fit to, and the flags of a measurement, which mean nothing here."""

    stack: str | None
    gpu: str | None
    processes: int | None
    quick: bool


def fit_runs(
    tables: Sequence[Path], choice: Choice, *, cross_validate: bool, out: str, output: Output
) -> None:
    """Fit one profile to the timed rows of `tables`, or with a folder as `out` one for each GPU and stack.

    Raises:
        InputError: a table, a stack or a GPU cannot be read, no row was timed, rows of several GPUs or stacks for
            one file, a flag of a measurement, or a place that cannot be written.
    """
    problems = Problems()
    problems.read(lambda: _nothing_measured(choice))
    read = [problems.read(partial(read_rows, path)) for path in tables]
    problems.read(lambda: catalog.load_stack(choice.stack) if choice.stack else None)
    problems.read(lambda: catalog.load_gpu(choice.gpu) if choice.gpu else None)
    problems.read(lambda: _check_places(out, output))
    problems.require()
    rows = [row for table in read for row in table or ()]
    with progress(output) as reporter:
        selection = _selected(rows, choice, reporter)
        pairs = selection.pairs()
        _require_one_answer(pairs, selection, tables, folder=_is_folder(out))
        refits = tuple(_refitted(pair, cases, reporter) for pair, cases in pairs.items())
        unseen = _unseen(selection, refits, reporter) if cross_validate else ()
    written = _files(refits, out)
    output.answer(
        {
            "schema": JSON_SCHEMA,
            "profiles": [refit_record(one, file) for one, file in zip(refits, written, strict=True)],
            "left_out": [left_out_record(row, reason) for row, reason in selection.left_out],
            "read_as_stack": choice.stack if selection.forced else None,
            "cross_validation": [unseen_record(one) for one in unseen] if cross_validate else None,
        },
        [row for one, file in zip(refits, written, strict=True) for row in constant_rows(one, file)],
        *fits_text(refits, selection, unseen, stack=choice.stack),
        files=[partial(_save, one.profile, file) for one, file in zip(refits, written, strict=True)],
    )
    for file in written:
        output.note(f"Wrote {file}")
    if len(written) == 1:
        runs = " ".join(f"--runs {path}" for path in tables)
        output.note(f"Next: meshwright validate {runs} --profile {written[0]}")


def _nothing_measured(choice: Choice) -> None:
    given = {"--processes": choice.processes is not None, "--quick": choice.quick}
    if problems := [Problem(flag, "is of a measurement") for flag, there in given.items() if there]:
        raise InputError("`--from-runs` measures nothing", problems=problems)


def _is_folder(out: str) -> bool:
    return out.endswith("/") or Path(out).is_dir()


def _check_places(out: str, output: Output) -> None:
    """A folder need not exist yet; what it is to hold is checked as any file."""
    path = Path(out)
    if not _is_folder(out):
        check_places(("-o", path), ("--csv", output.csv))
    elif path.is_dir():
        check_places(("-o", path / "profile.yaml"), ("--csv", output.csv))
    else:
        check_places(("-o", path), ("--csv", output.csv))
        if path.exists():
            problem = Problem(f"-o {out}", "is a file, not a folder")
            raise InputError("the answer cannot be written", problems=[problem])


def _selected(rows: Sequence[Row], choice: Choice, reporter: Reporter) -> Selection:
    """The rows to fit to; a line says how far reading is."""
    return select_runs(
        rows,
        stack=choice.stack,
        gpu=choice.gpu,
        on_row=lambda done: reporter.say(f"reading  {grouped(done)}/{grouped(len(rows))} rows"),
    )


def _require_one_answer(
    pairs: Mapping[Pair, Sequence[Case]], selection: Selection, tables: Sequence[Path], *, folder: bool
) -> None:
    """At least one row to fit to, and rows of one GPU and stack unless profiles go to a folder."""
    named = ", ".join(f"`{path}`" for path in tables)
    if not pairs:
        reasons = Counter(reason for _, reason in selection.left_out).most_common(_MAX_REASONS)
        raise InputError(
            f"{named} {'has' if len(tables) == 1 else 'have'} no row to fit to",
            problems=[Problem(counted(rows, "row"), printable(reason)) for reason, rows in reasons],
            hint="a row needs `step_time_best_s`, seconds of a step; see docs/guides/calibrating-from-runs.md",
        )
    if len(pairs) > 1 and not folder:
        raise InputError(
            f"{named} {'has' if len(tables) == 1 else 'have'} runs for {len(pairs)} profiles",
            problems=[
                Problem(f"--gpu {die} --stack {stack}", counted(len(cases), "row"))
                for (die, stack), cases in pairs.items()
            ],
            hint="choose one, or write a file each: -o profiles/",
        )


def _refitted(pair: Pair, cases: Sequence[Case], reporter: Reporter) -> Refit:
    """One fit; a line says how far it is."""
    name = f"{pair[0]} {pair[1]}"
    reporter.say(f"fitting {name}  {counted(len(cases), 'row')}")
    return refit(
        pair,
        cases,
        on_round=lambda round_, error: reporter.say(
            f"fitting {name}  {counted(len(cases), 'row')}  round {round_}  median error {percent(error)}"
        ),
    )


def _unseen(selection: Selection, refits: Sequence[Refit], reporter: Reporter) -> tuple[UnseenSource, ...]:
    """What profiles say of sources they never saw; a line says which is left out."""
    errors = {run: error for one in refits for run, error in one.fit.residuals.items()}
    return cross_validate(
        selection.cases,
        errors,
        on_source=lambda source: reporter.say(f"fitting without {printable(source, 40)}"),
    )


def _files(refits: Sequence[Refit], out: str) -> tuple[Path, ...]:
    """A file for each profile."""
    path = Path(out)
    if not _is_folder(out):
        assert len(refits) == 1, "a file holds one profile"
        return (path,)
    return tuple(path / f"{one.profile.name.replace('/', '-')}.yaml" for one in refits)


def _save(profile: HardwareProfile, file: Path) -> None:
    file.parent.mkdir(exist_ok=True)
    save_profile(profile, file)
