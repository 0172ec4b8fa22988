"""What can be drawn of a question and its answers: each kind as a figure with the data it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.errors import InputError, UnknownNameError
from cost_models.estimate import Estimate
from cost_models.question import MixedQuestion, Question
from meshwright import frames
from meshwright.render.pools import gpus_in_words
from meshwright.render.words import sentence_list
from planner.frontier import doublings, frontier_frame, scaling_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Say = Callable[[str], None]

_SCREEN_DOTS_PER_INCH = 90
"""Pictures in notebooks: sharp at the width of a page, and small in the file."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Drawing:
    """A figure and its data; notebooks show it."""

    frame: pd.DataFrame
    """What is drawn, in base units."""
    figure: Figure

    @property
    def title(self) -> str:
        """The finding, on one line."""
        return " ".join(self.figure.get_suptitle().split())

    @property
    def points(self) -> list[dict[str, Any]]:
        """The data as rows."""
        return [
            {str(name): value for name, value in row.items()} for row in self.frame.to_dict(orient="records")
        ]

    def save(self, path: str | Path) -> None:
        """Write PNG, SVG or PDF, by suffix.

        Raises:
            InputError: another suffix.
        """
        from meshwright.plots.style import save

        save(self.figure, Path(path))

    def __repr__(self) -> str:
        return self.title

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        self.figure.savefig(picture, format="png", dpi=_SCREEN_DOTS_PER_INCH, facecolor="white")
        return picture.getvalue()


def draw_frontier(question: Question, chosen: Estimate, say: Say) -> Drawing:
    """Memory against throughput over every legal layout."""
    from meshwright.plots.tradeoff import frontier

    _require_one_kind(question, "frontier")
    say("pricing every layout")
    frame = frontier_frame(question, chosen)
    return Drawing(frame=frame, figure=frontier(frame, chosen.memory_limit, _subject(question)))


def draw_scaling(question: Question, gpu_counts: Sequence[int] | None, say: Say) -> Drawing:
    """The best layout at each number of GPUs, with the same batch and with one that grows.

    Raises:
        InputError: nothing fits on any of them.
    """
    from meshwright.plots.scaling import scaling

    _require_one_kind(question, "scaling")
    counts = doublings(question) if gpu_counts is None else gpu_counts
    frame = scaling_frame(question, counts, say)
    if frame.empty:
        raise InputError(f"nothing fits on {sentence_list([str(count) for count in counts])} GPUs")
    gpu, sequence = question.cluster.gpu.name, question.training.sequence_length
    subject = f"{question.model.name} on {gpu}, sequence {sequence}; the best layout at each point"
    return Drawing(frame=frame, figure=scaling(frame, subject))


def draw_time(question: Question, estimates: Sequence[Estimate]) -> Drawing:
    """Where the time of each layout goes."""
    from meshwright.plots.breakdowns import time_breakdown

    frame = frames.time_frame(estimates)
    return Drawing(frame=frame, figure=time_breakdown(frame, _subject(question)))


def draw_memory(question: Question, estimate: Estimate) -> Drawing:
    """What fills each pipeline rank."""
    from meshwright.plots.breakdowns import memory_by_rank

    frame = frames.memory_frame(estimate)
    figure = memory_by_rank(frame, estimate.memory_limit, _subject(question, estimate))
    return Drawing(frame=frame, figure=figure)


def draw_timeline(question: Question, estimate: Estimate) -> Drawing:
    """Every action of the schedule on every pipeline rank."""
    from meshwright.plots.timeline import timeline

    frame = frames.timeline_frame(question, estimate.layout)
    return Drawing(frame=frame, figure=timeline(frame, estimate.layout.pp, _subject(question, estimate)))


def draw(
    kind: str, question: Question, estimates: Sequence[Estimate], gpu_counts: Sequence[int] | None = None
) -> Drawing:
    """One kind of picture of a question and its ranked layouts, best first.

    Raises:
        UnknownNameError: there is no such kind.
    """
    best = estimates[0]
    kinds: dict[str, Callable[[], Drawing]] = {
        "frontier": lambda: draw_frontier(question, best, _silent),
        "scaling": lambda: draw_scaling(question, gpu_counts, _silent),
        "time": lambda: draw_time(question, estimates),
        "memory": lambda: draw_memory(question, best),
        "timeline": lambda: draw_timeline(question, best),
    }
    if kind not in kinds:
        raise UnknownNameError("plot", kind, tuple(kinds))
    return kinds[kind]()


def _require_one_kind(question: Question, kind: str) -> None:
    """Raises InputError for a question on several pools."""
    if isinstance(question, MixedQuestion):
        raise InputError(
            f"`{kind}` is drawn for one kind of GPU, and `{question.cluster.name}` has several pools",
            hint="time, memory and timeline are drawn for any plan",
        )


def _subject(question: Question, estimate: Estimate | None = None) -> str:
    """What a picture is about."""
    training = question.training
    words = (
        f"{question.model.name} on {gpus_in_words(question)}, "
        f"global batch {training.global_batch}, sequence {training.sequence_length}"
    )
    return words if estimate is None else f"{words}: {estimate.layout.brief}"


def _silent(_: str) -> None:
    """Progress nobody reads."""
