"""`estimate`: the price of one layout."""

from __future__ import annotations

from pathlib import Path

from cost_models.axes.layout import parse_layout
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from meshwright.api.problems import Together
from meshwright.api.questions import Asked, question_of
from meshwright.cli.output import JSON_SCHEMA, Output, check_places
from meshwright.records.estimates import estimate_record, estimate_row, question_record
from meshwright.render.plans.estimates import estimate_text
from meshwright.render.plans.ranked import placed_on_pools, question_header
from planner.plan import make_plan
from planner.plan_files import save_plan
from planner.rules.legality import require_legal
from planner.search.given_layout import place_layout
from planner.space.notes import notes_of
from planner.space.restrictions import Restrictions


def estimate(asked: Asked, layout: str, *, out: Path | None, output: Output) -> bool:
    """Price a layout as it is written, blocks it leaves open placed as well as possible; says whether it fits.

    Raises:
        InputError: what was asked is wrong, or the layout cannot run.
    """
    together = Together()
    found = together.read(lambda: question_of(asked))
    written = together.read(lambda: parse_layout(layout))
    together.read(lambda: check_places(("-o", out), ("--csv", output.csv)))
    together.require()
    assert found is not None
    assert written is not None
    question, assumptions = found
    for assumption in assumptions:
        output.note(f"assumed: {assumption}")
    notes = notes_of(question)
    for note in notes:
        output.note(f"note: {note}")
    priced, chosen = priced_layout(question, layout, asked.trainer), not written.layers
    plan = make_plan(question, priced, None, Restrictions(trainer=asked.trainer))
    output.answer(
        {
            "schema": JSON_SCHEMA,
            "question": question_record(question),
            "assumptions": list(assumptions),
            "notes": list(notes),
            "estimate": estimate_record(priced, question),
            "split": {"layers": list(priced.layout.layers), "chosen": chosen},
        },
        [estimate_row(priced)],
        question_header(question, priced.trust, priced.memory_limit),
        "",
        estimate_text(priced, chosen=chosen),
        *placed_on_pools(question, priced),
        files=[] if out is None else [lambda: save_plan(plan, out)],
    )
    if out is not None:
        output.note(f"Wrote {out}. Next: meshwright explain {out}, meshwright advise {out}")
    return priced.fits


def priced_layout(question: Question, text: str, trainer: str | None = None) -> Estimate:
    """The estimate of a layout written in its notation (for a trainer).

    Raises:
        InputError: not a layout, or one that cannot run (or that the trainer refuses).
    """
    layout = parse_layout(text)
    require_legal(question, layout, trainer)
    return price(question, place_layout(question, layout))
