"""This process as one rank of many: its process group sends nothing, its device is what is here.

Gathers repeat what this rank has and sums keep its part, so any number of ranks fits.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from warnings import catch_warnings, simplefilter

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.base import Spec
from cost_models.defaults import OWN_STACK
from cost_models.errors import InputError
from cost_models.files.catalog import load_stack
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.stack import StackSpec

NO_DEVICE = "none"


class AnyEmulation(Spec):
    """Measurements of one rank that ran alone, beside its plan's predictions; each family adds fields."""

    schema_version: int = 1
    model: str
    rank: int
    device: str
    """`cpu`, the name of the GPU, or `none`: memory only."""
    torch: str
    memory: dict[str, int]
    """Bytes by part at this rank's peak."""
    predicted_memory: dict[str, float]
    """Predicted bytes of the same parts under the plan's stack, on its GPU."""
    memory_as_run: dict[str, float]
    """Predicted bytes of the same parts as they ran here: the executor's operators, on this kind of device or on a CPU.
    """
    seconds: dict[str, tuple[float, ...]]
    """Compute in each measured step, by phase or stage: on a CPU the training thread's CPU time, on a GPU time by its
    own clock. Empty without a device."""
    on_planned_device: bool
    """Not a CPU in the place of the plan's GPU, or no device."""
    predicted_seconds: dict[str, float]
    """Predicted seconds of the same phases or stages for this rank, without communication."""

    @property
    def runs_otherwise(self) -> bool:
        """Whether what ran keeps other tensors than the plan's stack on the plan's GPU would."""
        return any(abs(size - self.predicted_memory[part]) >= 1 for part, size in self.memory_as_run.items())

    @property
    def compute_seconds(self) -> dict[str, float]:
        """Median of each phase or stage."""
        return {phase: statistics.median(seconds) for phase, seconds in self.seconds.items()}


def require_rank(rank: int, ranks: int) -> None:
    """Raise InputError where a plan has no such rank."""
    if not 0 <= rank < ranks:
        raise InputError(f"the plan has no rank {rank}", hint=f"its {ranks} ranks go from 0 to {ranks - 1}")


@contextmanager
def alone(rank: int, ranks: int) -> Iterator[None]:
    """Make this process one rank of a group that sends nothing, on one thread as every worker has."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        with catch_warnings():
            simplefilter("ignore", FutureWarning)  # of collectives that newer releases name otherwise
            yield
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)


def as_run_here(
    cluster: ClusterSpec, stack: StackSpec, device: torch.device
) -> tuple[ClusterSpec, StackSpec]:
    """The cluster and stack of an emulation: this executor, on this kind of device."""
    if device.type == "cpu":
        cluster = cluster.model_copy(update={"gpu": cluster.gpu.model_copy(update={"kind": "cpu"})})
    return cluster, stack if stack.name == OWN_STACK else load_stack(OWN_STACK)
