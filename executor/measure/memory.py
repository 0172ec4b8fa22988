"""Peak memory of a rank by part, from the storages of its tensors and from the allocator.

**Tracking.** An allocator only knows a total, and on a CPU there is no allocator to ask. This mode sees every
operator's outputs, forgets a storage when it dies or is resized, and so knows at each moment what is held. It slows a
step down, so memory is measured in a step of its own.

**Parts:**

weights      parameters as they lie between steps, and their gathered copies under ZeRO
gradients    what autograd accumulated, until the optimizer has used it
optimizer    moments and master weights
rest         activations, temporaries and communication buffers

What the layout keeps in host memory is none of these, on a CPU either, whose memory is both: it is reported apart.

When memory runs out no tracker can run. Weights, gradients and optimizer states are found where they lie between steps,
so copies gathered under ZeRO count as rest.
"""

from __future__ import annotations

import resource
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from cost_models.errors import HostError, Problem, RunError
from cost_models.units import format_bytes
from executor.axes.offload.link import DriveError
from executor.measure.report import NAMED_PARTS, AllocatorPeak
from executor.mesh import OperatorWatch, held, local

if TYPE_CHECKING:
    from executor.engine.engine import Engine


OTHER_PART = "rest"
"""Part of memory for activations, temporaries and buffers: all storages that were not named."""
HOST = "host"
"""Part of memory for tensors that the layout keeps in host memory, counted apart even on a CPU."""

DRIVE = "drive"
"""Part of memory for tensors on the host's drive, of which memory holds only what the system caches."""
_ELSEWHERE = (HOST, DRIVE)

_RELEASE_SECONDS = 0.002
"""Seconds in which a thread of gloo releases the tensors of an exchange that has ended. Its caller continues before
that: on a busy machine a step was seen to hold 4 % more than it needs.
"""

_Storage = torch.UntypedStorage


@dataclass(slots=True)
class _TrackedStorage:
    """A storage that is followed: the part of memory it counts as, its bytes now, and a weak reference to it."""

    part: str
    size: int
    alive: weakref.ref[_Storage]


class StorageTracker(OperatorWatch):
    """Context manager that follows all storages; `peak` is part → bytes at the moment when their total was largest.
    `HOST` and `DRIVE` are in no total; `host_peak` is the largest number of bytes in host memory.

    Storages made before count from when they are named with `name`. Inside, tensors made of others
    are looked through.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: dict[str, int] = {OTHER_PART: 0}
        self.peak: dict[str, int] = {OTHER_PART: 0}
        self.host_peak = 0
        self._total = 0
        self._largest = 0
        self._tracked: dict[int, _TrackedStorage] = {}
        self._resize: Callable[[_Storage, int], _Storage] | None = None

    def name(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these tensors as `part` from now on, unless they are counted as `HOST` or `DRIVE`."""
        self.now.setdefault(part, 0)
        for tensor in tensors:
            storage = held(tensor).untyped_storage()
            entry = self._see(storage)
            if entry.part not in (part, *_ELSEWHERE):
                self._grow(entry.part, -entry.size)
                entry.part = part
                self._grow(part, entry.size)

    def __enter__(self) -> StorageTracker:
        """Start following storages, also those that are resized."""
        self._resize = original = _Storage.resize_

        def resize(storage: _Storage, size: int) -> _Storage:
            """Resize a storage and count its new size."""
            original(storage, size)
            self._see(storage)
            return storage

        _Storage.resize_ = resize  # type: ignore[method-assign, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        """Stop following storages."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        assert self._resize is not None
        _Storage.resize_ = self._resize  # type: ignore[method-assign, assignment]

    def saw(self, operator: Any, result: Any) -> Any:
        """Bring the storages of an operator's results up to date; the result is unchanged."""
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.device.type != "meta":
                self._see(held(leaf).untyped_storage())
        return result

    def _see(self, storage: _Storage) -> _TrackedStorage:
        """Entry of a storage, with its size brought up to date."""
        key, size = storage._cdata, storage.nbytes()
        entry = self._tracked.get(key)
        if entry is None or entry.alive() is None:
            entry = _TrackedStorage(OTHER_PART, 0, weakref.ref(storage, lambda dead: self._forget(key, dead)))
            self._tracked[key] = entry
        if entry.size != size:
            self._grow(entry.part, size - entry.size)
            entry.size = size
        return entry

    def _forget(self, key: int, dead: weakref.ref[_Storage]) -> None:
        """Stop counting a storage that is gone."""
        entry = self._tracked.get(key)
        if entry is not None and entry.alive is dead:
            del self._tracked[key]
        if entry is not None:
            self._grow(entry.part, -entry.size)

    def _grow(self, part: str, size: int) -> None:
        """Add bytes to a part and, unless it is host or drive, to the total and its peak."""
        self.now[part] += size
        if part == HOST:
            self.host_peak = max(self.host_peak, self.now[HOST])
        if part in _ELSEWHERE:
            return
        self._total += size
        if self._total > self._largest and dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:
            time.sleep(_RELEASE_SECONDS)
        if self._total > self._largest:
            self._largest = self._total
            self.peak = dict(self.now)


