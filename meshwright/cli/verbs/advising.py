"""`advise`: what to change of what is run today."""

from __future__ import annotations

from pathlib import Path

from cost_models.axes.layout import parse_layout
from meshwright.answers.advised import advise as advise_on
from meshwright.api.problems import Together
from meshwright.cli.output import Output, check_places
from meshwright.cli.progress import progress
from meshwright.render.plans.advice import advice_table, conclusion, is_reached, today_sentence
from meshwright.render.plans.ranked import question_header
from planner.plan_files import load_plan
from planner.search.budget import Budget


def advise(path: Path, layout: str | None, *, time_limit: float, out: Path | None, output: Output) -> None:
    """The changes that gain most for their trouble, and the best plan they lead to; `layout` is run, or the plan's own.

    Raises:
        InputError: a broken plan, not a layout, or a place that cannot be written to.
        InfeasibleError: no layout fits at all.
    """
    together = Together()
    plan = together.read(lambda: load_plan(path))
    together.read(lambda: None if layout is None else parse_layout(layout))
    together.read(lambda: check_places(("-o", out), ("--csv", output.csv)))
    together.require()
    assert plan is not None
    with progress(output) as reporter:
        budget = Budget(
            time_limit=time_limit,
            on_progress=reporter.searching,
            on_status=reporter.doing,
            keep_on_interrupt=True,
        )
        advised = advise_on(plan, layout, budget=budget)
    advice = advised.advice
    if out is not None:
        advised.save(out)
    output.answer(
        advised.record(),
        advised.rows,
        question_header(advice.question, advice.today.trust, advice.today.memory_limit),
        "",
        today_sentence(advice),
        "",
        *(() if is_reached(advice) and not advice.changes else (advice_table(advice), "")),
        conclusion(advice),
    )
    if advice.result.certificate.gap > 0 and not budget.interrupted:
        output.note("warning: optimality is not proved; allow more time to close the gap")
    if out is not None:
        output.note(f"Wrote {out}. Next: meshwright explain {out}")
    if budget.interrupted:
        output.end_interrupted("these are the best so far, and not proved")
