"""Reading of a job's logs line by line in constant memory: its steps, its memory, and the sizes that the
trainer prints.

Formats of trainers' logs are patterns of `data/logs/`. Typical steps leave out warm-up, checkpoints and disturbances.
"""

from __future__ import annotations

import gzip
import math
import re
import statistics
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from cost_models.arrays import MAD_TO_DEVIATION
from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.errors import MOST_PROBLEMS, InputError, Problem
from cost_models.files import data_document, data_files
from cost_models.files.catalog import validate
from cost_models.files.reading import open_binary
from cost_models.units import LARGEST, counted, grouped

TIMES = ("seconds", "tokens_per_second_per_gpu", "samples_per_second", "steps_per_second")
"""Quantities from which the time of a step follows; the first that a line has is used."""
_THOUSANDS = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


class Printed(Spec):
    """Pattern and unit of a number that a trainer prints in a log line."""

    pattern: str
    """Regular expression whose last group is the number."""
    unit: float | dict[str, float] = 1.0
    """Base units (seconds or bytes) in a printed 1; by the text of the group `unit` if the line has a unit."""

    def read(self, text: str) -> float | None:
        """Read the number in a log line, in base units, from forms such as `1,234`, `5.6E+00` or `7.8K`; None
        if the line has no such number."""
        match = search(self.pattern, text)
        if match is None:
            return None
        unit = self.unit[match["unit"]] if isinstance(self.unit, dict) else self.unit
        return number(match[match.lastindex or 0]) * unit


class SizeLine(Spec):
    """Pattern of a log line that prints sizes of the job, with the plan field for each size."""

    pattern: str
    fields: tuple[str, ...]
    """Fields of a plan, as `layout.tp`, in the order of the pattern's groups; `gpus` is the number of ranks."""


class LogFormat(Spec):
    """Format of one trainer's log, with patterns for steps, memory and settings."""

    called: str
    """Name of the trainer in words."""
    table: str = ""
    """The folder of `planner.formats` whose arguments it prints by their names; empty: none."""
    mark: str
    """Words that every line of a step has: others are not searched."""
    step: str
    """Regular expression whose first group is the number of the step; its group `total` the number of all."""
    values: dict[str, Printed]
    """Quantity → pattern in that line: one of `TIMES`, `loss`, `gradient_norm`, `batch` (sequences of a step),
    `allocated` and `reserved` (peaks in bytes)."""
    memory_mark: str = ""
    """Words of a line of its own about memory; empty: there is none."""
    memory: dict[str, Printed] = Field(default_factory=dict)
    """`allocated` and `reserved` in that line."""
    disturbed_by: tuple[str, ...] = ()
    """Words of lines after which a step may be slow: checkpoints, evaluation."""
    settings: tuple[str, ...] = ()
    """Regular expressions of lines that print one setting: its name, its value."""
    fields: dict[str, str] = Field(default_factory=dict)
    """Setting → field of a plan, in addition to `table`."""
    said: tuple[SizeLine, ...] = ()
    one_total: bool = False
    """Whether lines with another total than the first count something else."""
    assumes: str = ""
    """Condition under which the printed times are step times, in words."""
    profile: str
    """Settings that make the trainer write a trace."""


class _Formats(Spec):
    """Contents of a data file of log formats."""

    source: str
    """The releases of the trainers that the patterns were read from, by file."""
    formats: dict[str, LogFormat]


@cache
def formats() -> Mapping[str, LogFormat]:
    """Log formats of trainers by name; formats with seconds come before those with rates, progress bars last."""
    by_name: dict[str, LogFormat] = {}
    for file in data_files("logs"):
        by_name |= validate(data_document(file), _Formats).formats
    return dict(sorted(by_name.items(), key=lambda one: (one[1].one_total, "seconds" not in one[1].values)))


def number(text: str) -> float:
    """Parse a number as trainers print it (`1,234`, `7.8K`); NaN for any other text."""
    plain = text.replace(",", "")
    scale = _THOUSANDS.get(plain[-1:], 1.0)
    try:
        return float(plain[:-1] if scale > 1 else plain) * scale
    except ValueError:
        return math.nan


def search(pattern: str, text: str) -> re.Match[str] | None:
    """Match a format's regular expression anywhere in a log line; None if it does not match."""
    return re.search(pattern, text, re.ASCII)


