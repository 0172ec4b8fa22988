"""Every quantity has a range: beyond it a file is refused in words, and no number that is none comes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cost_models.axes.layout import parse_layout
from cost_models.axes.words import MAX_STAGES
from cost_models.base import Spec
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.catalog import validate
from cost_models.files.loading import resolve_cluster
from cost_models.files.reading import parse_yaml
from cost_models.specs.cluster import ClusterSpec, GpuSpec, LinkSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec

GPU = catalog.load_gpu("a100-sxm-80gb").model_dump(mode="json")
LINK = {"kind": "nvlink", "bandwidth": "300 GB/s", "latency": "3 us"}
TRAINING = {"global_batch": 8, "sequence_length": 64}
STACK = {"name": "mine"}
PROFILE = catalog.load_profile("datasheet-gpu").model_dump(mode="json")


@pytest.mark.parametrize(
    ("spec", "right", "wrong", "said"),
    [
        (GpuSpec, GPU, {"memory": "1 KiB"}, "memory: must be between 1 MiB and 1000 TB"),
        (GpuSpec, GPU, {"memory_bandwidth": "1e-300 B/s"}, "`1e-300 B/s` is too small a number"),
        (GpuSpec, GPU, {"memory_bandwidth": "1 B/s"}, "must be between 1 KB/s and 100000 TB/s"),
        (GpuSpec, GPU, {"peak": {"bf16": "1 FLOP/s"}}, "peak.bf16: must be between 1 MFLOP/s and"),
        (GpuSpec, GPU, {"sustained": {"bf16": 1e-308}}, "sustained.bf16: must be at least 0.001"),
        (GpuSpec, GPU, {"sm_count": 10**12}, "sm_count: must be at most 1e+06"),
        (LinkSpec, LINK, {"latency": "1e300 s"}, "`1e300 s` is too large a number"),
        (LinkSpec, LINK, {"latency": "1 h"}, "latency: must be between 0.001 ns and 10 s"),
        (HardwareProfile, PROFILE, {"jitter_per_doubling": 1e308}, "jitter_per_doubling: must be at most 1"),
        (HardwareProfile, PROFILE, {"kernel_seconds": 1e300}, "kernel_seconds: must be at most 60"),
        (HardwareProfile, PROFILE, {"gemm_efficiency": 1e-300}, "gemm_efficiency: must be at least 1e-06"),
        (TrainingSpec, TRAINING, {"tokens": 1e300}, "tokens: must be at most 1e+21"),
        (TrainingSpec, TRAINING, {"sequence_length": 10**12}, "sequence_length: must be at most 1e+09"),
        (TrainingSpec, TRAINING, {"recompute": []}, "recompute: lists 0; at least 1 is needed"),
        (StackSpec, STACK, {"zero_stages": []}, "zero_stages: lists 0; at least 1 is needed"),
        (StackSpec, STACK, {"extra_loss_copies": 1e300}, "extra_loss_copies: must be at most 100"),
    ],
)
def test_what_no_such_thing_can_have_is_refused(
    spec: type[Spec], right: dict[str, Any], wrong: dict[str, Any], said: str
) -> None:
    assert validate(parse_yaml(json.dumps(right), source="mine.yaml"), spec)
    with pytest.raises(InputError) as caught:
        validate(parse_yaml(json.dumps(right | wrong), source="mine.yaml"), spec)
    assert said in str(caught.value)


def test_a_device_holds_more_than_is_kept_free() -> None:
    cluster = catalog.load_cluster("dgx-a100-80gb").model_dump(mode="json") | {"memory_reserve": 1.0}
    with pytest.raises(InputError, match="memory_reserve: must be below 1"):
        validate(parse_yaml(json.dumps(cluster), source="mine.yaml"), ClusterSpec)


@pytest.mark.parametrize("name", ["recompute", "layers", "pools"])
def test_repeats_add_up_to_no_more_than_there_are_stages(name: str) -> None:
    """A short text must not stand for all memory there is: what counts is the sum of its repeats, not each."""
    run = f"{'none' if name == 'recompute' else 1}*{MAX_STAGES}"
    with pytest.raises(InputError, match="is not a list like"):
        parse_layout(f"tp1 {name}={','.join([run] * 100_000)}")


def test_layouts_of_more_than_there_is_are_refused() -> None:
    with pytest.raises(InputError, match="10,000,000 are the most"):
        parse_layout("tp1000000 pp1000 dp1000000")
    with pytest.raises(InputError, match="has 100,000 words"):
        parse_layout("tpp1 " * 100_000)


def test_many_problems_end_after_twenty() -> None:
    fields = TRAINING | {f"unknown_{number}": 1 for number in range(100_000)}
    with pytest.raises(InputError) as caught:
        validate(parse_yaml(json.dumps(fields), source="mine.yaml"), TrainingSpec)
    lines = str(caught.value).splitlines()
    assert lines[0] == "100,000 problems in mine.yaml"
    assert lines[-1] == "  and 99,980 more"
    assert len(lines) == 22


def test_a_machine_is_not_shared_by_more_processes_than_have_memory() -> None:
    with pytest.raises(InputError, match="leave each less than"):
        resolve_cluster("local", 10**7)
