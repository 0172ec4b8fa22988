"""`validate`: predicts runs that were timed, and says how far off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cost_models.errors import InputError, Problem
from cost_models.flags import flag, output_flag, switch
from meshwright.verbs.contract import command

if TYPE_CHECKING:
    from cost_models.specs.hardware import HardwareProfile
    from meshwright.terminal.output import Output
    from meshwright.verbs.validate.recommenders import ValidatedRecommenders
    from meshwright.verbs.validate.validated import Validated


@dataclass(frozen=True, kw_only=True)
class ValidateOptions:
    """Options of `validate` besides tables of runs."""

    stack: str | None = flag("NAME", "Software stack: catalogue name or file.", completion="stacks")
    profile: str | HardwareProfile | None = flag(
        "NAME", "Hardware profile: catalogue name or file.", completion="profiles"
    )
    anchors: int = flag("K", "Calibrate each sweep on K of its rows.", default=0, kind=int, minimum=0)


def validate(
    *runs: str | Path,
    stack: str | None = None,
    profile: str | HardwareProfile | None = None,
    anchors: int = 0,
) -> Validated:
    """Predict every row of the tables (none: the shipped ones) and compare.

    `anchors` timed rows of each sweep calibrate its others, and are no predictions then.

    Raises:
        InputError: a table, a stack or a profile cannot be read.
    """
    from meshwright.verbs.validate.validated import ask

    if anchors < 0:
        raise ValueError(f"anchors is {anchors}, and must not be negative")
    return ask(runs, ValidateOptions(stack=stack, profile=profile, anchors=anchors)).answer()


def validate_recommenders(*runs: str | Path) -> ValidatedRecommenders:
    """Predict every row of the tables (none: the shipped one), in the shipped one's columns, and compare.

    Raises:
        InputError: a table cannot be read.
    """
    from meshwright.verbs.validate.recommenders import predict_runs

    return predict_runs(runs)


@dataclass(frozen=True, kw_only=True)
class ValidateFlags(ValidateOptions):
    """Options of `meshwright validate`."""

    runs: tuple[Path, ...] = flag(
        "FILE.csv",
        "A table of runs; repeatable. Default: the shipped ones.",
        kind=list[Path],
        default=(),
        panel="subject",
    )
    recommenders: bool = switch("Runs of recommenders, in columns of their own.")
    out: Path | None = output_flag("Write a page with plots.", "FOLDER")


@command(ValidateFlags, name="validate")
def validate_command(options: ValidateFlags, output: Output) -> None:
    """Predict runs that were timed, and say how far off."""
    from cost_models.units import counted, grouped
    from meshwright.inputs.problems import Problems
    from meshwright.terminal.progress import progress
    from meshwright.verbs.validate.validated import PAGE, ask

    if options.recommenders:
        _refuse_others(options)
        output.check_places()
        output.show(validate_recommenders(*options.runs))
        return
    problems, folder = Problems(), options.out
    question = problems.read(lambda: ask(options.runs, options))
    problems.read(lambda: output.check_places())
    problems.read(lambda: _check_folder(folder, PAGE))
    problems.require()
    assert question is not None
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


def _refuse_others(options: ValidateFlags) -> None:
    """Raises InputError where an option means nothing to runs of recommenders."""
    names = ("--stack", "--profile", "--anchors", "-o")
    values = (options.stack, options.profile, options.anchors, options.out)
    if strange := [name for name, value in zip(names, values, strict=True) if value]:
        raise InputError(f"{', '.join(strange)} goes with runs of transformers, not with --recommenders")


def _check_folder(folder: Path | None, page: str) -> None:
    """Say before the work what could not be written after it. Raises InputError."""
    from meshwright.terminal.output import check_places

    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise InputError("the answer cannot be written", problems=[Problem(f"-o {folder}", "is no folder")])
    check_places(("-o", folder / page if folder.exists() else folder))