LONGEST_LINE = 1 << 16
"""Maximum number of characters read from a line; no line of a step is nearly as long."""
LONGEST_SECONDS = 1e7
"""Seconds beyond which a printed duration must be a mistake."""
_CHUNK = 1 << 18
_MAGIC = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
MOST_EXPANSION = 400
"""Bytes that a byte of a packed file may become, beyond the first `_SMALL`: logs and traces expand 5 to 50 times, one
that is made to fill a memory a thousand times (deflate's limit is 1,032)."""
_SMALL = 1 << 26


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of a log, without colours; the parts of a line between carriage returns
    (progress bars) have the same number.

    A last line that no line end closes is left out: it may be cut off inside a number.

    Raises:
        InputError: missing, a folder, unreadable, packed and broken, or packed to fill a memory.
    """
    number, remainder = 1, b""
    for chunk in chunks_of(path):
        *complete, remainder = (remainder + chunk).split(b"\n")
        for line in complete:
            yield from _parts(number, line)
            number += 1
        if len(remainder) > LONGEST_LINE:
            *complete_parts, remainder = remainder.split(b"\r")
            for part in complete_parts:
                yield from _parts(number, part)
            remainder = remainder[-LONGEST_LINE:]
    if b"\r" in remainder:
        yield from _parts(number, remainder.rpartition(b"\r")[0])


def _parts(number: int, line: bytes) -> Iterator[tuple[int, str]]:
    """Yield the parts of one line between carriage returns, each with the line's number, decoded and without
    colours."""
    for part in line.split(b"\r"):
        text = part[:LONGEST_LINE].decode("utf-8", "replace")
        yield number, _COLOUR.sub("", text) if "\x1b" in text else text


def chunks_of(path: Path) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks, decompressed if the file is compressed by gzip.

    Raises:
        InputError: as `lines_of`.
    """
    name = printable(str(path))
    try:
        with open_binary(path) as file:
            is_packed, content_bytes = file.peek(2)[:2] == _MAGIC, 0
            packed_bytes = path.stat().st_size if is_packed else 0  # a pipe has no size
            with gzip.open(file) if is_packed else file as content:
                while chunk := content.read(_CHUNK):
                    content_bytes += len(chunk)
                    if packed_bytes and content_bytes > max(_SMALL, MOST_EXPANSION * packed_bytes):
                        growth = f"more than {MOST_EXPANSION} times as large when it is unpacked"
                        raise InputError(f"`{name}` becomes {growth}; it is no log or trace")
                    yield chunk
    except InputError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = Problem(name, printable(str(error)[:1].lower() + str(error)[1:]))
        hint = "copy it again, or unpack what is whole of it: gzip -dc FILE > log"
        raise InputError(f"`{name}` cannot be unpacked", problems=[problem], hint=hint) from None
    except (OSError, ValueError) as error:  # which is a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read `{name}`: {reason.lower()}") from None


MAX_LINES = 20_000
"""Maximum number of step lines in memory; of more lines every second, fourth, ... remains, with the same median."""
_LATE = 8
"""Number of past lines among which another rank's line of the same step is recognised."""
_FAR = 5.0
"""Robust deviations from the median beyond which a step is none of the usual (3.5 for one look at normal data,
Iglewicz & Hoaglin 1993; here thousands are looked at)."""
_LEAST_WIDTH = 0.02
"""Share of the median within which every step is usual, however even the others are: clocks have few digits."""
WARM_UP, DISTURBED, SLOW, QUICK = "warm-up", "checkpoint or evaluation", "slow", "quick"
"""Reasons for leaving a line out."""


@dataclass(slots=True)
class StepLine:
    """Log line of one step, or of the mean of the steps since the line before it."""

    step: int
    seconds: float
    loss: float = math.nan
    gradient_norm: float = math.nan
    attempt: int = 0
    """Number of restarts of the job before the line."""
    disturbed: bool = False
    """Whether a checkpoint or an evaluation happened since the line before."""


@dataclass(slots=True)
class Steps:
    """Step lines read from a log so far, thinned to at most `MAX_LINES`."""

    lines: list[StepLine] = field(default_factory=list)
    attempts: int = 0
    _stride: int = 1
    count: int = 0
    """Number of lines added, before thinning."""
    _late: dict[int, StepLine] = field(default_factory=dict)

    def add(self, line: StepLine) -> None:
        """Add a step line; if another rank printed the same step before, the slower line is used."""
        if (earlier := self._late.get(line.step)) is not None:
            earlier.seconds = max(earlier.seconds, line.seconds)
            return
        if self._late and line.step < max(self._late):
            if line.step > min(self._late):  # a rank that lags
                return
            self.attempts += 1
            self._late.clear()
        line.attempt = self.attempts
        self._late[line.step] = line
        if len(self._late) > _LATE:
            del self._late[min(self._late)]
        if self.count % self._stride == 0:
            self.lines.append(line)
        self.count += 1
        if len(self.lines) > MAX_LINES:
            self.lines = self.lines[::2]
            self._stride *= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalSteps:
    """Typical step lines of a log, with the number of lines left out and the share of time lost in slow
    lines."""

    lines: Sequence[StepLine]
    left_out: Mapping[str, int]
    """Number of lines left out, by reason."""
    lost: float
    """Share of the time after the warm-up by which slow lines exceed the median."""


