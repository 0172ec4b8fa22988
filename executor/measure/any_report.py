"""What reports of runs share, whatever family of models was trained."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from cost_models.base import Spec
from cost_models.families import family_of_plan_kind, part
from cost_models.files.whole import write_whole
from executor.measure.operations import OperationsReport


class AnyReport(Spec):
    """What a run measured, beside what its plan, which it holds as `plan`, predicted; one JSON document.

    Each family has fields of its own beside these: `notes`, sentences on what happened on the way, and `plan`.
    """

    operations: OperationsReport | None = None
    """What saves and failures took; None where nothing was saved."""

    def noted(self) -> tuple[str, ...]:
        """What happened on the way: where it resumed, why ranks were started again."""
        raise NotImplementedError


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
    report_type: type[AnyReport] = part(family_of_plan_kind(plan.get("kind")).report)
    return report_type.model_validate_json(text)


def load_any_report(path: Path) -> AnyReport:
    """Read what `save_report` wrote."""
    return parse_report(path.read_text("utf-8"))
