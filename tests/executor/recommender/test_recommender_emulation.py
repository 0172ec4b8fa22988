"""One rank of a recommender alone against the same rank among the others, and what cannot be emulated."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from effort import few
from recommending import peak_among_others
from test_recommender_runs import MIXED, plan_of

from cost_models.errors import HostError, InputError, RunError
from cost_models.recommender.options import STAGES
from executor.emulate.recommender import emulate

LAYOUTS = ("table:0-7=row", "table:0-7=copy", MIXED)


@few(1)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_alone_a_rank_holds_what_it_holds_among_others(layout: str, processes) -> None:
    """Rows, optimizer states and host memory to the byte, the peak but for ids that differ from step to step."""
    plan = plan_of(layout, 2, optimizer="adagrad", global_batch=1024)
    real = processes.run(2, peak_among_others, plan)
    for rank in (0, 1):
        alone = emulate(plan, rank, steps=1)
        memory, on_host = real[rank]
        assert (alone.memory["tables"], alone.memory["optimizer"]) == (memory["tables"], memory["optimizer"])
        assert alone.memory["host memory"] == on_host
        assert alone.peak_bytes == pytest.approx(sum(memory.values()), rel=0.002)
        assert set(alone.compute_seconds) == {STAGES.lookup, STAGES.dense, STAGES.update}
        assert all(seconds > 0 for seconds in alone.compute_seconds.values())
        assert alone.step_seconds is not None


def test_what_cannot_be_emulated(monkeypatch) -> None:
    """A rank that is not there, too little memory, and a failure, after which no process group is left."""
    plan = plan_of("table:0-7=row", 2)
    with pytest.raises(InputError, match="the plan has no rank 2"):
        emulate(plan, 2)
    monkeypatch.setattr("executor.requirements.free_bytes", lambda device: 2.0**10)
    with pytest.raises(HostError, match=r"rank 1 should need .+; this cpu has .+ free: .+ are missing"):
        emulate(plan, 1)
    monkeypatch.undo()
    monkeypatch.setattr("executor.emulate.recommender.OtherRanks.draw", _failing)
    with pytest.raises(RunError, match="rank 1 cannot be emulated: no samples"):
        emulate(plan, 1)
    assert not dist.is_initialized()


def _failing(self: object, step: int) -> None:
    raise ValueError("no samples")
