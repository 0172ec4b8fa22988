"""Questions and estimates made by hand, so that the front door is tested apart from the cost model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import ASKED, QUICK

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.estimate import Breakdown, Estimate, Trust
from cost_models.files.catalog import load_model
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from meshwright.cli import main
from planner.objectives import Certificate

GIB = 2.0**30


@pytest.fixture(scope="session")
def question() -> Question:
    training = TrainingSpec(global_batch=1536, sequence_length=2048)
    return complete_question(load_model("gpt3-175b"), resolve_cluster("dgx-a100-80gb", 1024), training)


@pytest.fixture(scope="session")
def make_estimate() -> Callable[..., Estimate]:
    def make(
        layout: str = "tp8 pp8 vpp2 dp16 mbs1 zero1 sp recompute=selective",
        *,
        scale: float = 1.0,
        limit: float = 74 * GIB,
        activations: float = 21.2 * GIB,
    ) -> Estimate:
        parsed, work = (
            parse_layout(layout),
            {"compute": 20.2 * scale, "recompute": 0.4, "tp_comm": 3.1 * scale},
        )
        time = Breakdown(**work, pp_comm=0.2, dp_comm=0.3, optimizer=0.1, host=0.0, bubble=0.9)
        states = {"weights": 5.4 * GIB, "gradients": 10.8 * GIB, "optimizer": 2.0 * GIB}
        rest = {"working": 1.5 * GIB, "buffers": 1.2 * GIB, "reserved": 3.0 * GIB}
        ranks = range(parsed.pp)
        return Estimate(
            layout=parsed,
            microbatches=parsed.microbatches(1536),
            step_seconds=time.total,
            time=time,
            hidden_comm=Breakdown(tp_comm=2.0, dp_comm=1.1),
            rank_memory=tuple(
                Breakdown(**states, activations=activations / (1 + rank), **rest) for rank in ranks
            ),
            rank_limits=(limit,) * parsed.pp,
            mfu=0.55 / scale,
            hfu=0.57 / scale,
            tokens_per_second=1536 * 2048 / time.total,
            bound_by="tp_comm",
            trust=Trust(tier="profile", profile="a100-megatron", error=0.04, runs=12),
        )

    return make


@pytest.fixture(scope="session")
def certificate() -> Certificate:
    counts = {"layouts": 3911, "infeasible": 1000, "pruned": 2663, "solved": 248}
    space = "tp pp vpp dp mbs zero sp recompute schedule"
    return Certificate(space=space, **counts, bound=25.2, gap=0.0, seconds=1.4)


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
