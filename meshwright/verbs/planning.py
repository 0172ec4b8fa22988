"""`plan`: search, rank, prove, and write the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cost_models.errors import InputError
from cost_models.question import MixedQuestion, Question
from cost_models.units import format_seconds, parse_bytes
from meshwright.output import Output, check_places
from meshwright.progress import progress
from meshwright.records import estimate_row, plans_record
from meshwright.render.plans import certificate_sentence, placed_on_pools, plans_table, question_header
from meshwright.render.words import count, sentence_list
from meshwright.together import Together
from meshwright.verbs.asking import Asked, questions_of
from planner.joint import search_questions
from planner.plan import load_plan, make_plan, save_plan
from planner.restrictions import Restrictions
from planner.search import SearchResult, search
from planner.search_space import parse_restrictions

TOP = 5
"""Plans ranked unless the user says otherwise."""

Limits = tuple[tuple[str, ...], tuple[str, ...], str | None]
"""What `--fix`, `--forbid` and `--max-memory` say."""


def plan(
    asked: Asked, limits: Limits, *, top: int, time_limit: float, out: Path | None, output: Output
) -> None:
    """Answer a question.

    Raises:
        InputError: what was asked is wrong.
        InfeasibleError: nothing fits.
    """
    together = Together()
    found = together.read(lambda: questions_of(asked))
    restrictions = together.read(lambda: restrictions_of(limits))
    together.read(lambda: check_places(("-o", out), ("--csv", output.csv)))
    together.require()
    assert found is not None
    assert restrictions is not None
    questions, assumptions = found
    restrictions = replace(restrictions, trainer=asked.trainer)
    for assumption in assumptions:
        output.note(f"assumed: {assumption}")
    _answer(questions, restrictions, assumptions, top=top, time_limit=time_limit, out=out, output=output)


def replay(path: Path, *, top: int | None, time_limit: float, out: Path | None, output: Output) -> None:
    """Ask a plan file's question again, within its restrictions; the same answer is the same bytes.

    Raises:
        InputError: a broken plan, or a place that cannot be written to.
        InfeasibleError: nothing fits.
    """
    together = Together()
    written = together.read(lambda: load_plan(path))
    together.read(lambda: check_places(("-o", out), ("--csv", output.csv)))
    together.require()
    assert written is not None
    if top is None:
        top = written.certificate.top if written.certificate else TOP
    restrictions = written.restrictions.read
    _answer((written.question,), restrictions, (), top=top, time_limit=time_limit, out=out, output=output)


def nothing_else_asked(asked: Asked, limits: Limits) -> None:
    """A replay takes its question and its restrictions from the plan file.

    Raises:
        InputError: something else was asked too.
    """
    names = dict(zip(("fix", "forbid", "max_memory"), limits, strict=True))
    flags = {"trainer": "--for"}
    given = [name for name, value in {**asdict(asked), **names}.items() if value not in (None, "", ())]
    if given:
        words = [
            name.upper() if name in ("model", "cluster") else flags.get(name, "--" + name.replace("_", "-"))
            for name in given
        ]
        raise InputError(
            "--replay takes its question from the plan", hint=f"leave out {sentence_list(words)}"
        )


def _answer(
    questions: Sequence[Question],
    restrictions: Restrictions,
    assumptions: tuple[str, ...],
    *,
    top: int,
    time_limit: float,
    out: Path | None,
    output: Output,
) -> None:
    """Search, print, write."""
    with progress(output) as reporter:

        def one(question: Question, within: Restrictions, seconds: float | None) -> SearchResult:
            return search(
                question,
                top=top,
                restrictions=within,
                time_limit=seconds,
                on_progress=reporter.searching,
                keep_on_interrupt=True,
            )

        joint = search_questions(one, questions, restrictions, time_limit)
    question, result = joint.question, joint.result
    best, certificate = result.estimates[0], result.certificate
    if out is not None:
        save_plan(make_plan(question, best, certificate, restrictions), out)
    output.answer(
        plans_record(question, result.estimates, certificate, assumptions),
        [estimate_row(estimate) for estimate in result.estimates],
        question_header(question, best.trust, best.memory_limit),
        "",
        plans_table(result.estimates),
        *placed_on_pools(question, best),
        "",
        certificate_sentence(certificate, best.step_seconds),
    )
    for other, estimate in joint.others:
        output.note(
            f"note: in {other.training.precision} the best is {estimate.layout.brief},"
            f" {format_seconds(estimate.step_seconds)} a step"
        )
    if certificate.gap > 0:
        output.note("warning: optimality is not proved; allow more time to close the gap")
    elif certificate.undecided:
        left = count(certificate.undecided, "layout")
        output.note(f"warning: only the first is proved; {left} may still belong among the others")
    if out is not None:
        runs = "" if isinstance(question, MixedQuestion) else f", meshwright run {out}"
        output.note(f"Wrote {out}. Next: meshwright explain {out}{runs}")


def restrictions_of(limits: Limits) -> Restrictions:
    """The flags as restrictions.

    Raises:
        InputError: a word that cannot be read.
    """
    fix, forbid, max_memory = limits
    together = Together()
    restrictions = together.read(lambda: parse_restrictions(fix, forbid))
    size = together.read(lambda: _size(max_memory))
    together.require()
    assert restrictions is not None
    return replace(restrictions, max_memory=size)


def _size(max_memory: str | None) -> float | None:
    if max_memory is None:
        return None
    try:
        return parse_bytes(max_memory)
    except ValueError as error:
        raise InputError(f"--max-memory: {error}") from None
