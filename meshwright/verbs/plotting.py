"""`plot`: a plan or a run report as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError
from cost_models.estimating import estimate as price
from cost_models.question import Question
from meshwright import frames
from meshwright.output import Output, as_csv, write_text
from meshwright.progress import Reporter, progress
from meshwright.records import JSON_SCHEMA
from meshwright.render.words import sentence_list
from planner.frontier import doublings, frontier_frame, scaling_frame
from planner.plan import Plan, load_plan
from planner.search import search

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

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
    from meshwright.plots.style import check_suffix, save

    if gpu_counts is not None and kind != "scaling":
        raise InputError(f"--gpus says where scaling curves are drawn, and means nothing to `{kind}`")
    path = out or Path(f"{kind}.png")
    check_suffix(path)
    with progress(output) as reporter:
        frame, figure = _KINDS[kind](Request(files=files, gpu_counts=gpu_counts, reporter=reporter))
    save(figure, path)
    title = " ".join(figure.get_suptitle().split())
    rows = frame.to_dict(orient="records")
    if output.csv is not None:
        write_text(output.csv, as_csv(rows))
    document = {"schema": JSON_SCHEMA, "plot": kind, "file": str(path), "title": title, "points": rows}
    Output(json=output.json, quiet=output.quiet).answer(document, rows, title, f"Wrote {path}")


def subject_of(question: Question) -> str:
    """What a plot is about."""
    cluster, training = question.cluster, question.training
    return (
        f"{question.model.name} on {cluster.num_gpus} x {cluster.gpu.name}, "
        f"global batch {training.global_batch}, sequence {training.sequence_length}"
    )


def _only_plan(request: Request, kind: str) -> tuple[Plan, Question]:
    if len(request.files) != 1:
        raise InputError(f"`{kind}` draws one plan, not {len(request.files)}")
    plan = load_plan(request.files[0])
    return plan, plan.question


def _frontier(request: Request) -> tuple[pd.DataFrame, Figure]:
    from meshwright.plots.tradeoff import frontier

    plan, question = _only_plan(request, "frontier")
    request.reporter.say("pricing every layout")
    frame = frontier_frame(question, price(question, plan.layout))
    return frame, frontier(frame, plan.prediction.memory_limit, subject_of(question))


def _scaling(request: Request) -> tuple[pd.DataFrame, Figure]:
    from meshwright.plots.scaling import scaling

    _, question = _only_plan(request, "scaling")
    counts = doublings(question) if request.gpu_counts is None else _counts(request.gpu_counts)
    frame = scaling_frame(question, counts, request.reporter.say)
    if frame.empty:
        raise InputError(f"nothing fits on {sentence_list([str(count) for count in counts])} GPUs")
    subject = (
        f"{question.model.name} on {question.cluster.gpu.name}, sequence {question.training.sequence_length}"
    )
    return frame, scaling(frame, f"{subject}; the best layout at each point")


def _time(request: Request) -> tuple[pd.DataFrame, Figure]:
    from meshwright.plots.breakdowns import time_breakdown

    plans = [load_plan(path) for path in request.files]
    questions = [plan.question for plan in plans]
    estimates = [price(question, plan.layout) for question, plan in zip(questions, plans, strict=True)]
    if len(plans) == 1:
        request.reporter.say("searching for rivals")
        rivals = search(questions[0], top=RIVALS, time_limit=RIVALS_SECONDS).estimates
        estimates += [rival for rival in rivals if rival.layout != estimates[0].layout][: RIVALS - 1]
    frame = frames.time_frame(estimates)
    return frame, time_breakdown(frame, subject_of(questions[0]))


def _memory(request: Request) -> tuple[pd.DataFrame, Figure]:
    from meshwright.plots.breakdowns import memory_by_rank

    plan, question = _only_plan(request, "memory")
    frame = frames.memory_frame(price(question, plan.layout))
    subject = f"{subject_of(question)}: {plan.layout.brief}"
    return frame, memory_by_rank(frame, plan.prediction.memory_limit, subject)


def _timeline(request: Request) -> tuple[pd.DataFrame, Figure]:
    from meshwright.plots.timeline import timeline

    plan, question = _only_plan(request, "timeline")
    frame = frames.timeline_frame(question, plan.layout)
    return frame, timeline(frame, plan.layout.pp, f"{subject_of(question)}: {plan.layout.brief}")


def _accuracy(request: Request) -> tuple[pd.DataFrame, Figure]:
    from meshwright.plots.accuracy import accuracy

    frame = frames.accuracy_frame(request.files)
    if not (frame["quantity"] == "step_seconds").any():
        raise InputError("nothing to draw: no row has the quantity `step_seconds`")
    return frame, accuracy(frame, sentence_list([str(path) for path in request.files]))


def _counts(text: str) -> list[int]:
    """ "64,128" → [64, 128]."""
    words = text.split(",")
    wrong = [word for word in words if not word.strip().isdecimal() or int(word) == 0]
    if wrong:
        raise InputError(
            f"--gpus {text}: `{wrong[0]}` is not a number of GPUs", hint="write it like 64,128,256"
        )
    return sorted({int(word) for word in words})


_KINDS: dict[str, Callable[[Request], tuple[Any, Figure]]] = {
    "frontier": _frontier,
    "scaling": _scaling,
    "time": _time,
    "memory": _memory,
    "timeline": _timeline,
    "accuracy": _accuracy,
}
