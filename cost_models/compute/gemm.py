"""Seconds of a matrix product from its shape: tiles, waves, pipeline fill, and the memory roof.

A GPU computes a product of (m, k) by (k, n) as output tiles, `sm_count` at a time. The last wave is seldom full, a
short inner dimension never fills the pipeline, and a narrow product is bound by memory:

    seconds = max(kernel, 2mnk / (peak · efficiency · fill · waves), bytes / bandwidth)
    fill  = k / (k + gemm_k_half)
    waves = best over tile shapes of  tile_efficiency · (m·n) / (tile area · sm_count · ceil(tiles / sm_count))

A CPU core fetches operands and multiplies in turn: there the two times add up, at `gemm_operand_bandwidth`.

Sources: NVIDIA, Matrix Multiplication Background guide (tile and wave quantisation); Williams et al. 2009 (roofline).
Leaves out split-k, L2 locality and clock changes inside one product; the profile's efficiency averages over them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.compute.device import Device

Array = npt.NDArray[np.float64]


def gemm_seconds(m: Array, n: Array, k: Array, device: Device) -> Array:
    """Seconds of products (m, k) × (k, n); the three broadcast against one another."""
    flops = 2.0 * m * n * k
    fill = k / (k + device.profile.gemm_k_half)
    rate = device.peak * device.profile.gemm_efficiency * fill * _tile_utilisation(m, n, device)
    traffic = (m * k + k * n + m * n) * device.element_bytes
    if operand_bandwidth := device.profile.gemm_operand_bandwidth:
        return np.maximum(device.profile.kernel_seconds, flops / rate + traffic / operand_bandwidth)
    return np.maximum(device.profile.kernel_seconds, np.maximum(flops / rate, traffic / device.memory_rate))


def _tile_utilisation(m: Array, n: Array, device: Device) -> Array:
    """Share of the tile slots that hold useful output, for the best tile shape; 1 on a device without waves."""
    if device.sm_count == 1:
        return np.ones(np.broadcast(m, n).shape)
    best: Array = np.zeros(np.broadcast(m, n).shape)
    for tile in device.profile.gemm_tiles:
        tiles = np.ceil(m / tile.rows) * np.ceil(n / tile.columns)
        slots = np.ceil(tiles / device.sm_count) * device.sm_count
        best = np.maximum(best, tile.efficiency * m * n / (slots * tile.rows * tile.columns))
    return best
