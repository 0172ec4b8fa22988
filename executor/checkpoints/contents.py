"""A rank's part of the training state: named tensors in boxes; and the plan of who writes and who reads which box.

A box is axis-aligned and one run of memory. A share of a flat buffer cuts parameters anywhere, so its part of a matrix
is the end of a row, whole rows and the beginning of a row: at most 2·dims − 1 boxes.

Planners are those of `torch.distributed.checkpoint`, whose own know whole tensors and `DTensor`s only. Everything else
is torch's: of replicas one rank writes, writes must cover every tensor without overlap, and reads intersect boxes,
which is what resharding is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list


@dataclass(frozen=True, slots=True)
class Box:
    """`sizes` elements from `offsets` on, along every dim."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements the box holds; a scalar is one."""
        return prod(self.sizes)

    def moved(self, by: tuple[int, ...]) -> Box:
        """The same box in a tensor in which this one's tensor begins at `by`."""
        offsets = tuple(offset + shift for offset, shift in zip(self.offsets, by, strict=True))
        return Box(offsets, self.sizes)


def boxes_of_range(shape: tuple[int, ...], begin: int, end: int) -> list[Box]:
    """Elements `begin` to `end` − 1 of a tensor of `shape`, row by row, as boxes in their order in memory."""
    if begin >= end:
        return []
    if not shape:
        return [Box((), ())]
    row = prod(shape[1:])
    first, last = begin // row, end // row  # the row `begin` is in, and the row that `end` does not complete
    if begin == first * row and end == last * row:
        return [Box((first,) + (0,) * (len(shape) - 1), (last - first, *shape[1:]))]
    if first == last:
        return _inside_row(shape, first, begin - first * row, end - first * row)
    boxes = []
    if begin > first * row:
        boxes += _inside_row(shape, first, begin - first * row, row)
        first += 1
    boxes += boxes_of_range(shape, first * row, last * row)
    return boxes + _inside_row(shape, last, 0, end - last * row)


def _inside_row(shape: tuple[int, ...], row: int, begin: int, end: int) -> list[Box]:
    return [Box((row, *box.offsets), (1, *box.sizes)) for box in boxes_of_range(shape[1:], begin, end)]


@dataclass(frozen=True, slots=True)
class Piece:
    """One box of a tensor and its values here: `tensor` has the box's sizes."""

    box: Box
    tensor: Tensor


@dataclass(slots=True)
class Held:
    """This rank's pieces of one named tensor of `shape`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: list[Piece] = field(default_factory=list)

    def staged(self) -> Held:
        """A copy in host memory, which training does not change."""
        pieces = [Piece(piece.box, piece.tensor.detach().to("cpu", copy=True)) for piece in self.pieces]
        return Held(self.shape, self.dtype, pieces)


Contents = dict[str, Held]


def whole(tensor: Tensor) -> Held:
    """The entry of a tensor that is whole on this rank."""
    box = Box((0,) * tensor.dim(), tuple(tensor.shape))
    return Held(tuple(tensor.shape), tensor.dtype, [Piece(box, tensor.detach())])


class SavePieces(DefaultSavePlanner):
    """Plans to write every piece of this rank as one item."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """Plan to write all pieces of this rank; torch later drops replicas."""
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


class LoadPieces(DefaultLoadPlanner):
    """Reads the saved boxes that overlap with this rank's pieces.

    `substitutes` maps a name to the one to read where the checkpoint lacks it. A tensor may have grown or shrunk along
    its first dim since it was saved (a vocabulary padded for other tensor ranks): rows that were not saved stay as
    they are.
    """

    def __init__(self, substitutes: dict[str, str]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.substitutes = substitutes
        self.contents: Contents = {}
        self.metadata: Metadata | None = None

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Take the contents to fill and the metadata of the checkpoint, from torch."""
        self.contents, self.metadata = state_dict, metadata

    def create_local_plan(self) -> LoadPlan:
        """Plan what this rank reads of a checkpoint that has it (`executor.checkpoints.verifying`)."""
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, held in self.contents.items():
            saved = (
                self.substitutes.get(name, name) if name not in self.metadata.state_dict_metadata else name
            )
            found = self.metadata.state_dict_metadata.get(saved)
            assert isinstance(found, TensorStorageMetadata)
            for item in create_read_items_for_chunk_list(
                saved, found, [_chunk(piece.box) for piece in held.pieces]
            ):
                destination = dataclasses.replace(item.dest_index, fqn=name)
                items.append(dataclasses.replace(item, dest_index=destination))
        return LoadPlan(items)

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
