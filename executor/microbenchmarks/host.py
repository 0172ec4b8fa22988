"""Host time of a transformer block so small that nothing else counts: modules, dispatch, autograd, DTensor.

Shape legend: B batch, S sequence, D model, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cost_models.calibration.measurements import Measurement
from executor.microbenchmarks.stopwatch import Stopwatch, Timing

_BLOCKS, _SEQUENCE, _HIDDEN, _HEADS = 4, 16, 32, 2


class _Block(nn.Module):
    """A plain pre-norm block: the operators of GPT-2 without its sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(_HIDDEN), nn.LayerNorm(_HIDDEN)
        self.query, self.key, self.value = (nn.Linear(_HIDDEN, _HIDDEN) for _ in range(3))
        self.projection = nn.Linear(_HIDDEN, _HIDDEN)
        self.up, self.down = nn.Linear(_HIDDEN, 4 * _HIDDEN), nn.Linear(4 * _HIDDEN, _HIDDEN)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        normed = self.attention_norm(x_BSD)
        q, k, v = (
            layer(normed).unflatten(-1, (-1, _HIDDEN // _HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed_BHSK = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BSD = x_BSD + self.projection(mixed_BHSK.transpose(1, 2).flatten(-2))
        mlp: torch.Tensor = self.down(F.gelu(self.up(self.mlp_norm(x_BSD))))
        return x_BSD + mlp


def host_overhead(watch: Stopwatch, world: int) -> Iterator[Measurement]:
    """A block's passes on plain tensors and, with two processes or more, on DTensors split in two."""
    yield from _block_passes(watch, "block", nn.Sequential(*(_Block() for _ in range(_BLOCKS))))
    if world >= _HEADS:
        yield from _block_passes(watch, "block.tensor-parallel", _split(watch.device, world))


def _split(device: torch.device, world: int) -> nn.Module:
    """The same blocks, split Megatron's way over pairs of ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.type, (world // _HEADS, _HEADS), mesh_dim_names=("dp", "tp"))["tp"]
    column, row = ColwiseParallel(), RowwiseParallel()
    plan = {"query": column, "key": column, "value": column, "projection": row, "up": column, "down": row}
    return nn.Sequential(*(parallelize_module(_Block(), mesh, plan) for _ in range(_BLOCKS)))


def _block_passes(watch: Stopwatch, name: str, blocks: nn.Module) -> Iterator[Measurement]:
    """Forward alone, then forward and backward; backward is their difference."""
    blocks.to(watch.device)
    x_BSD = torch.randn(1, _SEQUENCE, _HIDDEN, device=watch.device)

    def forward_backward() -> None:
        blocks(x_BSD).sum().backward()

    forward_backward()
    forward, both = watch.host(lambda: blocks(x_BSD)), watch.host(forward_backward)
    backward = Timing(quiet=both.quiet - forward.quiet, median=both.median - forward.median)
    for direction, timing in (("forward", forward), ("backward", backward)):
        yield Measurement(
            kind="host",
            name=f"{name}.{direction}",
            shape=(_SEQUENCE, _HIDDEN, _HEADS),
            size=1.0,
            seconds=max(timing.quiet, 0.0) / _BLOCKS,
            median_seconds=max(timing.median, 0.0) / _BLOCKS,
        )
