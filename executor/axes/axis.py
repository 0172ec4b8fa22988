"""The contract of an axis of parallelism on a rank, and the groups of ranks that hold the same parameters.

**Shares of the batch.** A replica trains on some sequences of a step, in microbatches. All replicas take equally many,
unless whole replicas lie in pools of different GPUs: then as many as the plan's prices say. A microbatch's loss has the
same weight on every replica, so that gradients add up to those of one process.

**The contract.** An axis may change the model, the update and a step. A rank knows its place, its meshes and its share
of the batch. Each axis of `executor.engine` is made with that rank and called at the moments below, in the order in
which they are listed; a method does nothing unless its axis overrides it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cost_models.axes.layout import Layout
from cost_models.pipeline.pricing import price_ranks
from cost_models.schedules.registry import schedule_named
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.mesh import local, make_context_group, make_expert_mesh, make_mesh, place_of
from executor.models.ends import held_by_several
from executor.models.transformer import Transformer
from executor.run_config import EngineOptions
from executor.timing import Carried, Mark, Passes
from planner.plan import Plan

if TYPE_CHECKING:
    from executor.axes.data import Copies, FlatParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The microbatches and sequences of the global batch on which one replica trains."""

    microbatches: int
    first: int
    """Index in the global batch of the first sequence of this replica."""
    last: int
    """Index in the global batch after the last sequence of this replica."""
    mean_microbatches: float
    """Microbatches of a replica, averaged over all replicas; a microbatch's loss is divided by it."""

    @property
    def sequences(self) -> int:
        """Number of sequences of the global batch in this replica's share."""
        return self.last - self.first


def share_of(plan: Plan, replica: int) -> Share:
    """Share of the global batch of the data-parallel replica with index `replica`."""
    layout, batch = plan.layout, plan.training.global_batch
    counts = [layout.microbatches(batch)] * layout.dp
    if layout.replicas:
        shares = {own.pool: iter(own.microbatches) for own in price_ranks(plan.question, layout).replicas}
        counts = [next(shares[pool]) for pool in layout.replicas]
    first, count = layout.mbs * sum(counts[:replica]), counts[replica]
    last, mean = first + layout.mbs * count, sum(counts) / layout.dp
    return Share(microbatches=count, first=first, last=last, mean_microbatches=mean)


def share_of_targets(model: TransformerSpec, training: TrainingSpec) -> float:
    """Share of a sequence's tokens that the loss counts: all tokens, the masked ones, or the text behind images."""
    length = training.sequence_length
    if model.tower is not None:
        return 1 - (training.images or 1) * model.tower.features / length
    return model.encoder.masked_tokens(length) / length if model.encoder else 1.0


_COMPUTE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""Types of all but the operands of fp8 GEMMs."""
A = TypeVar("A", bound="Axis")
Bucket = int | str | None
"""Parameters that are updated together: those of a block (its number), of an end (its name), or all (None)."""
Gradient = Callable[[Tensor], Tensor | None]
"""Parameter → the gradient that this rank has accumulated for it, if any."""
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Rank:
    """State of this process as one rank of a plan: meshes, share of the batch, axes, slices of the model."""

    def __init__(self, plan: Plan, device: torch.device, options: EngineOptions) -> None:
        self.plan, self.device, self.options = plan, device, options
        self.layout = layout = plan.layout
        # nothing is sent between meta tensors, but a mesh wants a real device
        self.mesh = make_mesh(layout, "cpu" if device.type == "meta" else device.type)
        self.place = place_of(layout, dist.get_rank())
        self.share = share_of(plan, self.place.dp)
        self.context_group = make_context_group(layout)
        self.experts = make_expert_mesh(layout, self.mesh.device_type) if plan.model.has_experts else None
        self.passes = Passes(device)
        self.dtype = _COMPUTE_DTYPES[plan.training.wide_precision]
        stages = schedule_named(layout.schedule).stages_of_rank(layout.pp, layout.vpp)
        self.stages = [int(stage) for stage in stages[self.mesh["pp"].get_local_rank()]]
        """Virtual stages of this pipeline rank, in model order."""
        self.axes: list[Axis] = []
        self.parts: list[Transformer] = []
        """The slices of the model, one for each virtual stage."""

    @property
    def copies(self) -> dict[str, dict[int, nn.Parameter]]:
        """This rank's copies of parameters that several pipeline stages hold: name → virtual stage → copy."""
        staged_parts = list(zip(self.stages, self.parts, strict=False))
        return {
            name: {stage: part.shared(name) for stage, part in staged_parts if stage in stages}
            for name, stages in held_by_several(self.plan.model, self.layout.layers).items()
        }

    def axis(self, kind: type[A]) -> A | None:
        """This rank's axis of class `kind`; None where the layout does not use that axis."""
        return next((one for one in self.axes if isinstance(one, kind)), None)


