"""`overlap=tp`: torch's compiler runs gathers and scatters of sequence parallelism inside the products around them.

Its pass (`torch/_inductor/fx_passes/micro_pipeline_tp.py`) cuts an all-gather and the product of what it gathers, or a
product and the reduce-scatter of its sum, into a chunk for each rank: one is on its way while another is multiplied.
Chunks go through memory that GPUs of a node map into one another (`torch.distributed._symmetric_memory`), so there must
be GPUs and NCCL, and blocks must be compiled. Nothing is set for the whole process: options go with each compilation.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist

from cost_models.errors import HostError


def options_inside_products(group: dist.ProcessGroup, device: torch.device) -> dict[str, Any]:
    """What inductor is told, for graphs whose tensors are split over this group.

    Raises:
        HostError: the device has no symmetric memory.
    """
    if device.type != "cuda" or not dist.is_nccl_available():
        raise HostError(
            "`overlap=tp` sends through the symmetric memory of GPUs, which this device has not",
            hint="leave `tp` out of `overlap`",
        )
    share_memory(group)
    return {"_micro_pipeline_tp": True}


def share_memory(group: dist.ProcessGroup) -> None:
    """Let the compiler use symmetric memory among these ranks.

    It asks of every group whether it may, though torch 2.13 calls the permission deprecated.
    """
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(group.group_name)
