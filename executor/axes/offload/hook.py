"""Offload on one rank: the link to host memory, where each block lives, and the objects that move and update it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, Layout
from cost_models.axes.offload.channels import channel_seconds
from cost_models.axes.offload.residency import (
    drive_step_bytes,
    residency_of_blocks,
    turns_of_rank,
)
from executor.axes.axis import Axis, Bucket, Make, Rank
from executor.axes.flat_parameters import Copies, FlatParameters
from executor.axes.offload.activations import ActivationPool
from executor.axes.offload.blocks import HostPart, ParkedStates, Parking, ShardedBlock, StatesOnHost
from executor.axes.offload.drive import Drive
from executor.axes.offload.link import HostLink, Staging, Traffic, threads_for_updates
from executor.axes.offload.reporting import DriveReport, HostReport
from executor.axes.offload.streaming import StreamedBlock, Window
from executor.mesh import local
from executor.models.transformer import Transformer
from executor.timing import Carried


class OffloadAxis(Axis):
    """Keeps states, weights or activations of this rank's blocks in host memory or on the drive."""

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        return layout.offload != NOWHERE

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        layout = self.layout = rank.layout
        self.lives = residency_of_blocks(layout, rank.stages)
        self._ranks_here = min(layout.num_gpus, rank.plan.question.cluster.gpus_per_node)
        started = int(os.environ.get("LOCAL_WORLD_SIZE", self._ranks_here))
        self.link = HostLink(rank.device, threads_for_updates(rank.device, started))
        self.drive = Drive(rank.options.drive, self.link) if layout.offload.drive else None
        self._host = HostPart(
            link=self.link,
            at_once=rank.options.clip is None,
            incoming=Staging(self.link, torch.float32),
            outgoing=Staging(self.link, rank.dtype),
            drive=self.drive,
        )
        self._pool = ActivationPool(self.link)
        self._on_host: dict[int, list[StatesOnHost]] = {}
        """By block."""
        self._parkings: list[Parking] = []
        self._window: Window | None = None
        self.sharded: list[ShardedBlock] = []
        self._steps: list[Traffic] = []

    def apply(self, part: Transformer, stage: int) -> None:
        """Have a slice's blocks keep their activations where the layout says; after what recomputes."""
        if self.layout.offload.activations:
            self._pool.offload(part.blocks.values())

    def on_host(self, part: Transformer) -> list[str]:
        """Names of a slice's streamed blocks."""
        return [name for name in part.blocks if self.lives[int(name)] == "streamed"]

    def buckets(self) -> dict[int, Bucket]:
        return {
            id(parameter): int(name)
            for part in self.rank.parts
            for name, block in part.blocks.items()
            if self.lives[int(name)] != "resident"
            for parameter in block.parameters()
        }

    def buffer(
        self, bucket: Bucket, parameters: Sequence[nn.Parameter], copies: Copies, *, routed: bool, **how: Any
    ) -> FlatParameters | None:
        if not isinstance(bucket, int):
            return None
        lives, link = self.lives[bucket], self.link.of(bucket)
        if lives == "parked":
            parked = ParkedStates(parameters, copies, link=link, **how)
            self._parkings.append(parked.parking)
            return parked
        kind = StreamedBlock if lives == "streamed" else StatesOnHost
        made = kind(parameters, copies, host=replace(self._host, link=link), **how)
        self._on_host.setdefault(bucket, []).append(made)
        return made

    def shards(self, bucket: Bucket, parameters: Sequence[nn.Parameter], make: Make) -> ShardedBlock:
        assert isinstance(bucket, int)
        sharded = ShardedBlock(parameters, self.lives[bucket], make, self.link.of(bucket), self.drive)
        if sharded.parking is not None:
            self._parkings.append(sharded.parking)
        self.sharded.append(sharded)
        return sharded

    def connect(self) -> None:
        for parking, following in pairwise(self._parkings):
            parking.following = following
        if self._on_host:
            modules = {int(name): block for part in self.rank.parts for name, block in part.blocks.items()}
            microbatches, at_once = self.rank.share.microbatches, self._host.at_once
            turns = turns_of_rank(self.layout, self.rank.stages, microbatches, at_once=at_once)
            self._window = Window(turns, modules, self._on_host, self.rank.passes)

    @contextmanager
    def step(self) -> Iterator[None]:
        if self._window is not None:
            self._window.begin()
        yield
        if self._window is not None:
            self._window.end()

    def host_tensors(self) -> Iterator[Tensor]:
        yield from self.link.held
        for flats in self._on_host.values():
            for flat in flats:
                yield from flat.host_tensors()
        for block in self.sharded:
            yield from block.host_tensors()

    def drive_tensors(self) -> list[Tensor]:
        return [] if self.drive is None else self.drive.tensors

    def host_parameters(self) -> set[int]:
        """ids of sharded parameters that are in host memory themselves."""
        return {id(one) for block in self.sharded if block.lives == "streamed" for one in block.parameters}

    def record(self, into: list[Carried] | None) -> None:
        self.link.record_into(into)

    def end_step(self) -> None:
        self._steps.append(self.link.taken())

    def forget(self) -> None:
        self.link.taken()
        self._steps.clear()

    def report(self, host_peak: int) -> dict[str, Any]:
        plan, columns = self.rank.plan, LayoutColumns.of([self.layout])
        ranks = self._ranks_here
        channels = channel_seconds(plan.question, columns)

        def steps(*same: str, **names: str) -> dict[str, Any]:
            """Fields of a report, the counts of the same name or another of each step."""
            pairs = [*zip(same, same, strict=True), *names.items()]
            return {name: tuple(getattr(step, count) for step in self._steps) for name, count in pairs}

        host = HostReport(
            peak_bytes=host_peak and host_peak + self._rounded_up(),
            predicted_bytes=(plan.prediction.host_bytes or 0.0) / ranks,
            predicted_copy_seconds=float(channels.copies[0]),
            predicted_update_seconds=float(channels.update[0]),
            **steps("down_bytes", "up_bytes", "copy_seconds", "update_seconds"),
        )
        if self.drive is None:
            return {"host": host}
        read, written = drive_step_bytes(plan.question, columns)
        drive = DriveReport(
            held_bytes=self.drive.stored_bytes,
            predicted_bytes=(plan.prediction.drive_bytes or 0.0) / ranks,
            predicted_read_bytes=float(read[0]),
            predicted_written_bytes=float(written[0]),
            predicted_seconds=float((channels.read + channels.write)[0]),
            **steps(
                read_bytes="drive_read_bytes", written_bytes="drive_written_bytes", seconds="drive_seconds"
            ),
        )
        return {"host": host, "drive": drive}

    def _rounded_up(self) -> int:
        """Bytes that torch's allocator of pinned memory has beyond the gradients of streamed shards, which it holds."""
        shards = [one for block in self.sharded if block.lives == "streamed" for one in block.parameters]
        if not shards or self.rank.device.type != "cuda":
            return 0
        held = sum(torch.float32.itemsize * local(one.detach()).numel() for one in shards)
        return max(0, int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)) - held)
