"""Overlap of communication with compute: of data-parallel ranks (`overlap=dp`) and of tensor ranks (`overlap=tp`).

dp: ZeRO-0 and 1 reduce the gradients of a block as soon as they are complete, and gather its updated weights until the
next forward pass needs them. Each block has a flat buffer. Once the last microbatch has left its gradients there, they
are reduced while earlier blocks still run backward. All ranks start these collectives in one order, on process groups
of their own, so that those of the pass itself are never queued behind them. Groups of replicas add up what each has
reduced, in the same order of blocks, over a group that the pass does not use.

tp: torch's compiler (`torch/_inductor/fx_passes/micro_pipeline_tp.py`) cuts an all-gather and the product of what it
gathers, or a product and the reduce-scatter of its sum, into a chunk for each rank: one is in flight while another is
multiplied. Chunks go through memory that GPUs of a node map into one another (`torch.distributed._symmetric_memory`),
so it needs GPUs, NCCL and compiled blocks. Options go with each compilation; nothing is set for the whole process.

pp: `executor.axes.pipeline` posts sends and receives ahead.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from cost_models.axes.layout import Layout
from cost_models.errors import HostError
from executor.axes.axis import Axis, Bucket, Rank
from executor.axes.data import Copies, FlatParameters
from executor.mesh import group_beside
from executor.models.transformer import Transformer


def inside_products(layout: Layout) -> bool:
    """Whether collectives of tensor-parallel ranks run inside the matrix products around them (`overlap=tp`)."""
    return "tp" in (layout.overlap or ())


def posts_ahead(layout: Layout) -> bool:
    """Whether a pipeline posts sends and receives before the action that comes next (`overlap=pp`)."""
    return "pp" in (layout.overlap or ())


class BlockBehindCompute(FlatParameters):
    """Flat buffers of a block whose collectives start early and run behind the passes of other blocks."""

    def __init__(
        self, *arguments: Any, microbatches: int, on_complete: Callable[[], None], **options: Any
    ) -> None:
        """`on_complete` is called when every microbatch of a step has left its gradients in the buffer."""
        self._microbatches, self._on_complete = microbatches, on_complete
        self._works: dict[str, dist.Work | None] = {}
        """Collectives in flight: `reduce`, `add` over groups of replicas, `gather`."""
        super().__init__(*arguments, **options)
        self.missing = microbatches * len(self.parameters)
        """Number of gradients of the step that the buffer still waits for, one for each parameter and microbatch."""

    @property
    def is_reduced(self) -> bool:
        """Whether the reduction that was started is known to be done; always False on GPUs.

        There ranks would start the next collective at different times, and NCCL wants one order over all groups; it
        follows when the pass is over.
        """
        work = self._works.get("reduce")
        return not self.gradients.is_cuda and (work is None or work.is_completed())

    def start_reduce(self) -> None:
        """Start summing gradients over the ranks that ZeRO shards over, asynchronously."""
        assert "reduce" not in self._works
        self._works["reduce"] = self.reduce_group(async_op=True)

    def start_adding(self) -> None:
        """Start summing reduced gradients over groups of replicas, asynchronously."""
        if self.copies is not None:
            self._wait("reduce")
            self._works["add"] = dist.all_reduce(self.share_gradient, group=self.copies, async_op=True)

    def reduce(self) -> None:
        """Wait for the reductions that were started, and average the sum."""
        self._wait("reduce")
        self._wait("add")
        if self.mean_over > 1:
            self.share_gradient.div_(self.mean_over)

    def finish_update(self) -> None:
        """Update this rank's share, begin to gather the shares of all ranks, and expect the next step's gradients."""
        super().finish_update()
        self.missing = self._microbatches * len(self.parameters)

    def spread(self) -> None:
        """Write this rank's share into the weights and begin to gather the shares of all ranks."""
        self.arrive()
        self.write_share()
        self._works["gather"] = self.gather_group(async_op=True)

    def arrive(self) -> None:
        """Wait until the weights of all shares are gathered."""
        self._wait("gather")

    def _wait(self, name: str) -> None:
        """Wait for the collective in flight of this name, if there is one."""
        if (work := self._works.pop(name, None)) is not None:
            work.wait()

    def _accumulate(self, parameter: nn.Parameter) -> None:
        """Add a gradient to the buffer, and start the reductions that are due once the buffer is complete."""
        assert "reduce" not in self._works, "a gradient came after all were there"
        super()._accumulate(parameter)
        self.missing -= 1
        if not self.missing:
            self._on_complete()


