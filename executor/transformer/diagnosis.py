"""Diagnostic steps after the measured ones: time by part, memory by part, and which attention kernel runs.

They are slower, and some of them larger: windows and ALiBi take a dense mask where operators are recorded. One that
fails must not cost what was measured before. A run of one rank goes on without what that step would have found. Of
several ranks the others are then in the middle of a collective: the run ends with the report that was kept before
(`Watcher.keep`).

torch chooses an attention kernel by device, type, shape and mask, and does not report it. Each backend of
`scaled_dot_product_attention` is an operator below autograd, which is recognised there by name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from cost_models.errors import WARNING, RunError
from executor.data.batches import Batches
from executor.engine.engine import Engine
from executor.faults.failures import is_peer_lost
from executor.faults.stopping import any_rank
from executor.measure.memory import measure_tiers
from executor.measure.parts import (
    StepSpans,
    chrome_trace,
    gather_typical,
    operator_share,
    profile_step,
    record_steps,
    save_trace,
    step_parts,
)
from executor.mesh import OperatorWatch
from executor.messages import gather_json
from executor.models.positions import fits_flex
from executor.run_config import RunConfig
from executor.timing import Pass

LEFT_OUT = "the steps that tell parts and memory did not come to their end: both are left out"
"""Note of a report that was kept before the diagnostic steps."""
MEMORY_LEFT_OUT = "the step that tells memory did not come to its end: memory is left out"
"""Note of a report that was kept after time by part was measured, and before memory was."""
_Result = TypeVar("_Result")


@dataclass(slots=True, kw_only=True)
class Diagnosis:
    """Results of the diagnostic steps so far; empty where these were not requested, or failed."""

    steps: Sequence[StepSpans] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    passes: Sequence[Pass[float]] = ()
    """Passes of this rank in the typical recorded step."""
    memory: Mapping[str, int] = field(default_factory=dict)
    host_bytes: int = 0
    """Peak bytes in host memory that the layout keeps there."""
    notes: list[str] = field(default_factory=list)


def run_diagnostic_steps(
    engine: Engine,
    batches: Batches,
    config: RunConfig,
    keep: Callable[[Diagnosis], None] = lambda so_far: None,
    stop: Callable[[], bool] = lambda: False,
) -> Diagnosis:
    """Train the diagnostic steps, in which blocks are not compiled so that operators can be seen; every rank calls it.

    `keep` is called on every rank with what was told so far. Where any of them is asked to `stop`, what is left is left
    out, with a note.

    Raises:
        RunError: one of them failed on this rank, which is not the only one.
    """
    found = Diagnosis()
    with torch.compiler.set_stance("force_eager"):
        if config.waiting_steps and not _stop_requested("parts", found.notes, engine, stop):
            measured = _unless_it_fails(
                "parts", found.notes, lambda: _parts(engine, batches, config, found.notes)
            )
            found.steps, found.parts, found.passes = measured or ((), {}, ())
        if config.measure_memory and not _stop_requested("memory", found.notes, engine, stop):
            if config.waiting_steps:
                keep(replace(found, notes=[*found.notes, MEMORY_LEFT_OUT]))
            last = partial(_batch, engine, batches, config, config.waiting_steps + 1)
            with AttentionKernels() as kernels:
                tiers = _unless_it_fails("memory", found.notes, lambda: measure_tiers(engine, *last()))
            found.memory, found.host_bytes = tiers or ({}, 0)
            if tiers and engine.device.type == "cuda":
                seen = set().union(*gather_json(sorted(kernels.seen)))
                found.notes.append(in_words(seen, flexible=takes_flexible(engine)))
    return found


def _stop_requested(measurement: str, notes: list[str], engine: Engine, stop: Callable[[], bool]) -> bool:
    """Whether any rank was asked to stop, the same answer on every rank. If so, note that `measurement` is left out."""
    (is_requested,) = any_rank(engine.device, stop())
    notes += [f"asked to stop after the last step: {measurement} not measured"] * is_requested
    return is_requested


def _unless_it_fails(measurement: str, notes: list[str], tell: Callable[[], _Result]) -> _Result | None:
    """Result of `tell`. If it fails in a run of one rank, add a note and return None.

    Of several ranks the one that fails raises RunError, and those that lose touch with it go on raising that.
    """
    try:
        return tell()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if is_peer_lost({"reason": reason}):
            raise
        if dist.get_world_size() > 1:
            raise RunError(
                f"every step was measured, but one that tells {measurement} failed on rank {dist.get_rank()}: {reason}"
            ) from error
    notes.append(f"{WARNING}{measurement} could not be measured: {reason}")
    torch.cuda.empty_cache()  # nothing, where there is no GPU
    return None


def _parts(
    engine: Engine, batches: Batches, config: RunConfig, notes: list[str]
) -> tuple[list[StepSpans], dict[str, float], Sequence[Pass[float]]]:
    """Recorded steps, and this rank's parts and passes of the typical step. Rank 0 writes the trace, or a note if it
    cannot.
    """
    *watched, profiled = (_batch(engine, batches, config, more) for more in range(config.waiting_steps + 1))

    @contextmanager
    def noting(place: Path) -> Iterator[None]:
        """Context manager that turns a failure to write a trace into a note."""
        try:
            yield
        except OSError as error:
            notes.append(f"{WARNING}the trace could not be written to {place}: {error.strerror or error}")

    if config.profiler is not None:
        place = config.profiler / f"trace_rank{dist.get_rank()}.json.gz"
        with noting(place):
            profile_step(engine, profiled, place)
    steps = record_steps(engine, watched)
    share = operator_share(engine, *profiled)
    everyone = gather_typical(steps)
    parts = step_parts(everyone, dict(enumerate(gather_json(share))), on_cpu=engine.device.type != "cuda")
    if config.trace is not None and dist.get_rank() == 0:
        with noting(config.trace):
            save_trace(chrome_trace(engine.plan, everyone), config.trace)
    return steps, parts[dist.get_rank()], everyone[dist.get_rank()].work


def _batch(engine: Engine, batches: Batches, config: RunConfig, number: int) -> tuple[torch.Tensor, ...]:
    """This rank's part of the batch of diagnostic step `number`; 0 is the first step after the measured ones."""
    return batches.between(config.warm_up + config.steps + number, engine.share.first, engine.share.last)


