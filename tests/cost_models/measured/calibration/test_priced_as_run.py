"""Calibration prices what runs: long products, the attention kernel that was seen, host time of undisturbed models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_fit import EFFICIENCY, OPERANDS, PEAK, START_UP, fitted, machine, quiet, timed

from cost_models.compute.gemm import device_of, gemm_seconds
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.measured.calibration.microbenchmarks import Measurement
from cost_models.specs.cluster import AttentionKernel
from cost_models.specs.training import TrainingSpec


@pytest.mark.parametrize("disturbed", [2.0, 3.0, 4.0, 6.0])
def test_one_disturbed_model_does_not_move_the_host_time_of_a_block(disturbed: float) -> None:
    rows = [
        replace(row, seconds=3 * row.seconds) if row.kind == "host" and row.size == disturbed else row
        for row in machine(quiet)
    ]
    expected = fitted(machine(quiet)).host_layer_seconds
    assert fitted(rows).host_layer_seconds == pytest.approx(expected, rel=1e-3)


def product(name: str, slower: float) -> Measurement:
    """A product of 2048 each way, so much slower than the machine's burst."""
    side = 2048
    seconds = START_UP + 2.0 * side**3 / PEAK / EFFICIENCY + 4.0 * 3 * side**2 / OPERANDS
    return timed(
        "matrix", f"{name}.fp32", 2.0 * side**3, 1.02 * slower * seconds, (side,) * 3, fastest=1 / 1.02
    )


def test_products_are_priced_at_the_rate_of_a_long_run() -> None:
    """A GPU at its power limit is slower than in the bursts of which its efficiency is; none is faster."""
    rows = [*machine(quiet), product("forward", 1.0)]
    burst, hot, cool = (
        fitted([*rows, *more]) for more in ([], [product("sustained", 1.25)], [product("sustained", 0.98)])
    )
    assert (burst.gemm_settled, cool.gemm_settled) == (None, 1.0)
    assert hot.gemm_settled == pytest.approx(0.8, rel=0.03)
    assert (hot.gemm_efficiency, hot.measured_peak) == (burst.gemm_efficiency, burst.measured_peak)
    training = TrainingSpec(global_batch=1, sequence_length=8, precision="fp32")
    asked = catalog.load_model("gpt2-tiny"), catalog.local_cluster(1), training
    sides = np.full((3, 1), 1e6)  # so large that operands do not count
    seconds = [
        float(gemm_seconds(*sides, device_of(complete_question(*asked, profile=one)))[0])
        for one in (burst, hot)
    ]
    assert seconds[0] / seconds[1] == pytest.approx(hot.gemm_settled, rel=1e-3)


@pytest.mark.parametrize("kernel", ["cudnn", "unfused"])
def test_the_attention_kernel_that_ran_is_priced(kernel: AttentionKernel) -> None:
    """In the profile, and so in our own stack; other stacks bring their own."""
    rows = [replace(row, kernel=kernel) if row.kind == "attention" else row for row in machine(quiet)]
    profile = fitted(rows)
    training = TrainingSpec(global_batch=1, sequence_length=8, precision="fp32")
    asked = catalog.load_model("gpt2-tiny"), catalog.local_cluster(1), training
    assert complete_question(*asked, profile=profile).stack.attention == kernel
    assert complete_question(*asked, profile=profile, stack="torchtitan").stack.attention == "flash2"
    assert complete_question(*asked, profile=fitted(machine(quiet))).stack.attention == "flash2"
