"""The stack of a row, by its framework, its date and the switches that it names."""

from __future__ import annotations

import pytest

from cost_models.measured.runs.printed import Notes, PrintedRow, stack_of
from cost_models.specs.stack import StackSpec


def stack(**cells: str) -> StackSpec:
    return stack_of(
        PrintedRow({"row_id": "lab-1", "framework": "nanotron", "gpu": "H100"} | cells), None, Notes()
    )


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"run_date": "2024-07-03"}, "nanotron-v0.5"),
        ({"framework": "nanotron (2024-03)"}, "nanotron-v0.5"),
        ({"run_date": "2024-08-01"}, "nanotron"),
        ({"run_date": "2025"}, "nanotron"),
        ({}, "nanotron"),
        ({"framework": "DeepSpeed ZeRO-3 (2021)"}, "deepspeed-v0.5"),
        ({"framework": "DeepSpeed", "run_date": "2022-03-10"}, "deepspeed"),
    ],
)
def test_a_dated_row_ran_the_release_of_its_time(cells: dict[str, str], name: str) -> None:
    assert stack(**cells).name == name


def test_a_named_switch_counts_before_the_release() -> None:
    assert stack().reduces_behind_weight_products
    assert not stack(notes="tp_linear_async_communication=false; seq 4096").reduces_behind_weight_products
    assert not stack(assumed_fields="1f1b, no async TP").reduces_behind_weight_products
