"""The contract of an axis: one that is made here runs in an engine that does not name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from training import GPT, plan_for

from cost_models.axes.layout import Layout
from executor.axes.axis import Axis, Rank
from executor.emulate.stand_ins import fake_process_group
from executor.engine.engine import AXES, Engine
from executor.models.transformer import Transformer
from executor.run_config import EngineOptions

MOMENTS = ["apply", "shard", "parts made", "connect", "step", "passes over", "join", "reduce"]
"""In the order in which an engine comes to them."""


def noted(moment: str) -> Callable[..., None]:
    """A method of the toy that notes its moment."""
    return lambda self, *_: self.told.append(moment)


class CountedPasses(Axis):
    """A toy: it counts the passes of slices, and notes each moment at which it is called."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.told: list[str] = []
        self.passes, self.steps = 0, 0

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        return layout.mbs == 2

    shard, parts_made, connect, join, before_reduce = map(
        noted, ("shard", "parts made", "connect", "join", "reduce")
    )

    def apply(self, part: Transformer, stage: int) -> None:
        self.told.append("apply")
        part.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.passes += 1

    @contextmanager
    def step(self) -> Iterator[None]:
        self.told.append("step")
        yield
        self.told.append("passes over")

    def host_tensors(self) -> list[Tensor]:
        return [torch.zeros(3)]

    def end_step(self) -> None:
        self.steps += 1

    def report(self, host_peak: int) -> dict[str, Any]:
        return {"toy": (self.steps, host_peak)}


def test_an_axis_of_one_file_runs() -> None:
    plan = plan_for("mbs2 recompute=full", GPT)
    tokens = torch.zeros(plan.training.global_batch, plan.training.sequence_length, dtype=torch.long)
    with fake_process_group(0, 1):
        engine = Engine(plan, torch.device("cpu"), EngineOptions(), axes=(*AXES, CountedPasses))
        engine.step(tokens, tokens)
        engine.end_step()
    toy = engine.axis(CountedPasses)
    assert toy is not None
    assert toy.told == MOMENTS
    assert engine.report(5) == {"toy": (1, 5)}
    assert [one.numel() for one in engine.host_tensors()] == [3]
    assert toy.passes == plan.layout.microbatches(plan.training.global_batch)


def test_an_axis_that_a_layout_does_not_have_is_not_made() -> None:
    with fake_process_group(0, 1):
        engine = Engine(
            plan_for("mbs1", GPT), torch.device("cpu"), EngineOptions(), axes=(*AXES, CountedPasses)
        )
    assert engine.axis(CountedPasses) is None
