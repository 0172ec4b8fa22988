"""`validate`: predict runs that others timed, and report the errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError, Problem
from cost_models.flags import Options, flag, output_flag, switch
from meshwright.inputs.problems import refuse
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from cost_models.specs.hardware import HardwareProfile
    from meshwright.terminal.output import Output


class ValidateFlags(Options, kw_only=True):
    """Options of `meshwright validate`: tables of runs, stack, profile, anchors, and the page to write."""

    stack: str | None = flag("NAME", completion="stacks")
    """Software stack: catalogue name or file."""
    profile: str | HardwareProfile | None = flag("NAME", completion="profiles")
    """Hardware profile: catalogue name or file."""
    anchors: int = flag("K", default=0, minimum=0)
    """Calibrate each sweep on K of its rows."""
    runs: tuple[Path, ...] = flag("FILE.csv", kind=list[Path], default=(), panel="subject")
    """A table of runs; repeatable. Default: the shipped ones."""
    recommenders: bool = switch()
    """Runs of recommenders, in columns of their own."""
    convert: Path | None = flag("OLD.csv", panel="subject")
    """Print a table of other columns in those of --runs; -o: into a file."""
    out: Path | None = output_flag("Write a page with plots; of --convert the table.", "PATH")


@command(ValidateFlags)
def validate_command(options: ValidateFlags, output: Output) -> None:
    """Predict runs that were timed, and say how far off."""
    from cost_models.units import counted, grouped
    from meshwright.terminal.progress import progress
    from meshwright.verbs.validate.accuracy import PAGE, ask, validate_recommenders

    if options.convert is not None:
        _convert(options, options.convert, output)
        return
    if options.recommenders:
        names = ("stack", "profile", "anchors", "out")
        _refuse(options, "goes with runs of transformers, not with --recommenders", *names)
        output.check_places()
        output.show(validate_recommenders(*options.runs))
        return
    folder = options.out

    def check_places() -> None:
        """Check that the page can be written into the folder. Raises InputError."""
        is_file = folder is not None and folder.exists() and not folder.is_dir()
        refuse("the answer cannot be written", [Problem(f"-o {folder}", "is no folder")] * is_file)
        output.check_places(folder / PAGE if folder is not None and folder.exists() else folder)

    question = output.read(lambda: ask(options), places=check_places)
    with progress(output) as reporter:
        answer = question.answer(on_status=reporter.say, keep_on_interrupt=True)
    unwritten = folder is None or answer.interrupted
    output.show(answer, files=[] if folder is None or unwritten else [lambda: answer.save_page(folder)])
    if answer.interrupted:
        count, rows = grouped(len(answer.predictions)), counted(len(question.rows), "row")
        remainder = "" if folder is None else f"; {folder / PAGE} is left as it was"
        output.end_interrupted(f"{count} of {rows} were predicted{remainder}")
    if folder is not None:
        output.note(f"Wrote {folder / PAGE}")


def _refuse(options: ValidateFlags, reason: str, *names: str) -> None:
    """Raise InputError with this reason if one of the named options is given."""
    if strange := ["-o" if name == "out" else f"--{name}" for name in names if getattr(options, name)]:
        raise InputError(f"{', '.join(strange)} {reason}")


def _convert(options: ValidateFlags, table: Path, output: Output) -> None:
    """Convert a table of runs with other columns into the columns of `--runs`, and print or write it; rows that
    cannot be predicted stay."""
    from cost_models.measured.runs.conversion import convert_table
    from cost_models.units import counted
    from meshwright.terminal.output import as_csv

    names = ("runs", "recommenders", "profile", "anchors")
    _refuse(options, "goes with predictions, not with --convert", *names)
    rows = output.read(lambda: convert_table(table, stack=options.stack))
    skipped = sum(bool(cells.get("skipped")) for cells in rows)
    output.note(f"{counted(len(rows), 'run')}; {skipped} cannot be predicted, `skipped` says why")
    command = f"meshwright validate --runs {options.out}"
    output.show_text({"rows": rows}, rows, as_csv(rows), options.out, command)
