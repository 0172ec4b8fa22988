"""One rank alone against the same rank among the others, and one of many that no machine here could hold."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
import torch.distributed as dist
from effort import THOROUGH, few, first_of
from training import LLAMA, MOE, plan_for

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.errors import HostError, InputError, RunError
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.emulate import one_rank as emulation
from executor.emulate.one_rank import emulate
from meshwright.families.transformer.run import Emulated
from meshwright.records.runs import emulated
from planner.plan import Plan, make_plan
from planner.search.search import place_layout

MEDIUM: dict[str, Any] = LLAMA | {"hidden_size": 64, "ffn_hidden_size": 192, "vocab_size": 512}
SAME = 0.02
"""What an emulated peak may be off."""
SEQUENCE = 64
"""Activations then outweigh the copy of all gradients that gloo makes when it scatters them, and nobody else does."""


def real_peak(plan: Plan) -> int:
    """Bytes at the peak of this rank's second step, on tokens drawn as the emulation draws them."""
    from executor.engine.engine import Engine
    from executor.measure.memory import measure_memory
    from executor.run_config import EngineOptions

    torch.manual_seed(dist.get_rank())
    engine = Engine(plan, torch.device("cpu"), EngineOptions())
    tokens = emulation.tokens_of(engine)
    engine.step(*tokens)
    return sum(measure_memory(engine, *tokens).values())


@few(1)
@pytest.mark.parametrize("layout", ["tp2 mbs2 sp", "dp2 mbs2 zero3"])
def test_a_wide_loss_holds_what_is_priced(layout: str) -> None:
    """Of a vocabulary so large that the loss is the peak: without values no more than with them, and as priced."""
    plan = plan_for(layout, MEDIUM | {"vocab_size": 16384}, sequence_length=2 * SEQUENCE)
    report = emulate(plan, 0, fake=True)
    assert report.memory_as_run is not None
    assert sum(report.memory_as_run.values()) == pytest.approx(report.peak_bytes, rel=SAME)
    assert report.memory_as_run["weights"] == pytest.approx(report.memory["weights"], rel=SAME)
    assert report.peak_bytes == pytest.approx(emulate(plan, 0, steps=1).peak_bytes, rel=SAME)


@few(1)
@pytest.mark.parametrize(
    "layout",
    first_of(
        2, ["tp2 mbs2", "dp2 mbs2 zero3", "pp2 mbs2 schedule=zbv", "pp2 mbs2", "dp2 mbs2 zero1", "cp2 mbs2"]
    ),
)
def test_alone_a_rank_holds_what_it_holds_among_others(layout: str, processes) -> None:
    """With values and without, on the last rank, and where stages differ on the first."""
    plan = plan_for(layout, MEDIUM, sequence_length=SEQUENCE)
    real = processes.run(plan.layout.num_gpus, real_peak, plan)
    last = plan.layout.num_gpus - 1
    for rank in (0, last) if THOROUGH or plan.layout.pp > 1 else (last,):
        alone = emulate(plan, rank, steps=1)
        assert alone.peak_bytes == pytest.approx(real[rank], rel=SAME)
        assert emulate(plan, rank, fake=True).peak_bytes == pytest.approx(alone.peak_bytes, rel=SAME)
        assert set(alone.compute_seconds) == {"forward_backward", "update"}
        assert alone.step_seconds is not None
        assert alone.step_seconds > sum(alone.compute_seconds.values()) > 0


