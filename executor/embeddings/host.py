"""Rows in host memory: those that a batch uses come up for the lookup, their gradients go down for the update.

On a CPU device and host memory are the same; they are kept apart, and counted apart, as on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cost_models.specs.recommender.sharding import Option


def device_share(option: Option) -> float:
    """Share of a slice's rows on the device."""
    return 1.0 if option.tier == "device" else option.cached


@dataclass(slots=True)
class HostLink:
    """The way between a device and its host's memory, and what went over it."""

    device: torch.device
    up_bytes: int = 0
    down_bytes: int = 0
    hits: int = 0
    """Lookups of rows on the device, of tables that have rows in host memory."""
    lookups: int = 0
    """All lookups of these tables."""

    def up(self, values: Tensor) -> Tensor:
        """Host memory → device."""
        self.up_bytes += values.nbytes
        return values.to(self.device)

    def down(self, values: Tensor) -> Tensor:
        """Device → host memory."""
        self.down_bytes += values.nbytes
        return values.to("cpu")

    def taken(self) -> HostLink:
        """What was counted since the last call."""
        taken = HostLink(self.device, self.up_bytes, self.down_bytes, self.hits, self.lookups)
        self.up_bytes = self.down_bytes = self.hits = self.lookups = 0
        return taken


def host_of(device: torch.device) -> torch.device:
    """Where host memory is: of a device that holds nothing, there as well."""
    return device if device.type == "meta" else torch.device("cpu")


def on_host(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros in host memory: pinned where a GPU copies from it."""
    return torch.zeros(rows, width, dtype=dtype, device=host_of(device), pin_memory=device.type == "cuda")