def moments_of(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    """Names of the states of an optimizer that are as large as the parameters: moments of AdamW and LAMB."""
    return () if isinstance(optimizer, torch.optim.SGD) else ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements of one parameter that this rank updates: `begin` to `end` − 1 of an updated tensor."""

    parameter: nn.Parameter
    first: int
    """Index of the first of these elements in this rank's part of the parameter."""
    updated: nn.Parameter
    begin: int
    end: int
    optimizer: torch.optim.Optimizer
    holders: dist.ProcessGroup | None
    """Ranks that update the same elements as this one; None if no other does."""

    def of(self, tensor: Tensor) -> Tensor:
        """Flat view of this slice's elements in `tensor`: the updated parameter, its gradient or an optimizer state."""
        return local(tensor.detach()).view(-1)[self.begin : self.end]


class Shards:
    """Shards of parameters under ZeRO-2 and 3 that one optimizer updates on the device. An axis may have others, which
    are updated elsewhere.
    """

    resident = True
    """Whether the device updates these parameters and keeps their optimizer states in its memory."""

    def __init__(self, parameters: Sequence[nn.Parameter], make: Make) -> None:
        """`make` makes the torch optimizer."""
        self.parameters = self.updated = list(parameters)
        """Parameters of the model, and those that the optimizer updates: the same, or fp32 copies."""
        self.optimizer = make(self.updated)

    def begin_update(self) -> None:
        """Start the part of the update that runs concurrently with other updates: none, where the device updates."""

    def finish_update(self) -> None:
        """Complete the update, copy the weights to all places where they are used, and drop the gradients."""
        self.optimizer.step()
        for parameter in self.parameters:
            parameter.grad = None

    def spread(self) -> None:
        """Copy parameters, after an update or a load, to where they are used: nothing, where these are the model's."""


class Axis:
    """Base class of the axes of parallelism of a layout, as one rank runs them."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        """Whether a layout uses this axis."""
        return True

    # the model, one slice after another
    def apply(self, part: Transformer, stage: int) -> None:
        """Change, in place, the model slice of a virtual stage, before its blocks are compiled."""

    def compile_options(self) -> dict[str, Any]:
        """Options for torch's compiler that this axis needs."""
        return {}

    def on_host(self, part: Transformer) -> Collection[str]:
        """Names of the blocks of a model slice whose parameters are in host memory between passes."""
        return ()

    def shard(self, part: Transformer, on_host: Collection[str]) -> None:
        """Shard the parameters of a model slice; `on_host` names its blocks that are in host memory."""

    # the optimizer
    def parts_made(self) -> None:
        """Called when all model slices of this rank exist."""

    def buckets(self) -> dict[int, Bucket]:
        """Buckets that this axis chooses: id of a parameter → the bucket that it is updated with."""
        return {}

    def buffer(
        self, bucket: Bucket, parameters: Sequence[nn.Parameter], copies: Copies, *, routed: bool, **how: Any
    ) -> FlatParameters | None:
        """Flat buffers of a bucket under ZeRO-0 and 1; None has the engine make the usual ones.

        `routed`: the parameters are of routed experts. `how` goes to `FlatParameters`.
        """

    def shards(self, bucket: Bucket, parameters: Sequence[nn.Parameter], make: Make) -> Shards | None:
        """Shards of a bucket under ZeRO-2 and 3 that this axis updates; None has the engine make the usual ones."""

    def connect(self) -> None:
        """Called when the optimizer exists, so that the axis can connect its buffers with the model."""

    # a step
    def take(self, tokens_BS: Tensor) -> Tensor:
        """The part of whole sequences of tokens, (B, S), on which this rank works."""
        return tokens_BS

    def step(self) -> AbstractContextManager[None]:
        """Context manager around the forward and backward passes of one training step."""
        return nullcontext()

    def join(self, gradient: Gradient) -> None:
        """Add up gradients of parameters that several pipeline stages hold; tensor-parallel ranks have added theirs."""

    def before_reduce(self) -> None:
        """Called when all passes of a step are over, before gradients are reduced over replicas."""

    # what is measured
    def host_tensors(self) -> Iterable[Tensor]:
        """Tensors of this axis that are in host memory; with a parameter its gradients are there."""
        return ()

    def drive_tensors(self) -> Iterable[Tensor]:
        """Tensors of this axis that are on the host's drive."""
        return ()

    def record(self, into: list[Carried[Mark]] | None) -> None:
        """Start appending host copies and CPU updates of this axis to the list `into`; None stops the recording."""

    def end_step(self) -> None:
        """Keep this axis's counts of the step that has just ended, for the report."""

    def forget(self) -> None:
        """Reset this axis's counts of communication, so that start-up and warm-up steps are left out."""

    def report(self, host_peak: int) -> dict[str, Any]:
        """Fields that this axis adds to a rank's report; `host_peak` is the peak of host memory in bytes."""
        return {}
