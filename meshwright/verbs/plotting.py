"""`plot`: a plan or a run report as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cost_models.errors import InputError, Problem
from cost_models.estimate import Estimate
from cost_models.estimating import estimate as price
from cost_models.question import Question
from meshwright import frames
from meshwright.drawing import Drawing, draw_frontier, draw_memory, draw_scaling, draw_time, draw_timeline
from meshwright.output import JSON_SCHEMA, Output, as_csv, check_places, write_text
from meshwright.progress import Reporter, progress
from meshwright.render.words import sentence_list
from planner.plan import load_plan
from planner.search import search

RIVALS = 5
"""Bars of the time breakdown of a single plan."""
RIVALS_SECONDS = 20.0
"""Time limit of the search for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to draw, and from what."""

    files: Sequence[Path]
    gpu_counts: str | None
    reporter: Reporter


def plot(
    kind: str, files: Sequence[Path], *, gpu_counts: str | None, out: Path | None, output: Output
) -> None:
    """Draw one kind of plot and write it.

    Raises:
        InputError: a file, a list of GPUs or a suffix that is wrong.
    """
    from meshwright.plots.style import check_suffix

    if gpu_counts is not None and kind != "scaling":
        raise InputError(f"--gpus says where scaling curves are drawn, and means nothing to `{kind}`")
    path = out or Path(f"{kind}.png")
    check_suffix(path)
    check_places(("-o", path), ("--csv", output.csv))
    with progress(output) as reporter:
        drawing = _KINDS[kind](Request(files=files, gpu_counts=gpu_counts, reporter=reporter))
    drawing.save(path)
    rows = drawing.points
    if output.csv is not None:
        write_text(output.csv, as_csv(rows))
    document = {
        "schema": JSON_SCHEMA,
        "plot": kind,
        "file": str(path),
        "title": drawing.title,
        "points": rows,
    }
    Output(json=output.json, quiet=output.quiet).answer(document, rows, drawing.title, f"Wrote {path}")


def _only_plan(request: Request, kind: str) -> tuple[Question, Estimate]:
    if len(request.files) != 1:
        raise InputError(f"`{kind}` draws one plan, not {len(request.files)}")
    return _planned(request.files[0])


def _planned(path: Path) -> tuple[Question, Estimate]:
    """A plan's question and layout, priced again, within the memory it was planned for."""
    plan = load_plan(path)
    priced = price(plan.question, plan.layout)
    limit = plan.restrictions.read.max_memory
    return plan.question, priced if limit is None else priced.within(limit)


def _frontier(request: Request) -> Drawing:
    question, chosen = _only_plan(request, "frontier")
    return draw_frontier(question, chosen, request.reporter.say)


def _scaling(request: Request) -> Drawing:
    question, _ = _only_plan(request, "scaling")
    counts = None if request.gpu_counts is None else _counts(request.gpu_counts)
    return draw_scaling(question, counts, request.reporter.say)


def _time(request: Request) -> Drawing:
    plans = [_planned(path) for path in request.files]
    question, estimates = plans[0][0], [estimate for _, estimate in plans]
    if len(plans) == 1:
        request.reporter.say("searching for rivals")
        restrictions = load_plan(request.files[0]).restrictions.read
        rivals = search(question, top=RIVALS, restrictions=restrictions, time_limit=RIVALS_SECONDS).estimates
        estimates += [rival for rival in rivals if rival.layout != estimates[0].layout][: RIVALS - 1]
    return draw_time(question, estimates)


def _memory(request: Request) -> Drawing:
    return draw_memory(*_only_plan(request, "memory"))


def _timeline(request: Request) -> Drawing:
    return draw_timeline(*_only_plan(request, "timeline"))


def _accuracy(request: Request) -> Drawing:
    from meshwright.plots.accuracy import accuracy

    frame = frames.accuracy_frame(request.files)
    if not (frame["quantity"] == "step_seconds").any():
        raise InputError("nothing to draw: no row has the quantity `step_seconds`")
    figure = accuracy(frame, sentence_list([str(path) for path in request.files]))
    return Drawing(frame=frame, figure=figure)


def _counts(text: str) -> list[int]:
    """ "64,128" → [64, 128]."""
    words = text.split(",")
    problems = [
        Problem("--gpus", f"`{word}` is not a number of GPUs")
        for word in words
        if not word.strip().isdecimal() or int(word) == 0
    ]
    if problems:
        raise InputError(
            "the scaling curves cannot be drawn", problems=problems, hint="write it like --gpus 64,128,256"
        )
    return sorted({int(word) for word in words})


_KINDS: dict[str, Callable[[Request], Drawing]] = {
    "frontier": _frontier,
    "scaling": _scaling,
    "time": _time,
    "memory": _memory,
    "timeline": _timeline,
    "accuracy": _accuracy,
}
