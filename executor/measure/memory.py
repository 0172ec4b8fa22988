"""Peak memory of this rank in one training step, part by part, beside what the plan predicted.

weights      parameters as they lie between steps, and their gathered copies under ZeRO
gradients    what autograd accumulated, until the optimizer has used it
optimizer    moments and master weights
rest         activations, temporaries and communication buffers

What the layout keeps in host memory is none of these, on a CPU either, whose memory is both: it is told apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from executor.apply.local import local
from executor.measure.report import AllocatorPeak
from executor.measure.storages import DRIVE, HOST, REST, StorageTracker

MEASURED_PARTS = ("weights", "gradients", "optimizer", REST)
_NAMED_PARTS = MEASURED_PARTS[:-1]


class Trains(Protocol):
    """An engine as seen here: its slices of the model, its optimizers, and a step."""

    @property
    def parts(self) -> Iterable[nn.Module]:
        """Slices of the model."""

    @property
    def optimizers(self) -> Iterable[Optimizer]:
        """Every torch optimizer that updates them."""

    def host_tensors(self) -> Iterable[Tensor]:
        """What is in host memory because the layout has it there."""

    def drive_tensors(self) -> Iterable[Tensor]:
        """What is on the host's drive because the layout has it there."""

    def gradient_buffers(self) -> Iterable[Tensor]:
        """Buffers on the device in which gradients add up, where no parameter has them as its own."""

    def host_parameters(self) -> Collection[int]:
        """ids of parameters whose gradients are there, too, whenever they exist."""

    def step(self, inputs_BS: Tensor, targets_BS: Tensor) -> object:
        """One optimizer step."""


def measure_memory(engine: Trains, inputs_BS: Tensor, targets_BS: Tensor) -> dict[str, int]:
    """Part → bytes at this rank's peak within one step, which it trains; without those in host memory."""
    return measure_tiers(engine, inputs_BS, targets_BS)[0]


def measure_tiers(engine: Trains, inputs_BS: Tensor, targets_BS: Tensor) -> tuple[dict[str, int], int]:
    """(part → bytes at this rank's peak within one step, which it trains; most bytes of it in host memory).

    Run it after a first step, so that optimizer states exist. Works on any device, because it follows tensors; what
    kernels allocate inside themselves is not seen, nor is what compiled blocks do, so that they are not compiled in it.
    """
    tracker = StorageTracker()
    _name_what_lasts(tracker, engine)
    on_host = engine.host_parameters()
    with torch.compiler.set_stance("force_eager"), _naming(tracker, engine.parts, on_host), tracker:
        engine.step(inputs_BS, targets_BS)
    return {part: tracker.peak.get(part, 0) for part in MEASURED_PARTS}, tracker.host_peak


def held_parts(engine: Trains) -> dict[str, int]:
    """Part → bytes of the weights, gradients and optimizer states that exist now, without running anything."""
    tracker = StorageTracker()
    _name_what_lasts(tracker, engine)
    return {part: tracker.now[part] for part in _NAMED_PARTS}


def held_on_host(engine: Trains) -> int:
    """Bytes that now are in host memory because the layout has them there."""
    tracker = StorageTracker()
    tracker.name(HOST, engine.host_tensors())
    return tracker.now[HOST]


def held_on_drive(engine: Trains) -> int:
    """Bytes that are on the host's drive because the layout has them there."""
    return sum(one.nbytes for one in engine.drive_tensors())


def allocator_peak(device: torch.device) -> AllocatorPeak | None:
    """What CUDA's allocator saw since the last reset; None on a CPU."""
    if device.type != "cuda":
        return None
    return AllocatorPeak(
        allocated=torch.cuda.max_memory_allocated(device), reserved=torch.cuda.max_memory_reserved(device)
    )


def predicted_parts(rank_memory: dict[str, float]) -> dict[str, float]:
    """A plan's parts of one rank, gathered into those that can be measured; what is held in reserve is left out."""
    parts = {part: rank_memory.get(part, 0.0) for part in _NAMED_PARTS}
    return parts | {REST: sum(rank_memory.get(part, 0.0) for part in ("activations", "working", "buffers"))}


@contextmanager
def _naming(tracker: StorageTracker, models: Iterable[nn.Module], on_host: Collection[int]) -> Iterator[None]:
    """Name weights when a module is about to use them, and gradients when they are made, inside the block."""
    handles: list[RemovableHandle] = []
    watched: set[int] = set()

    def name_weights(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters():
            tracker.name("weights", [parameter])
            if id(parameter) not in watched and parameter.is_leaf:
                watched.add(id(parameter))
                hook = parameter.register_post_accumulate_grad_hook(name_gradient)  # type: ignore[no-untyped-call]
                handles.append(hook)

    def name_gradient(parameter: Tensor) -> None:
        if parameter.grad is not None:
            tracker.name(HOST if id(parameter) in on_host else "gradients", [parameter.grad])

    def before_update(optimizer: Optimizer, *_: Any) -> None:
        tracker.name("gradients", _gradients(optimizer))

    def after_update(optimizer: Optimizer, *_: Any) -> None:
        _name_states(tracker, optimizer)

    handles += [
        module.register_forward_pre_hook(name_weights) for model in models for module in model.modules()
    ]
    handles += [
        register_optimizer_step_pre_hook(before_update),
        register_optimizer_step_post_hook(after_update),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _name_what_lasts(tracker: StorageTracker, engine: Trains) -> None:
    """Name what lives from step to step."""
    for part in (*_NAMED_PARTS, HOST, DRIVE):
        tracker.name(part, ())
    tracker.name(DRIVE, engine.drive_tensors())
    tracker.name(HOST, engine.host_tensors())
    tracker.name("gradients", engine.gradient_buffers())
    for model in engine.parts:
        tracker.name("weights", model.parameters())
    for optimizer in engine.optimizers:
        tracker.name("gradients", _gradients(optimizer))
        tracker.name("optimizer", _masters(optimizer, engine.parts))
        _name_states(tracker, optimizer)


def _masters(optimizer: Optimizer, models: Iterable[nn.Module]) -> list[Tensor]:
    """The fp32 master weights that an optimizer updates."""
    weights = {_storage(parameter) for model in models for parameter in model.parameters()}
    return [one for one in _updated(optimizer) if _storage(one) not in weights]


def _storage(tensor: Tensor) -> int:
    identity: int = local(tensor).untyped_storage()._cdata
    return identity


def _name_states(tracker: StorageTracker, optimizer: Optimizer) -> None:
    states = [value for state in optimizer.state.values() for value in state.values()]
    tracker.name("optimizer", [value for value in states if isinstance(value, Tensor)])


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    return [parameter.grad for parameter in _updated(optimizer) if parameter.grad is not None]


def _updated(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
