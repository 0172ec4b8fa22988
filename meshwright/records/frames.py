"""Data frames that plots read, made of estimates, run reports and CSV files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.axes.offload.moves import LANE_NAMES, predicted_moves
from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.estimate import Estimate
from cost_models.measured.runs.rows import parse_table, read_table
from cost_models.pipeline.pricing import pass_spans, predicted_spans, price_ranks
from cost_models.question import Question
from cost_models.schedules.actions import KINDS
from executor.measure.slow_ranks import excess_of
from meshwright.records import frame_of
from meshwright.records.runs import comparison, read_report

if TYPE_CHECKING:
    import pandas as pd

    from executor.measure.report import RunReport

ACCURACY_COLUMNS = ("label", "quantity", "predicted", "measured")
_ACCURACY_HINT = f"a table has the columns {','.join(ACCURACY_COLUMNS)}, in s and bytes"
_ACCURACY_HINT += "; run reports end in .json"
_SHORTEST, _LONGEST, _LARGEST = 1e-9, 1e9, 1e24
"""Seconds of a step, and anything else: beyond them a cell is a mistake."""
_MOST_PROBLEMS = 10
"""Largest number of problems listed for one CSV file."""


def time_frame(estimates: Sequence[Estimate]) -> pd.DataFrame:
    """Frame with a row per layout: `layout`, seconds of each part of a step, and seconds of communication hidden
    behind compute (`tp_hidden` ...)."""
    return frame_of(
        {"layout": one.layout.brief, **one.time}
        | {f"{part.removesuffix('_comm')}_hidden": seconds for part, seconds in one.hidden_comm.items()}
        for one in estimates
    )


def memory_frame(estimate: Estimate) -> pd.DataFrame:
    """Frame with a row per pipeline rank: bytes of each part of memory."""
    return frame_of([dict(rank) for rank in estimate.rank_memory])


def timeline_frame(question: Question, layout: Layout) -> pd.DataFrame:
    """Frame with a row per action of a layout's predicted step: `rank`, `kind`, `chunk`, `microbatch`,
    `start_seconds`, `end_seconds`.

    After the passes of a rank what it does once a step, which has no chunk (-1): sync, offload, optimizer, overhead.
    A layout with blocks in host memory has their moves after that, with `lane` and `block`; in other rows that is ""
    and -1.
    """
    import pandas as pd

    passes = pass_spans(price_ranks(question, layout))
    table = passes.table
    frame = pd.DataFrame(
        {
            "rank": np.repeat(np.arange(layout.pp), table.stage.shape[1]),
            "kind": np.array([*KINDS, ""])[table.kind].ravel(),
            "chunk": table.chunk.ravel(),
            "microbatch": table.microbatch.ravel(),
            "start_seconds": passes.start.ravel(),
            "end_seconds": passes.end.ravel(),
        }
    )
    spans = [span for span in predicted_spans(question, layout) if span.stage < 0]
    once = [(span.rank, span.kind, -1, -1, span.start, span.end) for span in spans]
    frames = [frame[frame["kind"] != ""]] + [pd.DataFrame(once, columns=frame.columns)] * bool(once)
    frame = pd.concat(frames, ignore_index=True)
    moves = predicted_moves(question, layout)
    if not moves:
        return frame
    lanes = list(LANE_NAMES)
    rows = [
        (move.rank, move.what, -1, -1, move.start, move.end, LANE_NAMES[move.lane], move.block)
        for move in sorted(moves, key=lambda move: lanes.index(move.lane))
    ]
    transfers = pd.DataFrame(rows, columns=[*frame.columns, "lane", "block"])
    return pd.concat([frame.assign(lane="", block=-1), transfers], ignore_index=True)


def accuracy_frame(paths: Sequence[Path]) -> pd.DataFrame:
    """Read run reports (JSON) and CSV files with the columns `label,quantity,predicted,measured` into one frame.

    Raises:
        InputError: a file that is neither, or holds no step time.
    """
    rows, labels = list[dict[str, Any]](), set[str]()
    for path in paths:
        if path.suffix.lower() == ".csv":
            read = _csv_rows(path)
        else:
            report = read_report(path)
            label = str(report.layout.model_copy(update={"layers": ()}))
            read = [{"label": label, **asdict(line)} for line in comparison(report)]
        if not any(row["quantity"] == "step_seconds" for row in read):
            raise InputError(f"`{path}` has nothing to draw: no row has the quantity `step_seconds`")
        names = {row["label"] for row in read}
        rows += [row | {"label": f"{row['label']} in {path}"} for row in read] if names & labels else read
        labels |= names
    return frame_of(rows, columns=list(ACCURACY_COLUMNS))


def ranks_frame(report: RunReport) -> pd.DataFrame:
    """Frame with a row per rank and measured step: `rank`, `step`, `seconds` at work, and `excess` over the median of
    the rank's peers (NaN without peers)."""
    total_TR = sum(report.work_seconds.values(), start=np.zeros((1, 1)))
    rows: list[tuple[float, ...]] = []
    for at, rank in enumerate(report.ranks):
        peers = report.peers_of(at)
        excess = excess_of(total_TR, at, peers) if peers else np.full(len(total_TR), np.nan)
        rows += [
            (rank.rank, report.step_numbers[step], float(seconds), float(excess[step]))
            for step, seconds in enumerate(total_TR[:, at])
        ]
    return frame_of(rows, columns=["rank", "step", "seconds", "excess"])


