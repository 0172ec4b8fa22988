"""Logs of a job, read line by line: its steps, its memory, and the sizes that it prints of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import MOST_PROBLEMS, InputError, Problem
from cost_models.measured.logs.formats import TIMES, LogFormat, formats, number, search
from cost_models.measured.logs.lines import LONGEST_SECONDS, lines_of
from cost_models.measured.logs.steps import StepLine, Steps
from cost_models.units import LARGEST, counted, grouped

_MOST_SETTINGS = 5_000
_MOST_VALUES = 4
"""Different values of one setting that are kept: a job that starts again prints them again."""
_MOST_RANKS = 100_000
_SURE = 50
"""Steps of one trainer after which no line is read as those of trainers that have told of none."""
_RANK = r"\[(?:Rank |rank|default)(\d+)\]|^ *(\d+): "
"""How launchers and trainers say whose line it is: `[rank3]:` of torchrun, `3: ` of srun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step of a job does: rates of a log are turned into seconds by it."""

    tokens: int
    sequences: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A size of the job that a log prints."""

    name: str
    """As the trainer calls it; where a whole line says it, the field of a plan."""
    value: str
    where: str
    """File and line."""


@dataclass(slots=True, kw_only=True)
class Log:
    """What one trainer's lines in the logs of a job say."""

    format: LogFormat
    steps: Steps = field(default_factory=Steps)
    allocated: dict[int, float] = field(default_factory=dict)
    """Rank → its peak in bytes; rank 0 where nothing says whose it is."""
    reserved: dict[int, float] = field(default_factory=dict)
    settings: dict[str, dict[str, Setting]] = field(default_factory=dict)
    """Name → value → where it stands first."""
    problems: list[Problem] = field(default_factory=list)
    other_batch: dict[int, str] = field(default_factory=dict)
    """Sequences of a step, other than the plan's → where they stand first."""
    ramped: int = 0
    """Lines of steps of another batch."""
    total: str = ""
    disturbed: bool = False


def read_logs(paths: Sequence[Path], work: Work) -> Log:
    """Read the logs of one job, in whatever order they are given: those of earlier steps come first.

    Raises:
        InputError: a file cannot be read, is of no known trainer, or tells of no step; durations that are none.
    """
    ordered = paths
    if len(paths) > 1:  # a pipe is read once
        ordered = [Path(name) for _, name in sorted((_first_step(path), str(path)) for path in paths)]
    logs = {name: Log(format=one) for name, one in formats().items()}
    lines = 0
    for path in ordered:
        for place, text in lines_of(path):
            lines += 1
            for log in logs.values():
                _read(log, text, path, place, work)
            if len(logs) > 1 and any(log.steps.told >= _SURE for log in logs.values()):
                logs = {name: log for name, log in logs.items() if log.steps.told}
    found = next((log for log in logs.values() if log.steps.told or log.problems), None)
    if found is None:
        raise _nothing_found(paths, logs, lines)
    if found.problems:
        raise InputError("times of steps that are none", problems=found.problems)
    return found


def _first_step(path: Path) -> float:
    """The first step that a log tells of; without one it comes last."""
    for _, text in lines_of(path):
        for one in formats().values():
            if one.mark in text and (step := search(one.step, text)):
                return int(step[1][:12])
    return math.inf


def _nothing_found(paths: Sequence[Path], logs: Mapping[str, Log], lines: int) -> InputError:
    named = ", ".join(f"`{printable(str(path))}`" for path in paths)
    ramped = next((log for log in logs.values() if log.other_batch), None)
    if ramped is not None:
        return InputError(
            "no step of the log has the plan's global batch",
            problems=[
                Problem(where, f"global batch {grouped(batch)}")
                for batch, where in ramped.other_batch.items()
            ],
            hint="measure the plan of what ran: meshwright import COMMAND CLUSTER -o mine.yaml",
        )
    own = {name: ("gpus", *log.format.fields) for name, log in logs.items()}
    if started := [
        log.format
        for name, log in logs.items()
        if any("." in one or one in own[name] for one in log.settings)
    ]:
        one = started[0]
        return InputError(
            f"{named} looks like a log of {one.called}, but has no line of a step",
            problems=[Problem("", f"such a line has `{one.mark}`; {counted(lines, 'line')} read")],
            hint="give the file that has stdout and stderr of the rank that prints: 2>&1 | tee train.log",
        )
    return InputError(
        f"{named} is the log of no known trainer: {counted(lines, 'line')} read, none of a step",
        problems=[
            Problem("", f"{one.format.called}: lines with `{one.format.mark}`") for one in logs.values()
        ],
        hint="lines of steps must be in it, unbroken; another trainer's: a YAML of `data/logs/` says what it prints",
    )


