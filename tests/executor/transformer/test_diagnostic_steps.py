"""What goes wrong in steps after the last one costs no step that was measured; which kernels attend is seen there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import LLAMA, plan_for

from cost_models.errors import RunError
from executor.measure.report import RunReport
from executor.models import positions as sequences
from executor.transformer import diagnosis as further
from executor.transformer.diagnosis import KERNELS, LEFT_OUT, AttentionKernels, in_words
from planner.plan import Plan

STEPS = 2


def trained(
    plan: Plan, folder: Path, again: bool, fails: bool, later: bool = False
) -> tuple[RunReport | None, str]:
    """The report, or the one that was kept and why there is no other, where a step that is watched runs out of
    memory as a mask of S × S would; `later`, only one in which storages are followed."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    from executor.engine.engine import Engine
    from executor.measure.memory import StorageTracker
    from executor.run_config import RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    plain = Engine.forward_backward

    def forward_backward(engine: Engine, *batch: torch.Tensor) -> float:
        mode = _get_current_dispatch_mode()
        if fails and (isinstance(mode, StorageTracker) if later else mode is not None):
            raise torch.OutOfMemoryError("out of memory: tried to allocate 64 GiB\nand more")
        return plain(engine, *batch)

    Engine.forward_backward = forward_backward  # type: ignore[method-assign]
    watcher, config = Watcher(folder, is_continued=again), RunConfig(steps=STEPS, warm_up=1)
    try:
        report = train(plan, torch.device("cpu"), config, watcher)
        assert isinstance(report, RunReport)
        return report, ""
    except RunError as error:
        return Watcher(folder, is_continued=True).earlier_report(), error.headline
    finally:
        Engine.forward_backward = plain  # type: ignore[method-assign]


def test_a_rank_alone_leaves_out_what_it_could_not_measure(processes, tmp_path) -> None:
    ((report, _),) = processes.run(1, trained, plan_for("mbs2"), tmp_path, False, True)
    assert len(report.losses) == 1 + STEPS
    (rank,) = report.ranks
    assert len(rank.wall_seconds) == STEPS
    assert (rank.parts, rank.memory, rank.forward_backward.waiting_seconds) == ({}, {}, {})
    reason = "OutOfMemoryError: out of memory: tried to allocate 64 GiB"
    assert report.notes == tuple(
        f"warning: {what} could not be measured: {reason}" for what in ("parts", "memory")
    )


def test_of_several_ranks_the_report_of_the_measured_steps_is_kept(processes, tmp_path) -> None:
    """And that is what the run has come to where its ranks are started again; nothing is trained then."""
    plan = plan_for("dp2 mbs2")
    (kept, why), (_, other) = processes.run(2, trained, plan, tmp_path, False, True)
    assert why.startswith("every step was measured, but one that tells parts failed on rank 0: OutOfMemory")
    assert "on rank 1" in other
    assert kept.notes == (LEFT_OUT,)
    assert [len(rank.wall_seconds) for rank in kept.ranks] == [STEPS, STEPS]
    again = processes.run(2, trained, plan, tmp_path, True, False)
    assert again == [(kept, "")] * 2
    (complete, _), _ = processes.run(2, trained, plan, tmp_path, False, False)
    assert complete.notes == ()
    assert all(rank.parts and rank.memory for rank in complete.ranks)


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [(SDPBackend.FLASH_ATTENTION, "flash of the CPU"), (SDPBackend.MATH, "math, with all scores in memory")],
)
def test_the_kernel_that_torch_took_is_seen(backend: SDPBackend, kernel: str) -> None:
    query = torch.randn(1, 2, 8, 16, requires_grad=True)
    with sdpa_kernel(backend), AttentionKernels() as kernels:
        F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    assert kernels.seen == {kernel}


@pytest.mark.parametrize("operator", KERNELS)
def test_every_kernel_is_an_operator_of_this_torch(operator: str) -> None:
    assert hasattr(torch.ops.aten, operator)


@pytest.mark.parametrize(
    ("change", "layout", "taken"),
    [
        ({}, "mbs2", False),
        ({"attention_window": 8}, "mbs2", True),
        ({"attention_window": 64}, "mbs2", False),  # it hides nothing of sequences of 16
        ({"positions": "alibi"}, "mbs2", True),
        ({"positions": "alibi"}, "cp2 mbs2", False),
    ],
)
def test_where_nobody_follows_windows_take_another_kernel(change, layout, taken, monkeypatch) -> None:
    """As if this CPU had its kernels."""
    monkeypatch.setattr(sequences, "_DEVICES", ("cpu",))
    plan = plan_for(layout, LLAMA | {"head_dim": 16} | change)
    engine: Any = SimpleNamespace(plan=plan, layout=plan.layout, device=torch.device("cpu"))
    assert further.takes_flexible(engine) == taken


def test_a_kernel_of_a_gpu_is_seen_by_name() -> None:
    query: Any = torch.empty(1, 2, 8, 16, dtype=torch.bfloat16, device="meta")
    with AttentionKernels() as kernels:
        torch.ops.aten._scaled_dot_product_flash_attention(query, query, query, 0.0, True)
        torch.ops.aten._scaled_dot_product_cudnn_attention(query, query, query, None, True, 0.0, True)
    assert in_words(kernels.seen, flexible=False) == "attention kernel: flash and cuDNN"
    words = (
        "attention kernel: FlexAttention; in the steps that are followed, with a dense mask: memory-efficient"
    )
    assert in_words({"memory-efficient"}, flexible=True) == words
    assert in_words(set(), flexible=False).endswith("none that torch has fused")
