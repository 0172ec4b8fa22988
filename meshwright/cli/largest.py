"""`meshwright plan FAMILY CLUSTER --largest`: the largest size that fits, with each thing that host memory may hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from cost_models.errors import InputError, Problem
from meshwright.api.largest import ask
from meshwright.cli.output import Output, check_places
from meshwright.cli.progress import searching
from meshwright.inputs.limits import Limits
from meshwright.inputs.problems import Problems
from meshwright.inputs.questions import Inputs


def answer_largest(
    largest: bool,
    inputs: Inputs,
    by: str | None,
    gpus: str | None,
    limits: Limits,
    others: Mapping[str, object],
    time_limit: float,
    out: Path | None,
    output: Output,
) -> None:
    """Read the question, search and print; `others` are flags that mean nothing here."""
    problems = Problems()
    problems.read(lambda: _require_meant(largest, others))
    question = problems.read(lambda: ask(inputs, by, gpus, limits))
    problems.read(lambda: check_places(("-o", out), ("--csv", output.csv)))
    problems.require()
    assert question is not None
    output.assumed(question.assumptions)
    output.remark(question.notes)
    with searching(output, time_limit) as budget:
        answer = question.answer(budget)
    writes = out is not None and answer.plan is not None
    output.show(answer, files=[lambda: answer.save(out)] if out is not None and writes else [])
    for remark in answer.remarks:
        output.note(remark)
    if writes:
        output.note(f"Wrote {out}. Next: meshwright explain {out}, meshwright run {out}")
    if budget.interrupted:
        output.end_interrupted("sizes that were not tried may fit")
    if answer.plan is None:
        raise typer.Exit(1)


def _require_meant(largest: bool, others: Mapping[str, object]) -> None:
    """Raises InputError for flags of another question."""
    if not largest:
        raise InputError("`--by` says what grows from size to size", hint="it goes with --largest")
    given = [f"--{name}" for name, value in others.items() if value is not None]
    if given:
        raise InputError(
            "`--largest` takes fewer flags",
            problems=[Problem(flag, "means nothing beside --largest") for flag in given],
        )
