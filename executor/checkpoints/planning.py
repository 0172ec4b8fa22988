"""Plans who writes and who reads what: planners of `torch.distributed.checkpoint` for contents in boxes.

Torch's own planners know whole tensors and `DTensor`s; a share of a flat buffer is neither. Everything else is theirs:
of replicas one rank writes, what is to be written is checked to cover every tensor without overlap, and reads are
planned by intersecting boxes, which is what resharding is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from executor.checkpoints.boxes import Box
from executor.checkpoints.contents import Contents, Held


class MissingError(Exception):
    """The checkpoint lacks something this rank needs; the message names it."""


class SavePieces(DefaultSavePlanner):
    """Plans to write every piece of this rank as one item."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """Plan to write all that this rank holds; of what several hold, torch later leaves all but one out."""
        self.plan = SavePlan(
            [
                _write_item(name, held, index)
                for name, held in self.state_dict.items()
                for index in range(len(held.pieces))
            ]
        )
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """The values of one item."""
        held: Held = self.state_dict[write_item.index.fqn]
        for piece in held.pieces:
            if piece.box.offsets == tuple(write_item.index.offset or ()):
                return piece.tensor
        raise AssertionError(f"{write_item.index} is not here")


class LoadPieces(LoadPlanner):
    """Reads the saved boxes that overlap with this rank's pieces.

    `substitutes` maps a name to the one to read where the checkpoint lacks it. A tensor may have grown or shrunk along
    its first dim since it was saved (a vocabulary padded for other tensor ranks): rows that were not saved stay as
    they are.
    """

    def __init__(self, substitutes: dict[str, str]) -> None:
        self.substitutes = substitutes
        self.contents: Contents = {}
        self.metadata: Metadata | None = None

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Called by torch with what is to be filled and what was saved."""
        self.contents, self.metadata = state_dict, metadata

    def create_local_plan(self) -> LoadPlan:
        """Plan what this rank reads. Raises MissingError where a tensor is missing or has another shape."""
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, held in self.contents.items():
            saved = (
                self.substitutes.get(name, name) if name not in self.metadata.state_dict_metadata else name
            )
            found = self.metadata.state_dict_metadata.get(saved)
            if not isinstance(found, TensorStorageMetadata):
                raise MissingError(f"it has no `{name}`")
            _require_same_rows(name, held, found)
            for item in create_read_items_for_chunk_list(
                saved, found, [_chunk(piece.box) for piece in held.pieces]
            ):
                destination = dataclasses.replace(item.dest_index, fqn=name)
                items.append(dataclasses.replace(item, dest_index=destination))
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Every rank reads for itself."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Nothing is left to decide."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Checkpoints hold tensors only: bytes would have to be unpickled."""
        raise AssertionError("a checkpoint holds tensors only")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The part of a piece that one read fills."""
        index = read_item.dest_index.index
        assert index is not None
        target = self.contents[read_item.dest_index.fqn].pieces[index].tensor
        for dim, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            target = target.narrow(dim, offset, length)
        return target

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """It was written in place."""


def _write_item(name: str, held: Held, index: int) -> WriteItem:
    piece = held.pieces[index]
    return WriteItem(
        index=MetadataIndex(name, piece.box.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=_chunk(piece.box),
            properties=TensorProperties(dtype=held.dtype),
            size=torch.Size(held.shape),
        ),
    )


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(offsets=torch.Size(box.offsets), sizes=torch.Size(box.sizes))


def _require_same_rows(name: str, held: Held, saved: TensorStorageMetadata) -> None:
    if tuple(saved.size)[1:] != held.shape[1:] or len(saved.size) != len(held.shape):
        raise MissingError(f"its `{name}` is {tuple(saved.size)}; the model's is {held.shape}")
