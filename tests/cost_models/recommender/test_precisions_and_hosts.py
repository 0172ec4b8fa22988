"""Precisions that a GPU lacks are refused for both families; tables lie on hosts only where a stack puts them."""

from __future__ import annotations

from typing import get_args

import pytest

import meshwright as mw
from cost_models.compute.gemm import device_of
from cost_models.defaults import complete_question
from cost_models.errors import DoesNotFitError, InputError
from cost_models.files import catalog
from cost_models.recommender.dense import dense_device
from cost_models.recommender.options import default_options
from cost_models.recommender.prices import estimate
from cost_models.recommender.question import complete_recommender
from cost_models.specs.cluster import FULL, ClusterSpec, Precision
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from cost_models.specs.training import TrainingSpec

PRECISIONS: tuple[Precision, ...] = get_args(Precision)
STACKS = [name for name in catalog.names("stacks") if catalog.load_stack(name).recommender]


def cluster_with(gpu: str) -> ClusterSpec:
    return catalog.load_cluster("dgx-h100").model_copy(update={"gpu": catalog.load_gpu(gpu)})


@pytest.mark.parametrize("gpu", catalog.names("gpus"))
def test_both_families_refuse_what_a_gpu_has_no_units_for(gpu: str) -> None:
    cluster = cluster_with(gpu)
    dlrm, gpt = catalog.load_recommender("dlrm-tiny"), catalog.load_model("gpt2-small")
    for precision in PRECISIONS:
        job = TrainingSpec(global_batch=8, sequence_length=128, precision=precision)
        transformer = complete_question(gpt, cluster, job)
        recommender = complete_recommender(
            dlrm, cluster, RecommenderTraining(global_batch=64, precision=precision)
        )
        if precision in cluster.gpu.peak:
            assert (
                device_of(transformer).peak == dense_device(recommender).peak == cluster.gpu.peak[precision]
            )
            assert (dense_device(recommender).element_bytes == 4) == (precision in FULL)
        else:
            for refused in (lambda: device_of(transformer), lambda: dense_device(recommender)):  # noqa: B023
                with pytest.raises(InputError, match=f"`{gpu}` has no {precision} matrix rate"):
                    refused()


def test_tf32_multiplies_faster_than_fp32_and_keeps_as_much() -> None:
    """Half the bf16 rate; activations and exchanges as in fp32."""
    job = {"gpus": 8, "global_batch": 64, "sequence": 1024}
    found = {
        precision: mw.estimate(
            "gpt2-xl", "dgx-a100-80gb", None, "dp8 mbs4 zero1", precision=precision, **job
        ).estimate
        for precision in ("fp32", "tf32", "bf16")
    }
    assert found["fp32"].step_seconds > found["tf32"].step_seconds > found["bf16"].step_seconds
    assert found["fp32"].peak_bytes == found["tf32"].peak_bytes
    shares = [
        mw.estimate(
            "dlrm", "dgx-a100-80gb", None, "table:0-25=row", gpus=8, global_batch=65536, precision=precision
        ).estimate.step_seconds
        for precision in ("fp32", "tf32", "bf16")
    ]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("stack", STACKS)
def test_tables_lie_on_hosts_where_the_stack_puts_them(stack: str) -> None:
    dlrm, cluster = catalog.load_recommender("dlrm"), cluster_with("a100-sxm-40gb")
    one = cluster.model_copy(update={"gpus_per_node": 1, "host_memory": 2**40})
    question = complete_recommender(dlrm, one, RecommenderTraining(global_batch=1024), stack=stack)
    hosted = any(option.tier == "host" for _, option in default_options(question))
    assert hosted == question.facts.host_tables
    sharding = parse_sharding("table:0-25=row/host", dlrm.num_tables)
    if hosted:
        estimate(question, sharding)
        return
    with pytest.raises(InputError, match="tables cannot be held so"):
        estimate(question, sharding)
    with pytest.raises(DoesNotFitError, match="do not fit 1 GPU together") as refused:
        mw.plan("dlrm", "dgx-a100-40gb", gpus=1, global_batch=1024, stack=stack)
    assert refused.value.hint == "they need 3 GPUs of this size or more"