def takes_flexible(engine: Engine) -> bool:
    """Whether measured steps use FlexAttention: for a window or ALiBi, if ranks have whole sequences and its kernels
    fit.
    """
    model, tokens = engine.plan.model, engine.plan.training.sequence_length
    biased = model.positions == "alibi" or (model.attention_window or tokens) < tokens
    return biased and engine.layout.cp == 1 and fits_flex(engine.device, model.head_dim)


KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash of the CPU",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "_scaled_dot_product_cudnn_attention": "cuDNN",
    "_scaled_dot_product_fused_attention_overrideable": "the device's own",
    "_safe_softmax": "math, with all scores in memory",
}
"""Operator → name of torch's attention backend; the last operator is part of attention without a fused kernel."""


class AttentionKernels(OperatorWatch):
    """Context manager that collects in `seen` the names of the attention kernels that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def saw(self, operator: Any, result: Any) -> Any:
        """Note the attention kernel that an operator is, if it is one; the result is unchanged."""
        if name := KERNELS.get(operator._opname):
            self.seen.add(name)
        return result


def in_words(seen: Collection[str], *, flexible: bool) -> str:
    """Note on the attention kernels seen. `flexible` says that the measured steps, unlike these, use FlexAttention."""
    kinds = [name for name in KERNELS.values() if name in seen]
    kernels = " and ".join(kinds) or "none that torch has fused"
    followed = "FlexAttention; in the steps that are followed, with a dense mask: " if flexible else ""
    return f"attention kernel: {followed}{kernels}"
