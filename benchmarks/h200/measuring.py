"""A case trained for a few steps on random tokens, on this process's one device: seconds, MFU, peak memory, kernels."""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from cases import Case

from cost_models.estimate import Estimate
from cost_models.operators.flops import model_flops, utilisation
from cost_models.question import Question
from executor.engine.engine import Engine
from executor.measure.memory import measure_memory
from executor.requirements import require_torchao
from executor.run_config import EngineOptions
from executor.transformer.diagnosis import AttentionKernels
from planner.plan import make_plan

_STEPS, _WARM_UP = 6, 2
_STANDARD_DEVIATION = 0.02


def trained(case: Case, question: Question, estimated: Estimate, *, follow: bool) -> dict[str, Any]:
    """Columns of a row. `follow`: the storages of one step more, and the attention kernel it takes."""
    plan = make_plan(question, estimated)
    require_torchao(plan, "the case")
    on_gpu = question.cluster.gpu.kind != "cpu"
    device = torch.device("cuda:0" if on_gpu else "cpu")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    engine = Engine(plan, device, EngineOptions(compile=case.compile, sgd=case.optimizer == "sgd"))
    shape = (question.training.global_batch, case.sequence)
    tokens, targets = (torch.randint(question.model.vocab_size, shape) for _ in range(2))
    seconds, losses = [], []
    for step in range(_WARM_UP + _STEPS):
        if on_gpu and step == _WARM_UP:  # compilation tries kernels out
            torch.cuda.reset_peak_memory_stats()
        start = _now(on_gpu)
        value, _ = engine.step(tokens, targets)
        seconds.append(_now(on_gpu) - start)
        losses.append(value)
    timed = seconds[_WARM_UP:]
    median = statistics.median(timed)
    useful = model_flops(question.model, question.training, 1)
    row: dict[str, Any] = {
        "step_seconds": median,
        "fastest_seconds": min(timed),
        "slowest_seconds": max(timed),
        "first_seconds": seconds[0],
        "mfu": utilisation(useful, median, 1, question.cluster.gpu.peak[question.training.precision]),
        "tokens_per_second": question.training.tokens_per_step / median,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    if on_gpu:
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
    return row | (_followed(engine, tokens, targets) if follow and not case.compile else {})


def leave_nothing() -> None:
    """What a run left behind, out of the next one's way."""
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    torch.cuda.empty_cache()


def environment() -> dict[str, Any]:
    """Versions and device."""
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": device.name,
            "memory_bytes": device.total_memory,
            "sms": device.multi_processor_count,
        }
    return found


def _now(on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter()


def _followed(engine: Engine, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, Any]:
    """A step that fails costs nothing of what was measured before."""
    try:
        with AttentionKernels() as kernels:
            parts = measure_memory(engine, tokens, targets)
    except Exception as error:
        return {"not_followed": f"{type(error).__name__}: {error}".splitlines()[0]}
    found = {f"measured_{part}_bytes": size for part, size in parts.items()}
    return found | {"attention": " and ".join(sorted(kernels.seen))}


def initialise_on_device(module: torch.nn.Module, seed: int) -> None:
    """Normal weights drawn on the device, of a model that no engine made."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=_STANDARD_DEVIATION)
            else:
                parameter.fill_(float(name.endswith("norm.weight")))
