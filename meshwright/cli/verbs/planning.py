"""`plan`: search, rank, prove, and write the best plan."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster
from cost_models.question import MixedQuestion
from cost_models.units import counted, format_seconds, parse_bytes
from meshwright.api.goals import Aimed, Goal, aimed
from meshwright.api.problems import Together
from meshwright.api.questions import Asked
from meshwright.cli.output import Output, check_places
from meshwright.cli.progress import progress
from meshwright.cli.verbs.offering import Offered, answer_offers, clusters_in, offered
from meshwright.records.estimates import optimum_record, optimum_rows
from meshwright.render.plans.goals import left_out_text
from meshwright.render.plans.ranked import answer_sentence, optimum_table, placed_on_pools, question_header
from meshwright.render.words import sentence_list
from planner.answers.offers import offers_of
from planner.answers.optimising import optimise
from planner.answers.optimum import PROVEN, Optimum, answered_question
from planner.answers.remedies import remedies_told
from planner.objectives import Objective
from planner.plan import Plan, make_plan
from planner.plan_files import load_plan, save_plan
from planner.search.budget import Budget
from planner.space.layouts import parse_restrictions
from planner.space.notes import notes_of
from planner.space.restrictions import Restrictions

TOP = 5
"""Plans ranked unless the user says otherwise."""

Limits = tuple[tuple[str, ...], tuple[str, ...], str | None]
"""What `--fix`, `--forbid` and `--max-memory` say."""


def plan(
    asked: Asked,
    limits: Limits,
    goal: Goal,
    *,
    gpus: str | None,
    top: int | None,
    time_limit: float,
    out: Path | None,
    output: Output,
) -> None:
    """Answer a question; `gpus` is what `--gpus` says.

    Raises:
        InputError: what was asked is wrong.
        InfeasibleError: nothing fits, or nothing meets the deadline.
    """
    together = Together()
    several = len(clusters_in(asked.cluster)) > 1
    aim = together.read(lambda: offered(asked, gpus, goal) if several else aimed(asked, gpus, goal))
    restrictions = together.read(lambda: restrictions_of(limits))
    together.read(lambda: check_places(("-o", out), ("--csv", output.csv)))
    together.require()
    assert aim is not None
    assert restrictions is not None
    restrictions = replace(restrictions, trainer=asked.trainer)
    for assumption in aim.assumptions:
        output.note(f"assumed: {assumption}")
    if isinstance(aim, Offered):
        answer_offers(aim, restrictions, top=top, time_limit=time_limit, out=out, output=output)
        return
    with remedies_told(
        aim.question, restrictions, sizes=aim.sizes, whole_nodes=resolve_cluster(asked.cluster)
    ):
        _answer(aim, restrictions, top=top or TOP, time_limit=time_limit, out=out, output=output)


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
    restrictions = written.restrictions.read
    if offers := offers_of(written):
        asked = asked_by(written)
        objective = replace(asked.objective, price=None)
        what = Offered(offers=offers, objective=objective, precisions=asked.precisions)
        answer_offers(what, restrictions, top=top, time_limit=time_limit, out=out, output=output)
        return
    if top is None:
        top = written.certificate.top if written.certificate else TOP
    aim = asked_by(written)
    with remedies_told(aim.question, restrictions, sizes=aim.sizes):
        _answer(aim, restrictions, top=top, time_limit=time_limit, out=out, output=output)


def asked_by(plan: Plan) -> Aimed:
    """What a plan file answers."""
    question, objective = answered_question(plan), plan.objective
    if objective is None:
        return Aimed(question=question, objective=Objective(), sizes=())
    return Aimed(
        question=question,
        objective=objective.terms,
        sizes=objective.gpus,
        precisions=objective.precisions,
    )


def nothing_else_asked(asked: Asked, limits: Limits, goal: Goal, gpus: str | None) -> None:
    """A replay takes its question, its objective and its restrictions from the plan file.

    Raises:
        InputError: something else was asked too.
    """
    names = dict(zip(("fix", "forbid", "max_memory"), limits, strict=True))
    flags = {"trainer": "--for"}
    said = {**asdict(asked), "gpus": gpus, **names, **asdict(goal)}
    given = [name for name, value in said.items() if value not in (None, "", (), Goal().objective)]
    if given:
        words = [
            name.upper() if name in ("model", "cluster") else flags.get(name, "--" + name.replace("_", "-"))
            for name in given
        ]
        raise InputError(
            "--replay takes its question from the plan", hint=f"leave out {sentence_list(words)}"
        )


def _answer(
    aim: Aimed, restrictions: Restrictions, *, top: int, time_limit: float, out: Path | None, output: Output
) -> None:
    """Search, print, write."""
    notes = notes_of(aim.question, restrictions)
    for note in notes:
        output.note(f"note: {note}")
    with progress(output) as reporter:
        budget = Budget(
            time_limit=time_limit,
            on_progress=reporter.searching,
            on_status=reporter.doing,
            keep_on_interrupt=True,
        )
        optimum = optimise(
            aim.question,
            aim.objective,
            sizes=aim.sizes,
            precisions=aim.precisions,
            top=top,
            restrictions=restrictions,
            budget=budget,
        )
    best, certificate = optimum.result.best, optimum.result.certificate
    objective = optimum.written(aim.question.cluster.gpus_per_node)
    best_plan = make_plan(optimum.question, best, certificate, restrictions, objective)
    output.answer(
        optimum_record(optimum, aim.assumptions, notes),
        optimum_rows(optimum),
        question_header(optimum.question, best.trust, best.memory_limit),
        "",
        optimum_table(optimum),
        *placed_on_pools(optimum.question, best),
        "",
        answer_sentence(optimum),
        files=[] if out is None else [lambda: save_plan(best_plan, out)],
    )
    for other, estimate in optimum.others:
        output.note(
            f"note: in {other.training.precision} the best is {estimate.layout.brief},"
            f" {format_seconds(estimate.step_seconds)} a step"
        )
    for warning in _warnings(optimum, budget):
        output.note(warning)
    if out is not None:
        runs = "" if isinstance(optimum.question, MixedQuestion) else f", meshwright run {out}"
        output.note(f"Wrote {out}. Next: meshwright explain {out}{runs}")
    if budget.interrupted:
        output.end_interrupted("this is the best so far, and not proved")


def _warnings(optimum: Optimum, budget: Budget) -> list[str]:
    """What is not proved, and which numbers of GPUs have no answer."""
    warnings = [left_out_text(optimum)]
    if budget.interrupted:
        return [warning for warning in warnings if warning]  # that is said last
    if optimum.gap > PROVEN:
        warnings.append("warning: optimality is not proved; allow more time to close the gap")
    elif optimum.result.certificate.undecided:
        left = counted(optimum.result.certificate.undecided, "layout")
        warnings.append(f"warning: only the first is proved; {left} may still belong among the others")
    return [warning for warning in warnings if warning]


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