class OverlapAxis(Axis):
    """Overlap on one rank: the buffers whose collectives run behind compute, their order and their process groups."""

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        """Whether a layout overlaps any communication with compute."""
        return bool(layout.overlap)

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self._of_data = "dp" in (rank.layout.overlap or ())
        self._flats: list[BlockBehindCompute] = []
        """Buffers in the order of their reductions on all ranks, the usual order in which backward passes end."""
        self.started = 0
        """Number of reductions started in this step."""
        self._added = 0
        """Number of reductions whose sum over groups of replicas has started in this step."""

    def compile_options(self) -> dict[str, Any]:
        """Options with which torch's compiler puts collectives of tensor ranks inside products, for `overlap=tp`."""
        mesh, device = self.rank.mesh, self.rank.device
        inside = inside_products(self.rank.layout)
        return options_inside_products(mesh["tp"].get_group(), device) if inside else {}

    def parts_made(self) -> None:
        """For `overlap=dp`, make process groups that passes do not use, and note parameters that stages share."""
        if self._of_data:
            experts = self.rank.experts
            self._group = group_beside(self.rank.mesh, "shard")
            self._of_experts = None if experts is None else group_beside(experts, "shard")
            self._late = {id(one) for held in self.rank.copies.values() for one in held.values()}

    def buckets(self) -> dict[int, Bucket]:
        """Bucket of each parameter, by id, for `overlap=dp`: its block, embedding or head."""
        if not self._of_data:
            return {}
        return {id(one): bucket for part in self.rank.parts for bucket, one in _buckets(part)}

    def buffer(
        self, bucket: Bucket, parameters: Sequence[nn.Parameter], copies: Copies, *, routed: bool, **how: Any
    ) -> FlatParameters | None:
        """Buffer whose reduction overlaps; None for parameters to whose gradients other pipeline stages add."""
        if not self._of_data or self._late.intersection(map(id, parameters)):
            return None
        group = self._of_experts if routed else self._group
        assert group is not None
        how |= {"microbatches": self.rank.share.microbatches, "on_complete": self._start_due}
        flat = BlockBehindCompute(parameters, replace(copies, shard=group), **how)
        self._flats.insert(0, flat)
        return flat

    def connect(self) -> None:
        """Have every part of the model wait for its weights."""
        for part in self.rank.parts if self._of_data else ():
            needed: defaultdict[str, set[BlockBehindCompute]] = defaultdict(set)
            for bucket, parameter in _buckets(part):
                needed[bucket] |= {flat for flat in self._flats if flat.contains(parameter)}
            part.on_part = partial(_await_weights, needed)

    def _start_due(self) -> None:
        """Start every reduction whose buffer is complete and whose predecessors have started."""
        while self.started < len(self._flats) and not self._flats[self.started].missing:
            self._flats[self.started].start_reduce()
            self.started += 1
        while self._added < self.started and self._flats[self._added].is_reduced:
            self._flats[self._added].start_adding()
            self._added += 1

    def before_reduce(self) -> None:
        """Start the remaining reductions, also of buffers without all gradients, as of an expert that got no token."""
        for flat in self._flats[self.started :]:
            flat.start_reduce()
        for flat in self._flats[self._added :]:
            flat.start_adding()
        self.started = self._added = 0

    def arrive(self) -> None:
        """Wait until all buffers' weights are gathered, before anything but the model reads them."""
        for flat in self._flats:
            flat.arrive()


def _await_weights(flats: Mapping[str, Iterable[BlockBehindCompute]], bucket: str) -> None:
    """Wait until the weights of a block, embedding or head are gathered in its flat buffers."""
    for flat in flats[bucket]:
        flat.arrive()


def _buckets(part: Transformer) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield, for each parameter of a model slice, the name of its block (or embedding or head), and the parameter."""
    for name, parameter in part.named_parameters(remove_duplicate=False):
        first, layer, *_ = name.split(".")
        end = "embedding" if first == "embedding" else "head"
        yield f"blocks.{layer}" if first == "blocks" else end, parameter


def options_inside_products(group: dist.ProcessGroup, device: torch.device) -> dict[str, Any]:
    """Options of torch's inductor for graphs whose tensors are split over the ranks of `group`.

    Raises:
        HostError: the device has no symmetric memory.
    """
    if device.type != "cuda" or not dist.is_nccl_available():
        raise HostError(
            "`overlap=tp` sends through the symmetric memory of GPUs, which this device has not",
            hint="leave `tp` out of `overlap`",
        )
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    with warnings.catch_warnings():  # the compiler asks for it, though torch 2.13 calls it deprecated
        warnings.simplefilter("ignore", FutureWarning)
        enable_symm_mem_for_group(group.group_name)
    return {"_micro_pipeline_tp": True}