def typical_steps(lines: Sequence[StepLine]) -> TypicalSteps:
    """Select the typical step lines: without the first line after each start, and without lines far from the
    median of the rest.

    Slow lines that follow a start at once are its warm-up, too. A log of a single line is taken as it is.
    """
    starts = [list(run) for _, run in groupby(lines, key=lambda line: line.attempt)]
    settled = [line for run in starts for line in run[1:]] or list(lines)
    seconds = [line.seconds for line in settled]
    middle = statistics.median(seconds)
    spread = MAD_TO_DEVIATION * statistics.median(abs(one - middle) for one in seconds)
    width = max(_FAR * spread, _LEAST_WIDTH * middle)
    reasons: Counter[str] = Counter()
    typical: list[StepLine] = []
    excess = 0.0
    for run in starts:
        warming = True
        for place, line in enumerate(run):
            slow, first = line.seconds > middle + width, place == 0 and len(lines) > len(starts)
            warming = first or (warming and slow)
            if warming and (first or place):
                reasons[WARM_UP] += 1
                continue
            if slow:
                reasons[DISTURBED if line.disturbed else SLOW] += 1
                excess += line.seconds - middle
            elif line.seconds < middle - width:
                reasons[QUICK] += 1
            else:
                typical.append(line)
    total_seconds = middle * (len(lines) - reasons[WARM_UP]) + excess
    lost = excess / total_seconds if total_seconds > 0 else 0.0
    return TypicalSteps(lines=typical or settled, left_out=dict(reasons), lost=lost)


_MOST_SETTINGS = 5_000
_MOST_VALUES = 4
"""Maximum number of different values recorded for a setting: a job that restarts prints them again."""
_MOST_RANKS = 100_000
_STEPS_TO_IDENTIFY = 50
"""Number of steps in one trainer's format after which the other formats are not tried any more."""
_RANK = r"\[(?:Rank |rank|default)(\d+)\]|^ *(\d+): "
"""Pattern of the rank in front of a line: `[rank3]:` of torchrun, `3: ` of srun."""


class Work(NamedTuple):
    """Tokens, sequences and GPUs of one training step, which turn the rates in a log into seconds."""

    tokens: int
    sequences: int
    gpus: int


@dataclass(slots=True, kw_only=True)
class Log:
    """Steps, memory and settings read from the lines of one trainer in a job's logs."""

    format: LogFormat
    steps: Steps = field(default_factory=Steps)
    allocated: dict[int, float] = field(default_factory=dict)
    """Peak allocated bytes by rank; lines without a rank count for rank 0."""
    reserved: dict[int, float] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    """The trainer's name for a size, or the field of a plan that a whole line prints → value as printed → file and line
    where it stands first."""
    problems: list[Problem] = field(default_factory=list)
    other_batch: dict[int, str] = field(default_factory=dict)
    """File and line where each batch size (sequences) other than the plan's is first printed, by batch size."""
    ramped: int = 0
    """Number of step lines with another batch size."""
    total: str = ""
    disturbed: bool = False


