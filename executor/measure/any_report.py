"""Reports of runs: what those of all families hold, and the account of saves, failures and restarts.

**Operations.** What saves and failures took of a run's time is read from its running record, whose lines partition the
time from the first step to the last: a step's line ends a step, a save's line ends what training waited for, a
restart's line ends the time from the last sign of life until training goes on. What was begun after the last line and
before that sign was lost, as were steps that were trained again.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field

from cost_models.base import Spec
from cost_models.families import family_of_plan_kind, load
from cost_models.files.whole import write_whole
from executor.clock import StartReport
from executor.run_config import MOST_STEPS

PARTS = ("training", "saving", "lost_work", "restarting")
"""Parts of a run's time, named as in a forecast."""


class SaveReport(Spec):
    """One checkpoint."""

    step: int
    blocked_seconds: float
    """Training waited: for the copy to host memory, and for the checkpoint before this one to be written; for its own
    writing where it was the last."""
    flush_seconds: float | None = None
    """Seconds from the end of the pause until the checkpoint could be read; None if the ranks were lost before."""
    bytes: int | None = None
    """Bytes of the checkpoint on disk."""


class RestartReport(Spec):
    """The ranks were lost and started again."""

    start: int
    """Number of this start; the first restart is start 2."""
    detection_seconds: float
    """From the last sign of life until the ranks were started again."""
    starting_seconds: float
    """From there until the model was built: the interpreter, torch, the process group."""
    loading_seconds: float
    """Finding the newest whole checkpoint and reading it."""
    resumed_step: int
    """The step after which training goes on."""
    steps_lost: int
    """Steps that were done and are done again."""

    @property
    def seconds(self) -> float:
        """From the last sign of life until training goes on."""
        return self.detection_seconds + self.starting_seconds + self.loading_seconds


class OperationsReport(Spec):
    """Seconds of a run by part, with its saves and restarts one by one."""

    every: int
    """Steps from one checkpoint to the next."""
    steps: int
    """Steps that were kept."""
    parts: dict[str, float]
    """Seconds from the first step to the last: `training` of steps that were kept, `saving` (blocked), `lost_work` of
    steps and beginnings that were done again, `restarting`."""
    saves: tuple[SaveReport, ...] = ()
    restarts: tuple[RestartReport, ...] = ()

    @property
    def wall_seconds(self) -> float:
        """From the first step to the last."""
        return sum(self.parts.values())

    @property
    def failures(self) -> int:
        """How often the ranks were lost: a start that fails again has no restart of its own."""
        return self.restarts[-1].start - 1 if self.restarts else 0

    @property
    def goodput(self) -> float:
        """Share of the time in which steps were trained that were kept."""
        return self.parts["training"] / self.wall_seconds if self.wall_seconds else 1.0

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step that was not repeated, with everything between two steps."""
        return self.parts["training"] / self.steps

    @property
    def mean_save(self) -> MeanSave:
        """The mean checkpoint, without the last, beside which no training goes on."""
        among = self.saves[:-1] or self.saves
        flushes = [save.flush_seconds for save in among if save.flush_seconds is not None]
        sizes = [save.bytes for save in self.saves if save.bytes is not None]
        return MeanSave(
            blocked=_mean([save.blocked_seconds for save in among]), flush=_mean(flushes), size=_mean(sizes)
        )

    @property
    def mean_restart(self) -> MeanRestart:
        """The mean restart without further losses; of others only their end counts."""
        starts = [1, *(restart.start for restart in self.restarts)]
        full_restarts = [
            restart
            for restart, before in zip(self.restarts, starts, strict=False)
            if restart.start == before + 1
        ]
        return MeanRestart(
            detection=_mean([restart.detection_seconds for restart in full_restarts]),
            starting=_mean([restart.starting_seconds for restart in self.restarts]),
            loading=_mean([restart.loading_seconds for restart in self.restarts]),
        )


@dataclass(frozen=True, slots=True)
class MeanRestart:
    """A restart on average, in seconds."""

    detection: float
    starting: float
    loading: float


@dataclass(frozen=True, slots=True)
class MeanSave:
    """A checkpoint on average: seconds and bytes."""

    blocked: float
    flush: float
    size: float


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def operations_of_record(lines: Sequence[Mapping[str, Any]], every: int) -> OperationsReport | None:
    """The account of a running record (`executor.launch.rank`); None where no step was trained."""
    steps = [line for line in lines if "step" in line]
    if not steps:
        return None
    parts = dict.fromkeys(PARTS, 0.0)
    step_seconds: dict[int, float] = {}
    until = steps[0]["at"] - steps[0]["seconds"]
    for line in lines:
        if line.get("at", until) < until or "saved" in line or "note" in line:
            continue  # written beside training, or words
        took, until = line["at"] - until, line["at"]
        if "step" in line:
            parts["lost_work"] += step_seconds.pop(line["step"], 0.0)
            step_seconds[line["step"]] = took
        elif "save" in line:
            parts["saving"] += took
        else:
            gone = min(took, line["detection_seconds"] + line["starting_seconds"] + line["loading_seconds"])
            parts["restarting"] += gone
            parts["lost_work"] += took - gone
    parts["training"] = sum(step_seconds.values())
    saves, restarts = tuple(_saves(lines)), tuple(_restarts(lines))
    return OperationsReport(every=every, steps=len(step_seconds), parts=parts, saves=saves, restarts=restarts)


def _saves(lines: Sequence[Mapping[str, Any]]) -> Iterator[SaveReport]:
    """The saves of every start in turn; after a restart a step may be saved again."""
    starts = accumulate("restart" in line for line in lines)
    numbered = list(zip(starts, lines, strict=True))
    written = {(start, line["saved"]): line for start, line in numbered if "saved" in line}
    for start, line in numbered:
        if "save" in line:
            about = written.get((start, line["save"]), {})
            yield SaveReport(
                step=line["save"],
                blocked_seconds=line["blocked_seconds"],
                flush_seconds=about.get("flush_seconds"),
                bytes=about.get("bytes"),
            )


def _restarts(lines: Sequence[Mapping[str, Any]]) -> Iterator[RestartReport]:
    for line in lines:
        if "restart" in line:
            fields = {name: line[name] for name in RestartReport.model_fields if name in line}
            yield RestartReport(start=line["restart"], **fields)


Watched = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""Number that JSON may lack: `null` stands for NaN, such as the loss of a run that diverged."""


