"""Page-locked host memory of exactly the requested size, and copies from host memory to a GPU.

Torch's own allocator of pinned memory rounds every block up to a power of two (c10/cuda/CachingHostAllocator), so that
21 blocks of Llama 2 13B take 137 GiB in place of 112. Here ordinary memory is registered with the driver.
"""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor


def pinned_zeros(elements: int, dtype: torch.dtype) -> Tensor:
    """Zeros, (elements,), in page-locked host memory, which is released with the last tensor that uses it.

    Raises:
        RuntimeError: the driver locks no more memory.
        OSError: there is none.
    """
    area = mmap.mmap(-1, max(1, elements * dtype.itemsize))  # pages of its own: a page is locked once
    with suppress(OSError, AttributeError):
        area.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(area, dtype=np.uint8)
    address = memory.ctypes.data
    driver = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if (status := int(driver.cudaHostRegister(address, memory.nbytes, 0))) != 0:
        raise RuntimeError(f"the driver does not lock {memory.nbytes} bytes of memory (error {status})")
    # the tensor keeps the array, not the other way round; an array's finalizers run before its memory is freed
    weakref.finalize(memory, driver.cudaHostUnregister, address).atexit = False
    return torch.from_numpy(memory)[: elements * dtype.itemsize].view(dtype)


def carried_to(device: torch.device, tensor: Tensor) -> Tensor:
    """Copy of a tensor on a device, by way of pinned memory to a GPU, so that the host need not wait."""
    pinned = device.type == "cuda" and tensor.device.type == "cpu"
    return tensor.pin_memory().to(device, non_blocking=True) if pinned else tensor.to(device)
