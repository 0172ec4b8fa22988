"""Host time of a transformer block so small that nothing else counts: modules, dispatch, autograd, DTensor."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cost_models.calibration.measurements import Measurement
from cost_models.specs.transformer import TransformerSpec
from executor.apply.tensor import split_tensors
from executor.microbenchmarks.scale import Scale
from executor.microbenchmarks.stopwatch import Stopwatch, Timing
from executor.models.transformer import Transformer

_BLOCKS, _SEQUENCE, _HIDDEN, _HEADS = 4, 16, 32, 2
_CLOCK_SECONDS = 1e-9
_REPEATS = 12
"""Fixed, because split blocks communicate and must run equally often on every process."""


def host_overhead(watch: Stopwatch, scale: Scale, world: int) -> Iterator[Measurement]:
    """The executor's own blocks on plain tensors and, with two processes or more, split in two by DTensor.

    In the training precision, which decides on kernels and so on how many there are to launch.
    """
    yield from _block_passes(watch, "block", _blocks(watch.device, scale.dtype))
    if world >= _HEADS:
        mesh = _pairs(watch.device, world)
        for name, sequence_parallel in (("tensor-parallel", False), ("sequence-parallel", True)):
            blocks = _blocks(watch.device, scale.dtype)
            split_tensors(blocks, mesh, sequence_parallel=sequence_parallel)
            share = _HEADS if sequence_parallel else 1
            yield from _block_passes(watch, f"block.{name}", blocks, _SEQUENCE // share)


def _blocks(device: torch.device, dtype: torch.dtype) -> Transformer:
    """A slice of a tiny GPT without its ends."""
    spec = TransformerSpec(
        num_layers=_BLOCKS,
        hidden_size=_HIDDEN,
        num_heads=_HEADS,
        num_kv_heads=_HEADS,
        head_dim=_HIDDEN // _HEADS,
        ffn_hidden_size=4 * _HIDDEN,
        vocab_size=_HIDDEN,
    )
    return Transformer(spec, vocabulary=_HIDDEN, has_embedding=False, has_head=False).to(device, dtype)


def _pairs(device: torch.device, world: int) -> DeviceMesh:
    """Pairs of neighbouring ranks; every rank of an even world is in one."""
    mesh = init_device_mesh(device.type, (world // _HEADS, _HEADS), mesh_dim_names=("dp", "tp"))
    return mesh["tp"]


def _block_passes(
    watch: Stopwatch, name: str, blocks: nn.Module, sequence: int = _SEQUENCE
) -> Iterator[Measurement]:
    """Forward alone, then forward and backward; backward is their difference."""
    dtype = next(blocks.parameters()).dtype
    x_BSD = torch.randn(1, sequence, _HIDDEN, device=watch.device, dtype=dtype, requires_grad=True)
    gradient = torch.ones_like(x_BSD)

    def forward_backward() -> None:
        blocks(x_BSD).backward(gradient)

    forward_backward()
    forward, both = watch.host(lambda: blocks(x_BSD), _REPEATS), watch.host(forward_backward, _REPEATS)
    backward = Timing(seconds=both.seconds - forward.seconds, quiet=both.quiet - forward.quiet)
    for direction, timing in (("forward", forward), ("backward", backward)):
        yield Measurement(
            kind="host",
            name=f"{name}.{direction}",
            shape=(_SEQUENCE, _HIDDEN, _HEADS),
            size=1.0,
            seconds=max(timing.seconds, _CLOCK_SECONDS) / _BLOCKS,
            quiet_seconds=max(timing.quiet, _CLOCK_SECONDS) / _BLOCKS,
        )
