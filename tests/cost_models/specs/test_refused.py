"""Specs made in Python say what is wrong as files do: our error, all fields at once, never pydantic's text."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module

import pytest

import cost_models
from cost_models.base import Spec
from cost_models.errors import InputError
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.training import TrainingSpec


def _every_spec() -> list[type[Spec]]:
    modules = [import_module(one.name) for one in pkgutil.walk_packages(cost_models.__path__, "cost_models.")]
    found = {
        member
        for module in modules
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, Spec) and member is not Spec
    }
    return sorted(found, key=lambda one: one.__name__)


@pytest.mark.parametrize("spec", _every_spec(), ids=lambda one: one.__name__)
def test_every_spec_refuses_in_our_words(spec: type[Spec]) -> None:
    with pytest.raises(InputError) as caught:
        spec(**dict.fromkeys(spec.model_fields, object()), nonsense=1)
    said = str(caught.value)
    assert "unknown field `nonsense`" in said
    assert not [
        word for word in ("pydantic", "Input should", "type=", "For further information") if word in said
    ]


def test_all_fields_at_once_with_what_may_have_been_meant() -> None:
    with pytest.raises(InputError) as caught:
        TrainingSpec(global_batch=-1, sequence_length="8K", precison="bf16")  # type: ignore[call-arg, arg-type]
    assert str(caught.value).splitlines() == [
        "3 problems in TrainingSpec",
        "  global_batch: must be above zero, not `-1`",
        "  sequence_length: `8K` is not a whole number",
        "  precison: unknown field `precison`; did you mean `precision`?",
    ]


def test_fields_inside_a_field_are_named() -> None:
    with pytest.raises(InputError, match=r"links\.intra_node\.bandwidth: `3` is not a bandwidth"):
        ClusterSpec(
            gpu={"name": "x", "memory": "1 GiB", "memory_bandwidth": "1 GB/s", "peak": {}},  # type: ignore[arg-type]
            gpus_per_node=1,
            links={"intra_node": {"kind": "nvlink", "bandwidth": 3, "latency": "3 us"}},  # type: ignore[arg-type]
        )
