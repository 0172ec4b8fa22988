"""Tells what a rank held when its memory ran out: the parts that can still be seen, and the rest of what was allocated.

No tracker can run then. Weights, gradients and optimizer states are found where they lie between steps, so copies
gathered under ZeRO count as rest.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cost_models.errors import HostError, Problem, RunError
from cost_models.units import format_bytes
from executor.measure.memory import Trains, held_on_drive, held_on_host, held_parts
from executor.measure.storages import REST
from executor.offload.drive import DriveError

_CPU_ALLOCATOR_FAILED = "DefaultCPUAllocator: can't allocate memory"
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class OutOfMemoryError(RuntimeError):
    """This rank's memory ran out; `parts` maps part → bytes and sums to what had been allocated."""

    def __init__(self, reason: str, parts: dict[str, int]) -> None:
        super().__init__(reason)
        self.parts = parts


@contextmanager
def out_of_memory_by_part(device: torch.device) -> Iterator[list[Trains]]:
    """Raise OutOfMemoryError where memory runs out inside; the caller appends its engine to the list it gets.

    RunError where it was host memory, and the engine keeps blocks there; HostError where the drive failed.
    """
    engines: list[Trains] = []
    before = _allocated_peak(device)
    try:
        yield engines
    except DriveError as error:
        raise _drive_failed(error, engines[0]) from error
    except (RuntimeError, MemoryError) as error:
        cause = _exhaustion(error)
        if cause is None:
            raise
        if _CPU_ALLOCATOR_FAILED in str(cause) and engines and (held := held_on_host(engines[0])):
            raise _host_ran_out(held, engines[0]) from error
        allocated = _allocated_peak(device) - before
        known = held_parts(engines[0]) if engines else {}
        parts = known | {REST: max(0, allocated - sum(known.values()))}
        raise OutOfMemoryError((f"{cause}" or "out of memory").splitlines()[0], parts) from error


def _host_ran_out(held: int, engine: Trains) -> RunError:
    """The error of a rank that keeps blocks in host memory, of which there was no more."""
    device = sum(held_parts(engine).values())
    return RunError(
        f"host memory ran out: offloaded blocks have {format_bytes(held)} there",
        problems=[Problem("device", f"weights, gradients and states {format_bytes(device)}")],
        hint="offload fewer blocks; checkpoints that were saved are whole, and --resume goes on from them",
    )


def _drive_failed(error: DriveError, engine: Trains) -> HostError:
    """The error of a rank that keeps states on a drive which took or gave no more."""
    device = sum(held_parts(engine).values())
    return HostError(
        f"drive: {(error.strerror or str(error)).lower()} in `{error.filename}`, where this rank has"
        f" {format_bytes(held_on_drive(engine))} of optimizer states",
        problems=[
            Problem("host memory", f"offloaded blocks {format_bytes(held_on_host(engine))}"),
            Problem("device", f"weights, gradients and states {format_bytes(device)}"),
        ],
        hint="checkpoints that were saved are whole, and --resume goes on from them; --drive names another folder",
    )


def _exhaustion(error: BaseException | None) -> BaseException | None:
    """The error that says memory ran out: this one, or one behind it, as pipeline stages wrap what a module raises."""
    while error is not None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _CPU_ALLOCATOR_FAILED in str(error):
            return error
        error = error.__cause__
    return None


def _allocated_peak(device: torch.device) -> int:
    """Peak bytes so far, of the CUDA allocator or of this process's resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