def test_a_plan_for_another_stack_and_device_is_told_apart_from_an_error() -> None:
    """The model prices what was followed, too; the error is against that, and the answer says so."""
    layout = parse_layout("dp2 mbs2")
    job = TrainingSpec(global_batch=8, sequence_length=256)
    asked = complete_question(TransformerSpec.model_validate(MEDIUM), resolve_cluster("dgx-h100", 2), job)
    plan = make_plan(asked, estimate(asked, place_layout(asked, layout)), None)
    report = emulate(plan, 1, fake=True)
    assert report.runs_otherwise
    assert sum(report.memory_as_run.values()) == pytest.approx(report.peak_bytes, rel=SAME)
    assert abs(sum(report.predicted_memory.values()) / report.peak_bytes - 1) > 5 * SAME
    said = [part for part in Emulated(plan=plan, report=report).text if isinstance(part, str)]
    assert "stack megatron-core on h100-sxm" in " ".join(" ".join(said).split())
    own = emulate(plan_for("dp2 mbs2"), 1, fake=True)
    assert not own.runs_otherwise
    assert own.memory_as_run == own.predicted_memory


def test_states_of_experts_are_those_of_the_real_rank(processes) -> None:
    """What routers do differs from rank to rank, so only what lasts is compared."""
    plan = plan_for("dp2 ep2 mbs2", MOE)
    even, real = emulate(plan, 1, fake=True), emulate(plan, 1, steps=1)
    for part in ("weights", "gradients", "optimizer"):
        assert even.memory[part] == real.memory[part]
    assert even.memory["rest"] == pytest.approx(real.memory["rest"], rel=0.05)


def test_one_of_sixty_four_ranks_without_a_device() -> None:
    """Four stages, tensor and data parallel: what lasts is as the plan says, and nothing was timed."""
    wide = MEDIUM | {"hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16, "ffn_hidden_size": 4096}
    plan = plan_for("tp4 pp4 dp4 mbs1 zero1 sp recompute=full", wide, global_batch=32, sequence_length=1024)
    alone = emulate(plan, 37, fake=True)
    assert (alone.rank, alone.pipeline_rank, alone.device) == (37, 2, emulation.NO_DEVICE)
    assert alone.seconds == {}
    assert alone.step_seconds is None
    for part in ("weights", "gradients"):
        assert alone.memory[part] == pytest.approx(alone.predicted_memory[part], rel=0.001)


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_that_the_plan_does_not_have(rank: int) -> None:
    with pytest.raises(InputError, match=f"the plan has no rank {rank}") as refused:
        emulate(plan_for("tp2 pp2 mbs2"), rank)
    assert refused.value.hint == "its 4 ranks go from 0 to 3"


def test_a_device_that_is_too_small(monkeypatch) -> None:
    """What is missing is told before anything is allocated."""
    monkeypatch.setattr("executor.requirements.free_bytes", lambda device: 2.0**20)
    with pytest.raises(
        HostError, match=r"rank 1 \(stage 1\) should need .+; this cpu has .+ free: .+ are missing"
    ):
        emulate(plan_for("pp2 mbs2", MEDIUM), 1)


def test_a_rank_that_cannot_be_built_leaves_no_process_group() -> None:
    plan = plan_for("pp2 vpp2 mbs1")
    odd = plan.training.model_copy(update={"global_batch": 7})
    with pytest.raises(RunError, match=r"rank 0 cannot be emulated: .*microbatches"):
        emulate(plan.model_copy(update={"training": odd}), 0, fake=True)
    assert not dist.is_initialized()


def test_updates_on_the_host_are_told() -> None:
    """A thread of their own makes them, whose seconds no phase has; the copies are of the training thread's phases."""
    plan = plan_for("mbs2 offload=streamed")
    report = emulate(plan, 0, steps=2)
    assert report.host is not None
    assert len(report.host.update_seconds) == 2
    rows = {line.quantity: line for line in emulated(report)}
    assert rows["host_update_seconds"].predicted == report.host.predicted_update_seconds > 0
    assert rows["host_update_seconds"].measured == statistics.median(report.host.update_seconds) > 0
    work = sum(plan.prediction.time[part] for part in ("compute", "recompute", "host", "optimizer"))
    copies = report.host.predicted_copy_seconds
    assert sum(report.predicted_seconds.values()) == pytest.approx(work + copies)
    assert "host" not in emulate(plan_for("mbs2"), 0, fake=True).model_dump()
