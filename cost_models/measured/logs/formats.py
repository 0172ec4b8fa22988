"""What each trainer prints, as patterns of `data/logs/`: the tables that readers of logs follow."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache

from pydantic import Field

from cost_models.base import Spec
from cost_models.files import data_files
from cost_models.files.parsing import validate
from cost_models.files.yaml_text import parse_yaml

TIMES = ("seconds", "tokens_per_second_per_gpu", "samples_per_second", "steps_per_second")
"""Quantities of a line that tell the time of a step, the first that is there counts."""
_THOUSANDS = {"K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


class Printed(Spec):
    """A number in a line."""

    pattern: str
    """Regular expression whose last group is the number."""
    unit: float | dict[str, float] = 1.0
    """What 1 stands for in base units, seconds or bytes; where the line says the unit, by the group `unit`."""

    def read(self, text: str) -> float | None:
        """The number in base units, as `1,234`, `5.6E+00` or `7.8K`; None where the line has none."""
        found = search(self.pattern, text)
        if found is None:
            return None
        unit = self.unit[found["unit"]] if isinstance(self.unit, dict) else self.unit
        return number(found[found.lastindex or 0]) * unit


class Said(Spec):
    """A line that says sizes of the job."""

    pattern: str
    fields: tuple[str, ...]
    """Fields of a plan, as `layout.tp`, in the order of the pattern's groups; `gpus` is the number of ranks."""


class LogFormat(Spec):
    """What one trainer prints."""

    called: str
    """Its name in words."""
    table: str = ""
    """The folder of `planner.formats` whose arguments it prints by their names; empty: none."""
    mark: str
    """Words that every line of a step has: others are not searched."""
    step: str
    """Regular expression whose first group is the number of the step; its group `total` the number of all."""
    values: dict[str, Printed]
    """Quantity → where it stands in that line: one of `TIMES`, `loss`, `gradient_norm`, `batch` (sequences of a step),
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
    """Setting → field of a plan, beside those of `table`."""
    said: tuple[Said, ...] = ()
    one_total: bool = False
    """Whether lines with another total than the first count something else."""
    assumes: str = ""
    """What has to hold for its times to be those of steps."""
    profile: str
    """How it is told to write a trace."""


class _Formats(Spec):
    source: str
    """The releases of the trainers that the patterns were read from, by file."""
    formats: dict[str, LogFormat]


@cache
def formats() -> Mapping[str, LogFormat]:
    """Every format by its name; where several tell, seconds are read before rates, and these before progress bars."""
    found: dict[str, LogFormat] = {}
    for file in data_files("logs"):
        document = parse_yaml(file.read_text(encoding="utf-8"), source=f"logs/{file.name}")
        found |= validate(document, _Formats).formats
    order = sorted(found, key=lambda name: (found[name].one_total, "seconds" not in found[name].values))
    return {name: found[name] for name in order}


def number(text: str) -> float:
    """A number as trainers print it; NaN where it is none."""
    plain = text.replace(",", "")
    scale = _THOUSANDS.get(plain[-1:], 1.0)
    try:
        return float(plain[:-1] if scale > 1 else plain) * scale
    except ValueError:
        return math.nan


def search(pattern: str, text: str) -> re.Match[str] | None:
    """Where a pattern of a format is in a line."""
    return re.search(pattern, text, re.ASCII)
