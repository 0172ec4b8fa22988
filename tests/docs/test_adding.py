"""The guides for those who add something: their examples are what the program takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import yaml
from console_blocks import ROOT

from cost_models.schedules.registry import REGISTRY
from cost_models.specs.cluster import GpuSpec

GUIDES = ROOT / "docs" / "guides"


def _block(page: str, language: str) -> str:
    return (GUIDES / page).read_text("utf-8").partition(f"```{language}\n")[2].partition("```")[0]


def test_the_schedule_of_the_guide_is_gpipe_by_another_name() -> None:
    held: dict[str, Any] = {}
    exec(_block("adding-a-schedule.md", "python"), held)
    own, gpipe = held["ALL_FIRST"], REGISTRY["gpipe"]
    assert own.refused(2, 2, 4) == "all-first runs one chunk per pipeline rank, not vpp2"
    assert own.refused(2, 1, 4) is None
    ours, its = own.table(3, 1, 5), gpipe.table(3, 1, 5)
    for part in ("kind", "stage", "microbatch"):
        assert np.array_equal(getattr(ours, part), getattr(its, part))
    assert own.live_of_chunk(3, 1, 5, 0, 0) == gpipe.live_of_chunk(3, 1, 5, 0, 0)


def test_the_gpu_of_the_guide_is_a_gpu() -> None:
    entries = yaml.safe_load(_block("adding-a-gpu.md", "yaml"))["entries"]
    for name, entry in entries.items():
        assert GpuSpec.model_validate({"name": name, **entry}).memory > 1e11


def test_the_files_that_the_guides_name_are_there() -> None:
    for file in ("schedules/registry.py", "data/gpus"):
        assert (ROOT / "cost_models" / file).exists()
    for file in ("registry.py", "target.py", "deepspeed.py"):
        assert (ROOT / "planner" / "formats" / file).is_file()
    for folder in ("benchmarks/exporters", "tests/planner/formats", "cost_models/data/gpus"):
        assert (ROOT / folder).is_dir()
