"""Questions and estimates made by hand, so that the front door is tested apart from the cost model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ASKED, QUICK

from cost_models.axes.layout import parse_layout
from cost_models.estimate import Breakdown, Estimate, Trust
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec, GpuSpec, Links, LinkSpec
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.stack import StackSpec
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from meshwright.cli.frame import main
from planner.objectives import Certificate

GIB = 2.0**30


@pytest.fixture(scope="session")
def question() -> Question:
    gpu = GpuSpec(
        name="a100-80gb-sxm",
        memory="80 GiB",
        memory_bandwidth="2039 GB/s",
        peak={"bf16": "312 TFLOP/s", "fp32": "19.5 TFLOP/s"},
    )
    links = Links(
        intra_node=LinkSpec(kind="nvlink", bandwidth="300 GB/s", latency="3 us"),
        inter_node=LinkSpec(kind="infiniband", bandwidth="200 Gb/s", latency="5 us"),
    )
    return Question(
        model=TransformerSpec(
            name="gpt3-175b", num_layers=96, hidden_size=12288, num_heads=96, vocab_size=51200
        ),
        cluster=ClusterSpec(name="dgx-a100-80gb", gpu=gpu, gpus_per_node=8, nodes=128, links=links),
        training=TrainingSpec(global_batch=1536, sequence_length=2048),
        stack=StackSpec(name="megatron-core"),
        hardware=HardwareProfile(
            name="a100-megatron",
            tier="profile",
            gpu="a100-80gb-sxm",
            stack="megatron-core",
            gemm_efficiency=0.8,
            attention_forward_efficiency=0.6,
            attention_backward_efficiency=0.5,
            memory_efficiency=0.8,
            kernel_seconds=4e-6,
            link_efficiency=0.8,
            network_efficiency=0.8,
            optimizer_efficiency=0.8,
        ),
    )


@pytest.fixture(scope="session")
def make_estimate() -> Callable[..., Estimate]:
    def make(
        layout: str = "tp8 pp8 vpp2 dp16 mbs1 zero1 sp recompute=selective",
        *,
        scale: float = 1.0,
        limit: float = 74 * GIB,
        activations: float = 21.2 * GIB,
    ) -> Estimate:
        parsed = parse_layout(layout)
        time = Breakdown(
            compute=20.2 * scale,
            recompute=0.4,
            tp_comm=3.1 * scale,
            pp_comm=0.2,
            dp_comm=0.3,
            optimizer=0.1,
            host=0.0,
            bubble=0.9,
        )
        memory = tuple(
            Breakdown(
                weights=5.4 * GIB,
                gradients=10.8 * GIB,
                optimizer=2.0 * GIB,
                activations=activations / (1 + rank),
                working=1.5 * GIB,
                buffers=1.2 * GIB,
                reserved=3.0 * GIB,
            )
            for rank in range(parsed.pp)
        )
        tokens = 1536 * 2048 / time.total
        return Estimate(
            layout=parsed,
            microbatches=parsed.microbatches(1536),
            step_seconds=time.total,
            time=time,
            hidden_comm=Breakdown(tp_comm=2.0, dp_comm=1.1),
            rank_memory=memory,
            rank_limits=(limit,) * parsed.pp,
            mfu=0.55 / scale,
            hfu=0.57 / scale,
            tokens_per_second=tokens,
            bound_by="tp_comm",
            trust=Trust(tier="profile", profile="a100-megatron", error=0.04, runs=12),
        )

    return make


@pytest.fixture(scope="session")
def certificate() -> Certificate:
    return Certificate(
        space="tp pp vpp dp mbs zero sp recompute schedule",
        layouts=3911,
        infeasible=1000,
        pruned=2663,
        solved=248,
        bound=25.2,
        gap=0.0,
        seconds=1.4,
    )


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch) -> None:
    """Whatever terminal the tests are started from."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory) -> Path:
    """The best plan of `ASKED`."""
    path = tmp_path_factory.mktemp("plans") / "plan.yaml"
    with pytest.raises(SystemExit, match="0"):
        main(["plan", *ASKED, *QUICK, "--quiet", "-o", str(path)])
    return path