def read_logs(paths: Sequence[Path], work: Work) -> Log:
    """Read the logs of one job, given in any order; files with earlier steps are read first.

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
            if len(logs) > 1 and any(log.steps.count >= _STEPS_TO_IDENTIFY for log in logs.values()):
                logs = {name: log for name, log in logs.items() if log.steps.count}
    log_with_steps = next((log for log in logs.values() if log.steps.count or log.problems), None)
    if log_with_steps is None:
        raise _no_step_error(paths, logs, lines)
    if log_with_steps.problems:
        raise InputError("times of steps that are none", problems=log_with_steps.problems)
    return log_with_steps


def _first_step(path: Path) -> float:
    """Number of the first step in a log; infinity for a log without steps, which sorts last."""
    for _, text in lines_of(path):
        for log_format in formats().values():
            if log_format.mark in text and (step := search(log_format.step, text)):
                return int(step[1][:12])
    return math.inf


def _no_step_error(paths: Sequence[Path], logs: Mapping[str, Log], lines: int) -> InputError:
    """Error that explains why no step was found in the logs: another batch size, no step lines, or an unknown
    trainer."""
    file_names = ", ".join(f"`{printable(str(path))}`" for path in paths)
    if batches := next((log.other_batch for log in logs.values() if log.other_batch), None):
        problems = [Problem(place, f"global batch {grouped(batch)}") for batch, place in batches.items()]
        hint = "measure the plan of what ran: meshwright import COMMAND CLUSTER -o mine.yaml"
        return InputError("no step of the log has the plan's global batch", problems=problems, hint=hint)
    for log in logs.values():
        if any("." in name or name in ("gpus", *log.format.fields) for name in log.settings):
            message = f"{file_names} looks like a log of {log.format.called}, but has no line of a step"
            problem = Problem("", f"such a line has `{log.format.mark}`; {counted(lines, 'line')} read")
            hint = "give the file that has stdout and stderr of the rank that prints: 2>&1 | tee train.log"
            return InputError(message, problems=[problem], hint=hint)
    known = (log.format for log in logs.values())
    problems = [Problem("", f"{trainer.called}: lines with `{trainer.mark}`") for trainer in known]
    message = f"{file_names} is the log of no known trainer: {counted(lines, 'line')} read, none of a step"
    hint = "it must hold whole lines of steps; for another trainer, a YAML in `data/logs/` must say what it prints"
    return InputError(message, problems=problems, hint=hint)


def _read(log: Log, text: str, path: Path, line: int, work: Work) -> None:
    """Read one line of a log into `log`: a step, memory, a disturbance or a setting."""
    log_format, place = log.format, f"{path}:{line}"
    if log_format.mark in text and (match := search(log_format.step, text)):
        total = match.groupdict().get("total", "")
        if not (log_format.one_total and total != (log.total or total)):
            log.total = total
            _take_step(log, int(match[1][:12]), text, place, work)
    elif log_format.memory_mark and log_format.memory_mark in text:
        _take_memory(log, text, {name: printed.read(text) for name, printed in log_format.memory.items()})
    elif any(words in text for words in log_format.disturbed_by):
        log.disturbed = True
    else:
        for size_line in log_format.said:
            if match := search(size_line.pattern, text):
                for name, value in zip(size_line.fields, match.groups(), strict=True):
                    _take_setting(log, name, value, place)
        for pattern in log_format.settings:
            if match := search(pattern, text):
                _take_setting(log, match[1], match[2], place)


def _take_setting(log: Log, name: str, value: str, place: str) -> None:
    """Record the printed value of a setting with its place, unless there are too many."""
    values = log.settings.get(name, {})
    full = len(values) >= _MOST_VALUES or (not values and len(log.settings) >= _MOST_SETTINGS)
    if value not in values and not full:
        log.settings.setdefault(name, {})[value] = printable(place)


def _take_step(log: Log, step: int, text: str, place: str, work: Work) -> None:
    """Add a step to `log`, with the seconds, loss, gradient norm and memory of its line; a line whose batch
    size is not that of `work` adds no step."""
    values = {name: value for name, one in log.format.values.items() if (value := one.read(text)) is not None}
    batch = values.get("batch", float(work.sequences))
    if batch != work.sequences:
        log.ramped += 1
        if math.isfinite(batch) and len(log.other_batch) < MOST_PROBLEMS:
            log.other_batch.setdefault(int(batch), printable(place))
        return
    name = next((one for one in TIMES if one in values), None)
    if name is None:
        return  # nothing of it could be timed, as torchtitan's first line may be
    seconds = values[name]
    if name != "seconds":  # a rate
        work_of_step = dict(zip(TIMES[1:], (work.tokens / work.gpus, work.sequences, 1), strict=True))
        seconds = work_of_step[name] / seconds if seconds > 0 else math.nan
    if not 0 < seconds <= LONGEST_SECONDS:
        if len(log.problems) < MOST_PROBLEMS:
            message = f"step {grouped(step)} takes no such time: {name.replace('_', ' ')} {values[name]:g}"
            log.problems.append(Problem(printable(place), message))
        return
    loss, gradient_norm = (values.get(name, math.nan) for name in ("loss", "gradient_norm"))
    log.steps.add(StepLine(step, seconds, loss, gradient_norm, disturbed=log.disturbed))
    log.disturbed = False
    _take_memory(log, text, values)


def _take_memory(log: Log, text: str, values: Mapping[str, float | None]) -> None:
    """Update the peak memory of the rank that a line names, or of rank 0."""
    match = search(_RANK, text)
    rank = int(number(match[1] or match[2])) if match else 0
    for name, peaks in (("allocated", log.allocated), ("reserved", log.reserved)):
        size = values.get(name) or 0.0
        if 0 < size <= LARGEST and (rank in peaks or len(peaks) < _MOST_RANKS):
            peaks[rank] = max(peaks.get(rank, 0.0), size)