def late_frame(report: RunReport) -> pd.DataFrame:
    """Frame with a row per rank and piece of a step: `rank`, `share` of the step when the piece begins,
    `late_seconds` that other ranks waited for this rank; no rows without traces."""
    rows = [
        (rank.rank, piece / len(rank.late_seconds), seconds)
        for rank in report.ranks
        for piece, seconds in enumerate(rank.late_seconds)
    ]
    return frame_of(rows, columns=["rank", "share", "late_seconds"])


def passes_frame(report: RunReport) -> pd.DataFrame:
    """Frame with a row per measured pass of one pipeline replica, in the columns of `timeline_frame`; empty if the
    report holds no passes."""
    first = {rank.pipeline_rank: rank for rank in reversed(report.ranks) if rank.passes}
    pp = report.layout.pp
    rows = [
        (place, kind, stage // pp, microbatch, start, end)
        for place, rank in sorted(first.items())
        for kind, stage, microbatch, start, end in rank.passes
    ]
    columns = ["rank", "kind", "chunk", "microbatch", "start_seconds", "end_seconds"]
    return frame_of(rows, columns=columns)


def _csv_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a CSV file of accuracy. Raises InputError listing the bad cells."""
    place = printable(str(path))
    _, table = parse_table(read_table(path), place=place, needed=ACCURACY_COLUMNS, hint=_ACCURACY_HINT)
    problems, rows = [], []
    for line, cells in table:
        row: dict[str, Any] = {name: printable(cells.get(name, "").strip()) for name in ("label", "quantity")}
        for name in ("predicted", "measured"):
            row[name] = _amount(cells.get(name, ""))
            if math.isnan(row[name]):
                text = f"`{printable(cells[name], limit=30)}`" if name in cells else "nothing"
                problems.append(Problem(f"{place}:{line}  {name}", f"{text} is no number from zero on"))
            elif row["quantity"] == "step_seconds" and not _SHORTEST <= row[name] <= _LONGEST:
                text = f"{row[name]:g} s is no time of a step"
                problems.append(Problem(f"{place}:{line}  {name}", text))
        rows.append(row)
    if problems:
        first, more = problems[:_MOST_PROBLEMS], len(problems[_MOST_PROBLEMS:])
        raise InputError(f"`{place}` cannot be compared", problems=first, more=more, hint=_ACCURACY_HINT)
    return rows


def _amount(text: str) -> float:
    """Parse a cell as a number from 0 to 1e24; NaN for anything else."""
    try:
        value = float(text.replace(",", "") if text.isascii() else "")
    except ValueError:
        return math.nan
    return value if 0 <= value <= _LARGEST else math.nan
