"""Reports of runs: the fields and files that all families of models have."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field

from cost_models.base import Spec
from cost_models.families import family_of_plan_kind, load
from cost_models.files.whole import write_whole
from executor.measure.operations import OperationsReport
from executor.starting import StartReport

Watched = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""What JSON has no number for, such as the loss of a run that diverged, is `null` there."""


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
    """A run's measurements beside its plan's predictions: one JSON document. Families add fields, such as `plan`."""

    operations: OperationsReport | None = None
    """What saves and failures took; None where nothing was saved."""
    start: StartReport | None = None
    """What the last start took, by part; None in reports of before it was kept."""
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
    """A rank that measured its steps."""

    @property
    def wall_seconds(self) -> tuple[float, ...]:
        """Of each measured step."""


def seconds_of_steps(ranks: Iterable[Clocked]) -> tuple[float, ...]:
    """Seconds of each measured step, which ends when its slowest rank does."""
    return tuple(max(seconds) for seconds in zip(*(rank.wall_seconds for rank in ranks), strict=True))


def save_report(report: Spec, path: Path) -> None:
    """Write JSON, whole or not at all."""
    write_whole(path, report.model_dump_json(indent=1) + "\n")


def parse_report(text: str) -> AnyReport:
    """Read the JSON of a report; its plan says of which family it is."""
    plan = json.loads(text).get("plan") or {}
    report_type: type[AnyReport] = load(family_of_plan_kind(plan.get("kind")).report)
    return report_type.model_validate_json(text)


def load_any_report(path: Path) -> AnyReport:
    """Read what `save_report` wrote."""
    return parse_report(path.read_text("utf-8"))
