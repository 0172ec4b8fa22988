"""Seconds of a matrix product from its shape: tiles, waves, pipeline fill, and the memory roof.

A GPU computes a product of (m, k) by (k, n) as output tiles, `sm_count` at a time. The last wave is seldom full, a
short inner dimension never fills the pipeline, and a narrow product is bound by memory:

    seconds = max(kernel, 2mnk / rate, bytes / bandwidth)
    rate  = efficiency · settled · min(peak · sustained, watts · FLOP/s per watt) · fill · alignment · waves
    fill  = k / (k + half), as the profile or the stack says
    waves = best over tile shapes of  tile_efficiency · (m·n) / (tile area · sm_count · ceil(tiles / sm_count))

Large products of today's GPUs cost more power than their boards may draw, and clocks sink until they do not. They sink
for all: the limit is kept over many milliseconds, a product lasts less than one, so what its shape wastes comes on top.

Rows in memory that are no multiple of 128 bytes waste part of what memory delivers, of 16 bytes most of it
(`alignment`). How long a row is counts, not how many there are: tensors are (tokens, width), so widths count and tokens
do not. Only in fp8, whose kernels sum along rows alone, has a weight gradient transposed operands with rows of tokens.

A CPU core fetches operands and multiplies in turn: there the two times add up, at `gemm_operand_bandwidth`.

Sources: He 2024, "Strangely, matrix multiplications on GPUs run faster when given predictable data" (power); NVIDIA,
Matrix Multiplication Background guide (tile and wave quantisation; alignment of the dimensions that vary fastest in
memory); cuBLAS, Tensor Core Usage (the same for each transposition); Williams et al. 2009 (roofline). Leaves out
split-k, L2 locality and how energy per FLOP falls with clocks; the profile's efficiency averages over them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.arrays import Array
from cost_models.compute.device import Device


def gemm_seconds(
    m: Array, n: Array, k: Array, device: Device, batch: Array | float = 1.0, *, over_rows: bool = False
) -> Array:
    """Seconds of `batch` products (m, k) × (k, n) in one kernel; all broadcast against one another.

    `over_rows`: the product is a weight's gradient, of (k, m) transposed and (k, n), so that k counts rows.
    """
    flops = 2.0 * m * n * k * batch
    half = device.profile.gemm_k_half if device.gemm_half is None else device.gemm_half
    fill = k / (k + half)
    share = fill * _tile_utilisation(m, n, batch, device)
    widths = [n, m if over_rows else k]
    if over_rows and device.operand_bytes < device.element_bytes:
        widths.append(k)
    best = min(device.peak * device.sustained, device.power_rate)
    reached = device.profile.gemm_efficiency * (device.profile.gemm_settled or 1.0)
    rate = reached * best * share * _alignment(widths, device)
    traffic = ((m * k + k * n) * device.operand_bytes + m * n * device.element_bytes) * batch
    if operand_bandwidth := device.profile.gemm_operand_bandwidth:
        return np.maximum(device.profile.kernel_seconds, flops / rate + traffic / operand_bandwidth)
    return np.maximum(device.profile.kernel_seconds, np.maximum(flops / rate, traffic / device.memory_rate))


def _tile_utilisation(m: Array, n: Array, batch: Array | float, device: Device) -> Array:
    """Share of the tile slots that hold useful output, for the best tile shape; 1 on a device without waves."""
    if device.sm_count == 1:
        return np.ones(np.broadcast(m, n, batch).shape)
    best: Array = np.zeros(np.broadcast(m, n, batch).shape)
    useful = batch * m * n / device.sm_count
    for tile in device.profile.gemm_tiles:
        tiles = batch * np.ceil(m / tile.rows) * np.ceil(n / tile.columns)
        waves = np.ceil(tiles / device.sm_count)
        best = np.maximum(best, useful * (tile.efficiency / (tile.rows * tile.columns)) / waves)
    return best


_WHOLE_ROW = 128
_ALIGNED = {_WHOLE_ROW: 1.0, 64: 0.9, 32: 0.8, 16: 0.68}
"""Bytes that a row's length is a multiple of → share of the rate."""
_MISALIGNED = 0.15
"""Share where tensor cores cannot be fed in whole 16 bytes.

Both follow NVIDIA's guide in kind and BigScience's 2022 chronicles in size: widths of 14400 against 13824 on eight
ranks, heads of 108 against 144.
"""
_SHARE_BY_DIVISOR = np.array([_ALIGNED.get(divisor, _MISALIGNED) for divisor in range(_WHOLE_ROW + 1)])


def _alignment(widths: Sequence[Array], device: Device) -> Array:
    """Share of the rate that the least aligned width of a row leaves; 1 where there are no tiles."""
    least: Array = np.ones(np.broadcast(*widths).shape)
    for width in widths if device.sm_count > 1 and device.tensor_cores else ():
        row_bytes = np.ceil(np.asarray(width) * device.operand_bytes).astype(np.int64)
        least = np.minimum(least, _SHARE_BY_DIVISOR[np.gcd(row_bytes, _WHOLE_ROW)])
    return least
