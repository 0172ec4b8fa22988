"""The machine and software that a run is on, as its report has them."""

from __future__ import annotations

import os
import platform

import torch
import torch.distributed as dist

from cost_models.files.local import processor_name
from executor.measure.report import Environment


def environment_of(device: torch.device) -> Environment:
    """What every rank of the process group runs on."""
    return Environment(
        torch=str(torch.__version__),
        python=platform.python_version(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        backend=dist.get_backend(),
        world_size=dist.get_world_size(),
        cores=os.cpu_count() or 1,
        processor=processor_name(),
    )