MEASURED_PARTS = (*NAMED_PARTS, OTHER_PART)


def measure_memory(engine: Engine, *batch: Tensor) -> dict[str, int]:
    """Bytes of each part at this rank's peak within one step, which it trains; host memory is not included."""
    return measure_tiers(engine, *batch)[0]


def measure_tiers(engine: Engine, *batch: Tensor) -> tuple[dict[str, int], int]:
    """Bytes of each part at this rank's peak within one training step, and the largest bytes in host memory.

    Run it after a first step, so that optimizer states exist. Works on any device, because it follows tensors; what
    kernels allocate inside themselves is not seen, nor is what compiled blocks do, so that they are not compiled in it.
    """
    tracker = StorageTracker()
    _name_what_lasts(tracker, engine)
    on_host = engine.host_tensors()
    with torch.compiler.set_stance("force_eager"), _naming(tracker, engine.parts, on_host), tracker:
        engine.step(*batch)
    return {part: tracker.peak.get(part, 0) for part in MEASURED_PARTS}, tracker.host_peak


def held_parts(engine: Engine) -> dict[str, int]:
    """Bytes of the weights, gradients and optimizer states that exist now, by part; nothing is run."""
    tracker = StorageTracker()
    _name_what_lasts(tracker, engine)
    return {part: tracker.now[part] for part in NAMED_PARTS}


def held_on_host(engine: Engine) -> int:
    """Bytes that the layout keeps in host memory now."""
    tracker = StorageTracker()
    tracker.name(HOST, engine.host_tensors())
    return tracker.now[HOST]


def held_on_drive(engine: Engine) -> int:
    """Bytes that the layout keeps on the host's drive now."""
    return sum(one.nbytes for one in engine.drive_tensors())


def allocator_peak(device: torch.device) -> AllocatorPeak | None:
    """Peaks of CUDA's allocator since the last call, which this one resets; None on a CPU."""
    if device.type != "cuda":
        return None
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    peak = AllocatorPeak(allocated=allocated, reserved=reserved)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