class Environment(Spec):
    """The machine and software of a run."""

    torch: str
    python: str
    device: str
    """`cpu`, or the name of the GPU."""
    backend: str
    world_size: int
    cores: int
    processor: str = ""
    """The CPU's name; empty where it is unknown."""
    allocator: str = ""
    """Settings of torch's allocator on a GPU (PYTORCH_ALLOC_CONF)."""


class AnyReport(Spec):
    """Report of a run beside its plan's predictions: one JSON document. Families add fields, such as `plan`."""

    operations: OperationsReport | None = None
    """Account of saves and failures; None if nothing was saved."""
    start: StartReport | None = None
    """Seconds of the last start by part; None in older reports."""
    schema_version: int = 1
    model: str
    environment: Environment
    seed: int
    warm_up_steps: int
    """Steps after the start, or after the last time it was started again, that were not measured."""
    first_step: int = 1
    """Step of the first loss; above 1 where the run went on from a checkpoint."""
    losses: tuple[Watched, ...]
    """Mean loss of the global batch at every step, warm-up included."""
    gradient_norms: tuple[Watched, ...]
    """Norms of the whole gradient; of a recommender, of its dense network's."""
    step_seconds: float = Field(gt=0)
    """Median over the measured steps; a step ends when its slowest rank does."""
    quickest_step_seconds: float = Field(gt=0)
    """The least disturbed step."""
    notes: tuple[str, ...] = ()
    """Events of the run: where it resumed, why ranks were started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The part of a report that does not depend on single ranks."""

    environment: Environment
    seed: int
    warm_up: int
    first_step: int = 1
    losses: Sequence[float]
    gradient_norms: Sequence[float]
    notes: Sequence[str] = ()

    def fields(self, model: str, step_seconds: Sequence[float]) -> dict[str, Any]:
        """The fields that reports of every family have; `step_seconds` of each measured step."""
        return {
            "model": model,
            "environment": self.environment,
            "seed": self.seed,
            "warm_up_steps": self.warm_up,
            "first_step": self.first_step,
            "losses": tuple(self.losses),
            "gradient_norms": tuple(self.gradient_norms),
            "step_seconds": statistics.median(step_seconds),
            "quickest_step_seconds": min(step_seconds),
            "notes": tuple(self.notes),
        }


class Clocked(Protocol):
    """Report of one rank that measured its steps."""

    @property
    def wall_seconds(self) -> tuple[float, ...]:
        """Seconds of each measured step."""


_SLOWEST_SHARE = 8
"""One in so many listed steps is one of the slowest."""


def listed_steps(seconds: Sequence[float], most: int = MOST_STEPS) -> list[int]:
    """Indices of the steps that ranks list, from the seconds of all measured ones: of more than `most` those that took
    longest, and others evenly spread, of which the first is one."""
    count, slowest = len(seconds), max(1, most // _SLOWEST_SHARE)
    if count <= most:
        return list(range(count))
    spread = (place * count // (most - slowest) for place in range(most - slowest))
    return sorted({*spread, *sorted(range(count), key=seconds.__getitem__)[-slowest:]})


def seconds_of_steps(ranks: Iterable[Clocked]) -> tuple[float, ...]:
    """Seconds of each measured step, which ends when its slowest rank does."""
    return tuple(max(seconds) for seconds in zip(*(rank.wall_seconds for rank in ranks), strict=True))


def save_report(report: Spec, path: Path) -> None:
    """Write JSON, whole or not at all."""
    write_whole(path, report.model_dump_json(indent=1) + "\n")


def parse_report(text: str) -> AnyReport:
    """Parse the JSON of a report; the kind of its plan decides the family."""
    plan = json.loads(text).get("plan") or {}
    report_type: type[AnyReport] = load(family_of_plan_kind(plan.get("kind")).report)
    return report_type.model_validate_json(text)


def load_any_report(path: Path) -> AnyReport:
    """Read what `save_report` wrote."""
    return parse_report(path.read_text("utf-8"))
