"""A measured profile brings its own peak and bandwidth: its efficiencies are shares of them."""

from __future__ import annotations

import pytest

from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.specs.training import TrainingSpec

MODEL = catalog.load_model("gpt2-tiny")
TRAINING = TrainingSpec(global_batch=8, sequence_length=64, precision="fp32")


def test_measured_rates_replace_the_placeholders_of_a_cpu() -> None:
    rates = {"tier": "measured", "measured_peak": 1.2e11, "measured_bandwidth": 3e10}
    profile = catalog.load_profile("datasheet-cpu").model_copy(update={**rates, "gpu": "cpu"})
    asked = complete_question(MODEL, catalog.local_cluster(2), TRAINING, profile=profile)
    assert asked.cluster.gpu.peak["fp32"] == pytest.approx(1.2e11)
    assert asked.cluster.gpu.memory_bandwidth == pytest.approx(3e10)
    again = complete_question(MODEL, asked.cluster, TRAINING, profile=profile)
    assert again == asked


def test_datasheets_stay() -> None:
    cluster = catalog.load_cluster("dgx-a100-80gb")
    training = TRAINING.model_copy(update={"precision": "bf16"})
    assert complete_question(MODEL, cluster, training).cluster == cluster


def test_a_profile_of_a_cpu_prices_no_products_on_a_gpu() -> None:
    with pytest.raises(InputError, match=r"`gemm_tiles`.* 108 multiprocessors of `a100-sxm-80gb`"):
        complete_question(MODEL, catalog.load_cluster("dgx-a100-80gb"), TRAINING, profile="datasheet-cpu")


def test_stacks_of_one_family_share_a_profile() -> None:
    node = catalog.load_cluster("dgx-a100-80gb")
    training = TRAINING.model_copy(update={"precision": "bf16"})
    for stack in ("fsdp", "torchtitan", "llm-foundry"):
        assert complete_question(MODEL, node, training, stack=stack).hardware.stack == "fsdp"