def _read(log: Log, text: str, path: Path, place: int, work: Work) -> None:
    one = log.format
    if one.mark in text and (found := search(one.step, text)):
        total = found.groupdict().get("total", "")
        if not (one.one_total and total != (log.total or total)):
            log.total = total
            _take_step(log, int(found[1][:12]), text, f"{path}:{place}", work)
        return
    if one.memory_mark and one.memory_mark in text:
        _take_memory(log, text, {name: printed.read(text) for name, printed in one.memory.items()})
        return
    if any(words in text for words in one.disturbed_by):
        log.disturbed = True
        return
    for said in one.said:
        if found := search(said.pattern, text):
            for name, value in zip(said.fields, found.groups(), strict=True):
                _take_setting(log, name, value, f"{path}:{place}")
    for pattern in one.settings:
        if found := search(pattern, text):
            _take_setting(log, found[1], found[2], f"{path}:{place}")


def _take_setting(log: Log, name: str, value: str, where: str) -> None:
    known = log.settings.get(name, {})
    full = len(known) >= _MOST_VALUES or (not known and len(log.settings) >= _MOST_SETTINGS)
    if value not in known and not full:
        one = Setting(name=name, value=printable(value.strip(), limit=80), where=printable(where))
        log.settings.setdefault(name, {})[value] = one


def _take_step(log: Log, step: int, text: str, where: str, work: Work) -> None:
    values = {name: value for name, one in log.format.values.items() if (value := one.read(text)) is not None}
    batch = values.get("batch", float(work.sequences))
    if batch != work.sequences:
        log.ramped += 1
        if math.isfinite(batch) and len(log.other_batch) < MOST_PROBLEMS:
            log.other_batch.setdefault(int(batch), printable(where))
        return
    name = next((one for one in TIMES if one in values), None)
    if name is None:
        return  # nothing of it could be timed, as torchtitan's first line may be
    seconds = _seconds(name, values[name], work)
    if not 0 < seconds <= LONGEST_SECONDS:
        if len(log.problems) < MOST_PROBLEMS:
            what = f"step {grouped(step)} takes no such time: {name.replace('_', ' ')} {values[name]:g}"
            log.problems.append(Problem(printable(where), what))
        return
    log.steps.add(
        StepLine(
            step=step,
            seconds=seconds,
            loss=values.get("loss", math.nan),
            gradient_norm=values.get("gradient_norm", math.nan),
            disturbed=log.disturbed,
        )
    )
    log.disturbed = False
    _take_memory(log, text, values)


def _seconds(name: str, value: float, work: Work) -> float:
    """Seconds of a step from the quantity that a line has; NaN where it is none."""
    if name == "seconds" or not value > 0:
        return value if name == "seconds" else math.nan
    done = dict(zip(TIMES[1:], (work.tokens / work.gpus, work.sequences, 1), strict=True))
    return done[name] / value


def _take_memory(log: Log, text: str, values: Mapping[str, float | None]) -> None:
    found = search(_RANK, text)
    rank = int(number(found[1] or found[2])) if found else 0
    for name, peaks in (("allocated", log.allocated), ("reserved", log.reserved)):
        size = values.get(name) or 0.0
        if 0 < size <= LARGEST and (rank in peaks or len(peaks) < _MOST_RANKS):
            peaks[rank] = max(peaks.get(rank, 0.0), size)