@contextmanager
def _naming(
    tracker: StorageTracker, models: Iterable[nn.Module], on_host: Sequence[Tensor]
) -> Iterator[None]:
    """Context manager that names weights when a module is about to use them, and gradients when they are made; those of
    parameters `on_host` as host memory.
    """
    host_ids = set(map(id, on_host))
    handles: list[RemovableHandle] = []
    watched: set[int] = set()

    def name_weights(module: nn.Module, _: Any) -> None:
        """Name a module's weights, and watch their gradients."""
        for parameter in module.parameters():
            tracker.name("weights", [parameter])
            if id(parameter) not in watched and parameter.is_leaf and parameter.requires_grad:
                watched.add(id(parameter))
                hook = parameter.register_post_accumulate_grad_hook(name_gradient)  # type: ignore[no-untyped-call]
                handles.append(hook)

    def name_gradient(parameter: Tensor) -> None:
        """Name a parameter's gradient."""
        if parameter.grad is not None:
            tracker.name(HOST if id(parameter) in host_ids else "gradients", [parameter.grad])

    def name_gradients(optimizer: Optimizer, *_: Any) -> None:
        """Name all gradients of an optimizer's parameters."""
        tracker.name("gradients", _gradients(optimizer))

    modules = chain.from_iterable(model.modules() for model in models)
    handles += [module.register_forward_pre_hook(name_weights) for module in modules]
    handles.append(register_optimizer_step_pre_hook(name_gradients))
    handles.append(register_optimizer_step_post_hook(lambda one, *_: _name_states(tracker, one)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _name_what_lasts(tracker: StorageTracker, engine: Engine) -> None:
    """Name the storages that live from step to step: weights, gradients, optimizer states, host, drive."""
    for part in (*NAMED_PARTS, HOST, DRIVE):
        tracker.name(part, ())
    tracker.name(DRIVE, engine.drive_tensors())
    tracker.name(HOST, engine.host_tensors())
    tracker.name("gradients", [flat.gradients for flat in engine.optimizer.flats])
    weights = [parameter for model in engine.parts for parameter in model.parameters()]
    tracker.name("weights", weights)
    storages = {local(parameter).untyped_storage()._cdata for parameter in weights}
    for optimizer in engine.optimizer.optimizers:
        tracker.name("gradients", _gradients(optimizer))
        updated = _updated(optimizer)
        masters = [one for one in updated if local(one).untyped_storage()._cdata not in storages]  # in fp32
        tracker.name("optimizer", masters)
        _name_states(tracker, optimizer)


def _name_states(tracker: StorageTracker, optimizer: Optimizer) -> None:
    """Name the storages of an optimizer's states."""
    states = [value for state in optimizer.state.values() for value in state.values()]
    tracker.name("optimizer", [value for value in states if isinstance(value, Tensor)])


def _gradients(optimizer: Optimizer) -> list[Tensor]:
    """Gradients of an optimizer's parameters that have any."""
    return [parameter.grad for parameter in _updated(optimizer) if parameter.grad is not None]


def _updated(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


_CPU_ALLOCATOR_FAILED = "DefaultCPUAllocator: can't allocate memory"
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class OutOfMemoryError(RuntimeError):
    """This rank's memory ran out; `parts` maps part → bytes, which add up to the allocated peak."""

    def __init__(self, reason: str, parts: dict[str, int]) -> None:
        super().__init__(reason)
        self.parts = parts


@contextmanager
def out_of_memory_by_part(device: torch.device) -> Iterator[list[Engine]]:
    """Context manager that turns a failed allocation inside into OutOfMemoryError. It yields a list, to which the
    caller appends its engine.

    RunError where it was host memory, and the engine keeps blocks there; HostError where the drive failed.
    """
    engines: list[Engine] = []
    allocated_before = _allocated_peak(device)
    try:
        yield engines
    except DriveError as error:
        raise _drive_failed(error, engines[0]) from error
    except (RuntimeError, MemoryError) as error:
        cause = _exhaustion(error)
        if cause is None:
            raise
        if _CPU_ALLOCATOR_FAILED in str(cause) and engines and (host_bytes := held_on_host(engines[0])):
            raise RunError(
                f"host memory ran out: offloaded blocks have {format_bytes(host_bytes)} there",
                problems=[_on_device(engines[0])],
                hint="offload fewer blocks; checkpoints that were saved are whole, and --resume goes on from them",
            ) from error
        allocated = _allocated_peak(device) - allocated_before
        named_parts = held_parts(engines[0]) if engines else {}
        parts = named_parts | {OTHER_PART: max(0, allocated - sum(named_parts.values()))}
        raise OutOfMemoryError((f"{cause}" or "out of memory").splitlines()[0], parts) from error


def _on_device(engine: Engine) -> Problem:
    """Bytes of weights, gradients and states on the device, as a line of an error."""
    size = format_bytes(sum(held_parts(engine).values()))
    return Problem("device", f"weights, gradients and states {size}")


def _drive_failed(error: DriveError, engine: Engine) -> HostError:
    """Error of a rank whose drive could not be read or written."""
    on_host = Problem("host memory", f"offloaded blocks {format_bytes(held_on_host(engine))}")
    return HostError(
        f"drive: {(error.strerror or str(error)).lower()} in `{error.filename}`, where this rank has"
        f" {format_bytes(held_on_drive(engine))} of optimizer states",
        problems=[on_host, _on_device(engine)],
        hint="checkpoints that were saved are whole, and --resume goes on from them; --drive names another folder",
    )


def _exhaustion(error: BaseException | None) -> BaseException | None:
    """The error that says memory ran out: `error` or one of its causes; None if none does."""
    while error is not None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _CPU_ALLOCATOR_FAILED in str(error):
            return error
        error = error.__cause__
    return None


def _allocated_peak(device: torch.device) -> int:
    """Peak bytes so far, of CUDA's allocator or of this process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
