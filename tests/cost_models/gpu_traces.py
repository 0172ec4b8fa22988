"""Traces as torch.profiler writes them of a GPU, of steps whose parts are known."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cost_models.axes.layout import Layout

GEMM, ADAM, UNKNOWN = (
    "nvjet_hsh_128x256_64x4_TNT",
    "multi_tensor_apply_kernel<FusedAdam>",
    "zz_kernel_of_nobody",
)
_LONG = 1e6
"""Microseconds of a second."""
_COLLECTIVES = {
    "tp": "allreduce",
    "dp": "_reduce_scatter_base",
    "cp": "all_gather",
    "ep": "all_to_allv",
    "pp": "send",
}


def write_trace(
    path: Path,
    layout: Layout,
    rank: int,
    parts: Mapping[str, float],
    *,
    hidden: float = 0.5,
    steps: int = 3,
    passes: int = 8,
    jitter: float = 0.02,
    described: bool = True,
    clock: float = 12345.0,
) -> Path:
    """Write a trace of equal steps: each plays `parts` (seconds by `compute`, `host`, `optimizer`, `other`, `offload`,
    `bubble` and axes, exposed) in `passes` rounds, behind whose compute lies `hidden` of its time in further
    communication of the last axis. Clocks of ranks begin anywhere."""
    draw = random.Random(rank)
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
    now = (clock + 7.5 * rank) * _LONG
    axes = [axis for axis in ("tp", "cp", "ep", "pp", "dp") if axis in parts]

    def run(name: str, length: float, stream: int, start: float, **details: Any) -> None:
        said = {"device": 0, "stream": stream, **details}
        kind = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        event = {"ph": "X", "cat": kind, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length}
        events.append(event | {"args": said})

    def send(axis: str, length: float, start: float) -> None:
        ranks = _group(layout, axis, rank)
        said = {"Group size": len(ranks), "Process Group Ranks": str(ranks)}
        if described:
            said["Process Group Description"] = f"mesh_{axis}"
        name = "ncclDevKernel_" + ("SendRecv" if axis in ("pp", "ep") else "AllReduce")
        run(name, length, 20, start, **{"Collective name": _COLLECTIVES[axis]} | said)

    for step in range(steps):
        began, weights = now, [1 + jitter * draw.uniform(-1, 1) for _ in range(passes)]
        for weight in weights:
            share = _LONG * weight / sum(weights)
            length = parts.get("compute", 0.0) * share
            run(GEMM, length, 7, now)
            if axes:
                send(axes[-1], hidden * length, now)
            now += length
            for axis in axes:
                waits = parts.get("bubble", 0.0) * _LONG if axis == "pp" and weight is weights[0] else 0.0
                send(axis, parts[axis] * share + waits, now)
                now += parts[axis] * share + waits
            now += parts.get("host", 0.0) * share
            for name, part in (("Memcpy DtoH (Device -> Pinned)", "offload"), (UNKNOWN, "other")):
                if part in parts:
                    run(name, parts[part] * share, 7, now)
                    now += parts[part] * share
        run(ADAM, parts.get("optimizer", 0.0) * _LONG, 7, now)
        now += parts.get("optimizer", 0.0) * _LONG
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        events.append(mark | {"ts": began, "dur": now - began})
    draw.shuffle(events)
    info = {"backend": "nccl", "rank": rank, "world_size": layout.num_gpus}
    document = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events, "traceName": path.name}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def _group(layout: Layout, axis: str, rank: int) -> list[int]:
    """The ranks of this one's group along an axis."""
    if axis == "ep":
        return list(range(layout.ep))
    stride = layout.stride(axis)
    first = rank - layout.place_along(axis, rank) * stride
    return [first + stride * place for place in range(getattr(layout, axis))]
