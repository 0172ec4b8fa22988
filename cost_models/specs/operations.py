"""Operations of a cluster: how often it fails, how soon a job is back, and where its checkpoints go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cost_models.base import Name, Share, Spec
from cost_models.specs.links import Rate
from cost_models.units import Seconds, parse_seconds, within

_Wait = Annotated[Seconds, within(parse_seconds, "1 ns", "1000 d")]
Between = Annotated[Seconds, within(parse_seconds, "1 s", "1000000000 h")]


class Maintenance(Spec):
    """Planned stops of the whole job, which saves first."""

    every: _Wait
    """Time from one to the next."""
    takes: _Wait

    @model_validator(mode="after")
    def _leaves_time(self) -> Maintenance:
        if self.takes >= self.every:
            raise ValueError("`takes` is not shorter than `every`: no time is left to train")
        return self


class OperationsSpec(Spec):
    """How a cluster is run: failures, restarts, storage, spares, slow hosts."""

    kind: Literal["operations"] = "operations"
    name: Name = "custom"
    mtbf: Between
    """GPU-hours from one failure that ends the job to the next: that of n GPUs is an n-th of it."""
    detection: _Wait
    """From a failure until the job is known to be dead."""
    restart: _Wait
    """From there until its first step, the reading of the checkpoint left out."""
    pause: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 0.0
    """Seconds that a checkpoint stops training for besides the copying of bytes: planning, synchronisation."""
    storage_write: Rate
    """Bandwidth at which the whole job writes checkpoints, bytes/s."""
    storage_read: Rate | None = None
    """Bandwidth at which it reads them; None: as it writes."""
    host_copy: Rate | None = None
    """Bandwidth at which each GPU's share of a checkpoint is copied to its host, while it waits; None: the GPU's link
    to host memory."""
    asynchronous: bool = True
    """Whether training goes on while the host writes to storage."""
    spares: Annotated[int, Field(ge=0, le=10**6)] | None = None
    """Nodes that stand by; None: there is always one."""
    repair: _Wait = 86400.0
    """Time until a node that failed is back."""
    maintenance: Maintenance | None = None
    slow_hosts: Share = 0.0
    """Share of nodes that are slow for good: found once and replaced, or kept."""
    slowness: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0
    """By how much a step with such a node takes longer."""
    source: str = ""
