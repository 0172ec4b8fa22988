"""A case trained for a few steps on random tokens, on this process's one device: seconds, MFU, peak memory, kernels."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from cases import Case
from torch._C._autograd import DeviceType
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from cost_models.estimate import Estimate
from cost_models.operators.flops import model_flops, utilisation
from cost_models.question import Question
from executor.checkpoints.checkpointer import Checkpointer
from executor.engine.engine import Engine
from executor.measure.memory import measure_memory
from executor.measure.parts import gather_typical, operator_share, record_steps, step_parts
from executor.requirements import require_torchao
from executor.run_config import EngineOptions, RunConfig
from executor.transformer.diagnosis import AttentionKernels
from executor.transformer.train import TransformerState
from planner.plan import make_plan

_STEPS, _WARM_UP, _WATCHED = 6, 2, 3
_KINDS = {
    "attention": ("attention", "flash", "fmha", "sdpa", "flex"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "aten::mm", "aten::addmm", "aten::bmm", "grouped_mm"),
}
"""Kind of a kernel → parts of names of which it has one; attention comes first: some of its kernels are CUTLASS's."""
_STANDARD_DEVIATION = 0.02
_KERNELS = 60
"""Kept of a run, those that take most."""


def trained(case: Case, question: Question, estimated: Estimate, *, follow: bool) -> dict[str, Any]:
    """Columns of a row. `follow`: steps more, that tell parts of a step and of memory, and the attention kernel."""
    with _first(case.attention):
        return _trained(case, question, estimated, follow=follow)


def _trained(case: Case, question: Question, estimated: Estimate, *, follow: bool) -> dict[str, Any]:
    plan = make_plan(question, estimated)
    require_torchao(plan, "the case")
    on_gpu = question.cluster.gpu.kind != "cpu"
    options = EngineOptions(compile=case.compile, sgd=case.optimizer == "sgd", emulate_fp8=not on_gpu)
    device = torch.device("cuda:0" if on_gpu else "cpu")
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=dist.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    engine = Engine(plan, device, options)
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
    if follow:
        row |= _parts(engine, tokens, targets, median)
        row |= {} if case.compile else _followed(engine, tokens, targets)
    return row | (_reloaded(engine, options, tokens, targets) if case.loaded else {})


@contextmanager
def _first(backend: str) -> Iterator[None]:
    """Have torch take this attention backend where it can."""
    if not backend:
        yield
        return
    chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    others = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel([chosen, *(one for one in others if one != chosen)], set_priority=True):
        yield


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


def _parts(engine: Engine, tokens: torch.Tensor, targets: torch.Tensor, median: float) -> dict[str, Any]:
    """Seconds of the parts of a step and of two kinds of kernels, as shares of watched steps; none where that fails."""
    try:
        steps = gather_typical(record_steps(engine, [(tokens, targets)] * _WATCHED))
        share = operator_share(engine, tokens, targets)
        parts = step_parts(steps, {0: share}, on_cpu=engine.device.type == "cpu")[0]
        kernels = _kernels(engine, tokens, targets)
    except Exception as error:
        return {"not_told_apart": f"{type(error).__name__}: {error}".splitlines()[0]}
    unit = median / sum(parts.values())
    computed = parts["compute"] * unit
    scale = computed / sum(seconds for _, seconds in kernels.values())
    spent = dict.fromkeys(_KINDS, 0.0)
    for name, (_, seconds) in kernels.items():
        if (kind := _kind(name)) is not None:
            spent[kind] += seconds * scale
    longest = sorted(kernels.items(), key=lambda item: -item[1][1])[:_KERNELS]
    return {
        **{f"spent_{part}_seconds": seconds * unit for part, seconds in parts.items()},
        **{f"spent_{kind}_seconds": seconds for kind, seconds in spent.items()},
        "kernels": [
            {"kernel": name, "kind": _kind(name) or "", "calls": calls, "seconds": seconds}
            for name, (calls, seconds) in longest
        ],
    }


def _kind(kernel: str) -> str | None:
    """The kind of a kernel by its name; None: neither."""
    name = kernel.lower()
    return next((kind for kind, words in _KINDS.items() if any(word in name for word in words)), None)


def _kernels(engine: Engine, tokens: torch.Tensor, targets: torch.Tensor) -> dict[str, tuple[int, float]]:
    """Kernel → (calls, seconds) in the forward and backward passes of a step; operators on a CPU."""
    on_gpu = engine.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        engine.forward_backward(tokens, targets)
        _now(on_gpu)
    engine.update()
    found: dict[str, tuple[int, float]] = {}
    for event in profiler.events() or []:
        if on_gpu != (event.device_type == DeviceType.CUDA) or "memcpy" in event.name.lower():
            continue
        if on_gpu or event.name.startswith("aten::"):
            calls, seconds = found.get(event.name, (0, 0.0))
            more = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            found[event.name] = calls + 1, seconds + more * 1e-6
    return found


def _reloaded(
    engine: Engine, options: EngineOptions, tokens: torch.Tensor, targets: torch.Tensor
) -> dict[str, Any]:
    """What saving and loading takes, and the next step's loss of the engine that saved and of the one that loaded."""
    with tempfile.TemporaryDirectory() as folder:
        saving = RunConfig(checkpoint=Path(folder))
        checkpoints = Checkpointer(TransformerState(engine), saving, "random")
        start = time.perf_counter()
        checkpoints.save(1)
        checkpoints.wait()
        saved = time.perf_counter()
        value, _ = engine.step(tokens, targets)
        other = Engine(engine.plan, engine.device, options, filled=False)
        made = time.perf_counter()
        Checkpointer(TransformerState(other), saving, "random").resume()
        loaded = time.perf_counter()
    again, _ = other.step(tokens, targets)
    seconds = {"save_seconds": saved - start, "load_seconds": loaded - made}
    return seconds | {"loss_of_saved": value, "loss_of_loaded": again}


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
