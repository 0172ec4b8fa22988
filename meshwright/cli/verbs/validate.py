"""`meshwright validate`: predict runs that were timed, and say how far off."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli import options as o
from meshwright.cli.output import Output, check_places


def validate(
    runs: Annotated[
        list[Path] | None,
        o.optional("--runs", "FILE.csv", "A table of runs; repeatable. Default: the shipped ones."),
    ] = None,
    stack: o.Stack = None,
    profile: o.Profile = None,
    anchors: Annotated[
        int, typer.Option("--anchors", metavar="K", min=0, help="Calibrate each sweep on K of its rows.")
    ] = 0,
    recommenders: Annotated[
        bool, typer.Option("--recommenders", help="Runs of recommenders, in columns of their own.")
    ] = False,
    out: Annotated[Path | None, o.out("Write a page with plots.", "FOLDER")] = None,
    json: o.Json = False,
    csv: o.Csv = None,
    quiet: o.Quiet = False,
) -> None:
    """Predict runs that were timed, and say how far off."""
    from cost_models.units import counted, grouped
    from meshwright.answers.validated import PAGE
    from meshwright.api.validate import ask
    from meshwright.api.validate_recommenders import validate_recommenders
    from meshwright.cli.progress import progress
    from meshwright.inputs.problems import Problems

    output = Output(json=json, csv=csv, quiet=quiet)
    problems = Problems()
    if recommenders:
        _refuse({"--stack": stack, "--profile": profile, "--anchors": anchors, "-o": out})
        output.show(validate_recommenders(*(runs or ())))
        return
    question = problems.read(lambda: ask(runs or (), stack=stack, profile=profile, anchors=anchors))
    problems.read(lambda: check_places(("--csv", csv)))
    problems.read(lambda: _check_folder(out, PAGE))
    problems.require()
    assert question is not None
    with progress(output) as reporter:
        answer = question.answer(on_status=reporter.say, keep_on_interrupt=True)
    kept = out is None or answer.interrupted
    output.show(answer, files=[] if out is None or kept else [lambda: answer.save_page(out)])
    if answer.interrupted:
        done, rows = grouped(len(answer.predictions)), counted(len(question.rows), "row")
        left = "" if out is None else f"; {out / PAGE} is left as it was"
        output.end_interrupted(f"{done} of {rows} were predicted{left}")
    if out is not None:
        output.note(f"Wrote {out / PAGE}")


def _refuse(given: dict[str, object]) -> None:
    """Raise InputError where an option means nothing to runs of recommenders."""
    from cost_models.errors import InputError

    if strange := [name for name, value in given.items() if value]:
        raise InputError(f"{', '.join(strange)} goes with runs of transformers, not with --recommenders")


def _check_folder(folder: Path | None, page: str) -> None:
    """Say before the work what could not be written after it. Raises InputError."""
    from cost_models.errors import InputError, Problem

    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise InputError("the answer cannot be written", problems=[Problem(f"-o {folder}", "is no folder")])
    check_places(("-o", folder / page if folder.exists() else folder))
