"""One calibrating process: measures everything while its neighbours do the same, and writes JSON.

Training loads all processes at once, so rates are taken at once too: a barrier before each family of
measurements keeps the processes side by side, contending for cores, caches and memory as they will.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from cost_models.measured.calibration.microbenchmarks import Measurement, quietest
from executor.launch.workers import FAMILY_MARK, write_result
from executor.microbenchmarks import kernels
from executor.microbenchmarks.kernels import tables
from executor.microbenchmarks.links import (
    collectives,
    host_copies,
    host_overhead,
    host_updates,
    overlapped_updates,
    tiny_engines,
)
from executor.microbenchmarks.stopwatch import Scale, Stopwatch, scale_of

_QUICK_BUDGET_SECONDS, _BUDGET_SECONDS = 0.02, 0.04
_TOUCHED_BYTES = 2**28

Family = Callable[[Stopwatch, Scale], Iterator[Measurement]]


def measure(watch: Stopwatch, scale: Scale, *, on_progress: Callable[[str], None]) -> list[Measurement]:
    """Measure all families of microbenchmarks in turn, in the scale's number of rounds; needs a process group."""
    world, rank = dist.get_world_size(), dist.get_rank()
    engines = tiny_engines(watch.device, scale.precision)
    families: dict[str, tuple[Family, ...]] = {
        "matrix products": (kernels.gemms, kernels.sustained_gemms, kernels.cached_gemms),
        "attention": (kernels.attention_cores,),
        "element-wise operators": (kernels.element_wise,),
        "memory": (kernels.memory,),
        "optimizer": (kernels.optimizer,),
        "host": (lambda watch, _: host_overhead(watch, engines),),
        "offload": (host_updates, host_copies, overlapped_updates),
        "embedding tables": (tables,),
        "collectives": (collectives,) * (world > 1),
    }
    rounds: list[list[Measurement]] = []
    for number in range(scale.rounds):
        rounds.append([])
        for name, measured in families.items():
            if not measured:
                continue
            on_progress(name if scale.rounds == 1 else f"{name}, round {number + 1} of {scale.rounds}")
            dist.barrier()
            rounds[-1].extend(replace(row, rank=rank) for family in measured for row in family(watch, scale))
    return quietest(rounds)


@record
def main() -> None:
    """Measure as one worker process: `python -m executor.microbenchmarks.worker DIR DEVICE PRECISION [quick]` under
    torchrun.
    """
    write_result(_measured)


def _measured(device: torch.device, options: Sequence[Any]) -> str:
    """Measurements of this process as JSON."""
    torch.manual_seed(dist.get_rank())
    precision, quick = options[0], "quick" in options
    scale = scale_of(device.type, precision if device.type == "cuda" else None, quick=quick)
    budget = _QUICK_BUDGET_SECONDS if quick else _BUDGET_SECONDS
    watch = Stopwatch(device=device, budget_seconds=budget / scale.rounds)
    # fault the pages in that the measurements will use: training does it in its first step
    torch.ones(_TOUCHED_BYTES, dtype=torch.uint8, device=device)
    rows = measure(watch, scale, on_progress=lambda family: print(f"{FAMILY_MARK}{family}", flush=True))
    return json.dumps([asdict(row) for row in rows])


if __name__ == "__main__":
    main()
