"""Offload on one rank: the link to host memory, where each block lives, and the objects that move and update it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import PARKED, RESIDENT, STREAMED, residency_of_blocks
from cost_models.axes.offload.window import Turn, turns_of_rank
from executor.axes.data import FlatParameters
from executor.axes.offload.activations import Attic
from executor.axes.offload.blocks import HostPart, Make, ParkedStates, ShardedBlock, StatesOnHost
from executor.axes.offload.drive import Drive
from executor.axes.offload.link import HostLink, Staging, threads_for_updates
from executor.axes.offload.states import Parking
from executor.axes.offload.streaming import StreamedBlock, Window
from executor.models.transformer import Transformer
from executor.timing import Passes


class Offloading:
    """What of this rank's blocks is in host memory."""

    def __init__(
        self,
        layout: Layout,
        stages: list[int],
        device: torch.device,
        dtype: torch.dtype,
        microbatches: int,
        folder: Path | None = None,
    ) -> None:
        """`folder` is where the drive is; None: where temporary files are."""
        self.layout, self.microbatches = layout, microbatches
        self._stages = stages
        self.lives = residency_of_blocks(layout, stages)
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", layout.num_gpus))
        self.link = HostLink(device, threads_for_updates(device, ranks))
        self._incoming, self._outgoing = Staging(self.link, torch.float32), Staging(self.link, dtype)
        self.drive = Drive(folder, self.link) if layout.offload.drive else None
        self._attic = Attic(self.link)
        self._on_host: dict[int, list[StatesOnHost]] = {}
        """By block."""
        self._at_once = True
        self._parkings: list[Parking] = []
        self._window: Window | None = None
        self.sharded: list[ShardedBlock] = []

    @contextmanager
    def step(self) -> Iterator[None]:
        """All passes of a step are inside."""
        if self._window is None:
            yield
            return
        self._window.begin()
        yield
        self._window.end()

    def move_what_stays(self, part: Transformer) -> None:
        """Bring a slice that was made on the host to the device, but for its streamed blocks; in place."""
        for name, module in (*part.blocks.items(), *part.named_children()):
            if module is not part.blocks and name not in self.streamed(part):
                module.to(self.link.device)

    def apply(self, part: Transformer) -> None:
        """Have a slice's blocks keep their activations where the layout says; after what recomputes."""
        if self.layout.offload.activations:
            self._attic.offload(part.blocks.values())

    def streamed(self, part: Transformer) -> list[str]:
        """Names of a slice's streamed blocks."""
        return [name for name in part.blocks if self.lives[int(name)] == STREAMED]

    def blocks(self, parts: Sequence[Transformer]) -> dict[int, int]:
        """id of each parameter of a block that is not wholly on the device → the block."""
        return {
            id(parameter): int(name)
            for part in parts
            for name, block in part.blocks.items()
            if self.lives[int(name)] != RESIDENT
            for parameter in block.parameters()
        }

    def flat(
        self, block: int, parameters: Sequence[nn.Parameter], *where: Any, at_once: bool, **how: Any
    ) -> FlatParameters:
        """The flat buffers of a block's parameters that the same ranks hold."""
        self._at_once = at_once
        lives = self.lives[block]
        if lives == PARKED:
            parked = ParkedStates(parameters, *where, link=self.link.of(block), **how)
            self._parkings.append(parked.parking)
            return parked
        host = HostPart(
            link=self.link.of(block),
            at_once=at_once,
            incoming=self._incoming,
            outgoing=self._outgoing,
            drive=self.drive,
        )
        kind = StreamedBlock if lives == STREAMED else StatesOnHost
        made = kind(parameters, *where, host=host, **how)
        self._on_host.setdefault(block, []).append(made)
        return made

    def shards(self, block: int, parameters: Sequence[nn.Parameter], make: Make) -> ShardedBlock:
        """The update of a block's parameters of one kind."""
        sharded = ShardedBlock(parameters, self.lives[block], make, self.link.of(block), self.drive)
        if sharded.parking is not None:
            self._parkings.append(sharded.parking)
        self.sharded.append(sharded)
        return sharded

    def connect(self, parts: Sequence[Transformer], passes: Passes) -> None:
        """Have what was made work as blocks run; call it once, last."""
        for parking, following in pairwise(self._parkings):
            parking.following = following
        if self._on_host:
            modules = {int(name): block for part in parts for name, block in part.blocks.items()}
            self._window = Window(self.turns(), modules, self._on_host, passes)

    def turns(self) -> list[Turn]:
        """What this rank does in a step, pass by pass."""
        return turns_of_rank(self.layout, self._stages, self.microbatches, at_once=self._at_once)

    def host_tensors(self) -> Iterator[Tensor]:
        """All that lies in host memory now."""
        yield from self.link.held
        for flats in self._on_host.values():
            for flat in flats:
                yield from flat.host_tensors()
        for block in self.sharded:
            yield from block.host_tensors()

    def drive_tensors(self) -> list[Tensor]:
        """All that lies on the drive."""
        return [] if self.drive is None else self.drive.tensors

    def host_parameters(self) -> set[int]:
        """ids of sharded parameters that are in host memory themselves."""
        return {id(one) for block in self.sharded if block.lives == STREAMED for one in block.parameters}
