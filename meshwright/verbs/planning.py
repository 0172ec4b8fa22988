"""`plan`: search, rank, prove, and write the best plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cost_models.errors import InputError
from cost_models.units import parse_bytes
from meshwright.output import Output
from meshwright.progress import progress
from meshwright.records import estimate_row, plans_record
from meshwright.render.plans import certificate_sentence, plans_table, question_header
from meshwright.verbs.asking import Asked, question_of
from planner.plan import make_plan, save_plan
from planner.search import search
from planner.search_space import Restrictions, parse_restrictions

Limits = tuple[tuple[str, ...], tuple[str, ...], str | None]
"""What `--fix`, `--forbid` and `--max-memory` say."""


def plan(
    asked: Asked, limits: Limits, *, top: int, time_limit: float | None, out: Path | None, output: Output
) -> None:
    """Answer a question.

    Raises:
        InputError: what was asked is wrong.
        InfeasibleError: nothing fits.
    """
    question, assumptions = question_of(asked)
    restrictions = restrictions_of(limits)
    for assumption in assumptions:
        output.note(f"assumed: {assumption}")
    with progress(output) as reporter:
        result = search(
            question,
            top=top,
            restrictions=restrictions,
            time_limit=time_limit,
            on_progress=reporter.searching,
        )
    best, certificate = result.estimates[0], result.certificate
    output.answer(
        plans_record(question, result.estimates, certificate, assumptions),
        [estimate_row(estimate) for estimate in result.estimates],
        question_header(question, best.trust, best.memory_limit),
        "",
        plans_table(result.estimates),
        "",
        certificate_sentence(certificate, best.step_seconds),
    )
    if certificate.gap > 0:
        output.note("warning: optimality is not proved; allow more time to close the gap")
    if out is not None:
        save_plan(make_plan(question, best, certificate), out)
        output.note(f"Wrote {out}. Next: meshwright explain {out}, meshwright run {out}")


def restrictions_of(limits: Limits) -> Restrictions:
    """The flags as restrictions.

    Raises:
        InputError: a word that cannot be read.
    """
    fix, forbid, max_memory = limits
    restrictions = parse_restrictions(fix, forbid)
    if max_memory is None:
        return restrictions
    try:
        return replace(restrictions, max_memory=parse_bytes(max_memory))
    except ValueError as error:
        raise InputError(f"--max-memory: {error}") from None
