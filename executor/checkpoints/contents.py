"""The contents of a checkpoint: which rank saves which part of a tensor, and whether what was read is what was saved.

**Boxes.** A rank's part of the state is named tensors in boxes. A box is axis-aligned and one run of memory. A share of
a flat buffer cuts parameters anywhere, so its part of a matrix is the end of a row, whole rows and the beginning of a
row: at most 2·dims − 1 boxes.

Planners are those of `torch.distributed.checkpoint`, whose own know whole tensors and `DTensor`s only. Everything else
is torch's: of replicas one rank writes, writes must cover every tensor without overlap, and reads intersect boxes,
which is what resharding is. Of ranks that hold the same, each may read a part and send it to the others.

**Checks.** A checkpoint can be loaded if its files are what was written, its pieces cover every tensor and lie in the
files, and nothing that a run needs is missing. A manifest may have the right digest and still lie, where what wrote it
was wrong or a person has edited it.

**Storage** is a safetensors file of each rank and a JSON manifest. Torch's own file system storage keeps its metadata
as a pickle, and its safetensors storage holds one box of a tensor in each file and opens every file to learn what there
is; see docs/decisions/0013. Nothing here can run code on loading.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
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
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from executor.boxes import Box
from executor.checkpoints.manifest import (
    MANIFEST,
    Folder,
    Manifest,
    Progress,
    ReadingClock,
    RecommenderProgress,
    SavedFile,
    SavedPiece,
    SavedTensor,
    digest_of,
    dtype_name,
    write_manifest,
)

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


class _OneCheckpoint:
    """Methods of torch's storage classes that do nothing in an object that serves a single checkpoint."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Do nothing: this object serves no other checkpoint."""

    def prepare_local_plan(self, plan: Any) -> Any:
        """Return the plan unchanged: it does not depend on where files are."""
        return plan

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: torch never has to guess this storage class from a path."""
        return False


class PieceWriter(_OneCheckpoint, StorageWriter):
    """Writes one checkpoint: a file of each rank, then the manifest, then the rename that marks it complete."""

    def __init__(self, folder: Folder, progress: Progress | RecommenderProgress, keep: int) -> None:
        """Write a checkpoint with this progress into `folder`, where the newest `keep` checkpoints stay."""
        self.folder, self.progress, self.keep = folder, progress, keep
        self.size_bytes: int | None = None
        """Total bytes of all files, on the coordinator once they are written."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Make the folder, on the coordinator; other ranks write only after it has planned."""
        if is_coordinator:
            self.folder.begin(self.progress.step)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Give each rank's plan the number of its file."""
        return [replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file of the checkpoint. Raises OSError, as on a full disk."""
        written: Future[list[WriteResult]] = Future()
        written.set_result(self._write(plan, planner) if plan.items else [])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the manifest and rename the folder, on the coordinator, when every rank has written its file."""
        all_results = chain.from_iterable(results)
        written: dict[MetadataIndex, SavedFile] = {one.index: one.storage_data for one in all_results}
        files = sorted({file.name: file for file in written.values()}.values(), key=lambda file: file.name)
        place = {file.name: index for index, file in enumerate(files)}
        tensors: dict[str, SavedTensor] = {}
        for name, saved in metadata.state_dict_metadata.items():
            assert isinstance(saved, TensorStorageMetadata)
            pieces = []
            for chunk in saved.chunks:
                file = place[written[MetadataIndex(name, chunk.offsets)].name]
                offsets, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
                pieces.append(SavedPiece(offsets=offsets, sizes=sizes, file=file))
            dtype, shape = dtype_name(saved.properties.dtype), tuple(saved.size)
            tensors[name] = SavedTensor(dtype=dtype, shape=shape, pieces=tuple(pieces))
        manifest = Manifest(progress=self.progress, tensors=tensors, files=tuple(files))
        write_manifest(manifest, self.folder.partial(self.progress.step))
        self.size_bytes = sum(file.size_bytes for file in files)
        self.folder.commit(self.progress.step)
        self.folder.keep(self.keep)

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        """Write this rank's planned pieces into its file; returns a result for each with the file's size and digest."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        name = f"rank-{plan.storage_data:05}.safetensors"
        path = self.folder.partial(self.progress.step) / name
        tensors: dict[str, Tensor] = {}
        for item in plan.items:
            value = planner.resolve_data(item)
            assert isinstance(value, Tensor)
            tensors[_key(item.index)] = value.detach().cpu().contiguous()
        try:
            save_file(tensors, path)
        except SafetensorError as error:
            raise _system_error(error, path) from error
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
        file = SavedFile(name=name, size_bytes=path.stat().st_size, sha256=digest_of(path))
        return [
            WriteResult(index=item.index, size_in_bytes=tensors[_key(item.index)].nbytes, storage_data=file)
            for item in plan.items
        ]


class PieceReader(_OneCheckpoint, StorageReader):
    """Reads one checkpoint whose files are known to be intact."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path, self.manifest = path, manifest
        self._files = {
            MetadataIndex(name, piece.offsets): manifest.files[piece.file].name
            for name, tensor in manifest.tensors.items()
            for piece in tensor.pieces
        }

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The manifest as torch's metadata of a checkpoint."""

        def stored(tensor: SavedTensor) -> TensorStorageMetadata:
            """Torch's metadata of one saved tensor."""
            chunks = [_chunk(Box(piece.offsets, piece.sizes)) for piece in tensor.pieces]
            properties = TensorProperties(dtype=getattr(torch, tensor.dtype))
            return TensorStorageMetadata(properties, torch.Size(tensor.shape), chunks)

        return Metadata({name: stored(tensor) for name, tensor in self.manifest.tensors.items()})

    def set_up_storage_reader(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: the manifest says all that is needed."""

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged: each rank reads for itself."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the planned items: each file is opened once, and only the needed parts are read."""
        from safetensors import safe_open

        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._files[item.storage_index], []).append(item)
        for name, items in by_file.items():
            with safe_open(self.path / name, framework="pt") as stream:
                for item in items:
                    part = stream.get_slice(_key(item.storage_index))[_slices(item)]
                    target = planner.resolve_tensor(item)
                    target.copy_(part)
                    planner.commit_tensor(item, target)
        result: Future[None] = Future()
        result.set_result(None)
        return result


def key_of(name: str, offsets: Iterable[int]) -> str:
    """Name of a piece in its file: tensor name and offsets, as `weights.head.weight@0,64`."""
    return f"{name}@{','.join(map(str, offsets))}"


def _key(index: MetadataIndex) -> str:
    """Name in its file of the piece with this index."""
    return key_of(index.fqn, index.offset or ())


def _slices(item: ReadItem) -> tuple[slice, ...]:
    """Slices of a saved piece that one read item asks for."""
    ranges = zip(item.storage_offsets, item.lengths, strict=True)
    return tuple(slice(offset, offset + length) for offset, length in ranges)


def _system_error(error: Exception, path: Path) -> Exception:
    """The OSError behind a safetensors error, parsed from its message."""
    match = _SYSTEM_ERROR.search(str(error))
    if match is None:
        return error
    number = int(match[1])
    return OSError(number, os.strerror(number), str(path))


_SENT_BYTES = 1 << 26
"""Bytes of a tensor that are sent at a time, as data in host memory are copied to the device for it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One box of a tensor with its values on this rank; `tensor` has the box's sizes."""

    box: Box
    tensor: Tensor

    def rows_from(self, size: Sequence[int]) -> Piece | None:
        """Rows of this piece beyond the rows of a tensor of shape `size`; None if there are none."""
        if not size or (skipped := max(0, size[0] - self.box.offsets[0])) >= self.box.sizes[0]:
            return None
        offsets = (self.box.offsets[0] + skipped, *self.box.offsets[1:])
        sizes = (self.box.sizes[0] - skipped, *self.box.sizes[1:])
        return Piece(Box(offsets, sizes), self.tensor[skipped:])


@dataclass(slots=True)
class RankTensor:
    """This rank's pieces of one named tensor of `shape`."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: list[Piece] = field(default_factory=list)
    holders: dist.ProcessGroup | None = None
    """Ranks that hold the same pieces as this one; None if no other does."""

    def staged(self) -> RankTensor:
        """Copy of these pieces in host memory, which training does not change."""
        pieces = [Piece(piece.box, piece.tensor.detach().to("cpu", copy=True)) for piece in self.pieces]
        return RankTensor(self.shape, self.dtype, pieces)


Contents = dict[str, RankTensor]


def unsplit(tensor: Tensor, holders: dist.ProcessGroup | None = None) -> RankTensor:
    """Checkpoint entry of a tensor that is whole on this rank, and on all ranks of `holders`."""
    box = Box((0,) * tensor.dim(), tuple(tensor.shape))
    return RankTensor(tuple(tensor.shape), tensor.dtype, [Piece(box, tensor.detach())], holders)


class HostCopy(AsyncStager):
    """Copies the state to host memory at a save, which is all that training waits for."""

    _synchronize_after_execute = False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The contents of a checkpoint with all pieces copied to host memory."""
        return {name: held.staged() for name, held in state_dict.items()}

    def synchronize_staging(self) -> None:
        """Do nothing: `stage` returns after the copy is made."""

    def close(self) -> None:
        """Do nothing: no memory is kept between saves."""


class Saved(Protocol):
    """Interface of the training state of a run that a checkpoint saves and loads."""

    @property
    def device(self) -> torch.device:
        """Device on which the state is."""

    def contents(self) -> Contents:
        """Tensors of this rank that a checkpoint saves or fills; every rank calls it."""

    def substitutes(self, contents: Contents) -> dict[str, str]:
        """Names of tensors → names of tensors to load where a checkpoint lacks the former."""

    def make_anew(self, contents: Contents) -> None:
        """Set initial values of rows that this layout has but the checkpoint lacks, such as a vocabulary's padding."""

    def spread(self) -> None:
        """Copy loaded `contents` to all places that hold the same values; every rank calls it."""

    def reads_once(self, rate: float) -> bool:
        """Whether one rank should read and send what several hold, given that each rank reads `rate` bytes/s."""

    def progress(self, step: int, data: str) -> Progress | RecommenderProgress:
        """Progress of the run after `step` steps on this data, as checkpoints record it."""


class SavePieces(DefaultSavePlanner):
    """Save planner that writes every piece of this rank as one item."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """Plan to write all pieces of this rank; torch later drops pieces that another rank writes as well."""
        entries = self.state_dict.items()
        items = [_write_item(name, entry, piece) for name, entry in entries for piece in entry.pieces]
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """Values of the piece that one item writes."""
        entry: RankTensor = self.state_dict[write_item.index.fqn]
        for piece in entry.pieces:
            if piece.box.offsets == tuple(write_item.index.offset or ()):
                return piece.tensor
        raise AssertionError(f"{write_item.index} is not here")


class LoadPieces(DefaultLoadPlanner):
    """Load planner that reads the saved boxes that overlap with this rank's pieces.

    `substitutes` maps a name to the one to read where the checkpoint lacks it. A tensor may have grown or shrunk along
    its first dim since it was saved (a vocabulary padded for other tensor ranks): `padding_rows` has the rows that it
    has now and had not then. All else must be there, as nothing else gives it values. With `once` each item that
    several ranks want is read by one of them and sent by `send`; these ranks share the bytes equally.
    """

    def __init__(self, substitutes: dict[str, str], *, once: bool = False) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.substitutes, self.once = substitutes, once
        self._broadcasts: list[tuple[ReadItem, dist.ProcessGroup, int]] = []
        """Reads to broadcast: item, group of ranks that needs it, and the rank of the group that reads it."""
        self._dealt: dict[dist.ProcessGroup, list[int]] = {}
        """Bytes that each rank of a group reads for the whole group so far."""
        self.contents: Contents = {}
        self.padding_rows: Contents = {}
        self.metadata: Metadata | None = None

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Take from torch the contents to fill and the metadata of the checkpoint."""
        self.contents, self.metadata = state_dict, metadata

    def create_local_plan(self) -> LoadPlan:
        """Plan which parts of the saved pieces this rank reads; the checkpoint has all tensors that it needs."""
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, entry in self.contents.items():
            saved_tensors = self.metadata.state_dict_metadata
            saved = name if name in saved_tensors else self.substitutes.get(name, name)
            stored = saved_tensors.get(saved)
            assert isinstance(stored, TensorStorageMetadata)
            if padding_rows := [rows for part in entry.pieces if (rows := part.rows_from(stored.size))]:
                self.padding_rows[name] = RankTensor(entry.shape, entry.dtype, padding_rows)
            chunks = [_chunk(piece.box) for piece in entry.pieces]
            for item in create_read_items_for_chunk_list(saved, stored, chunks):
                item = replace(item, dest_index=replace(item.dest_index, fqn=name))
                if self._reads(item, entry):
                    items.append(item)
        return LoadPlan(items)

    def send(self, device: torch.device) -> None:
        """Broadcast items that one rank has read to the ranks that hold the same pieces. They go by way of a device;
        all ranks call it together.
        """
        for item, group, reader in self._broadcasts:
            target = self.resolve_tensor(item)
            rows = max(1, _SENT_BYTES * len(target) // max(1, target.nbytes)) if target.dim() else 0
            for part in torch.split(target, rows) if rows else [target]:
                message = part.to(device).contiguous()
                dist.broadcast(message, group=group, group_src=reader)
                if message is not part:
                    part.copy_(message)

    def _reads(self, item: ReadItem, entry: RankTensor) -> bool:
        """Whether this rank reads an item; ranks that hold the same pieces agree on one reader."""
        if not self.once or entry.holders is None:
            return True
        dealt = self._dealt.setdefault(entry.holders, [0] * dist.get_world_size(entry.holders))
        reader = dealt.index(min(dealt))
        dealt[reader] += prod(item.lengths) * entry.dtype.itemsize
        self._broadcasts.append((item, entry.holders, reader))
        return reader == dist.get_rank(entry.holders)

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        """Raise AssertionError: checkpoints hold tensors only, as bytes would have to be unpickled."""
        raise AssertionError("a checkpoint holds tensors only")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Part of one of this rank's pieces that a read fills."""
        index = read_item.dest_index.index
        assert index is not None
        target = self.contents[read_item.dest_index.fqn].pieces[index].tensor
        for dim, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            target = target.narrow(dim, offset, length)
        return target


def _write_item(name: str, entry: RankTensor, piece: Piece) -> WriteItem:
    """Torch's write item for one piece of a named tensor."""
    properties = TensorProperties(dtype=entry.dtype)
    data = TensorWriteData(_chunk(piece.box), properties, torch.Size(entry.shape))
    return WriteItem(MetadataIndex(name, piece.box.offsets), WriteItemType.SHARD, tensor_data=data)


def _chunk(box: Box) -> ChunkStorageMetadata:
    """A box as torch's chunk metadata."""
    return ChunkStorageMetadata(offsets=torch.Size(box.offsets), sizes=torch.Size(box.sizes))


def problems_of(
    manifest: Manifest, folder: Path, share: int, shares: int, clock: ReadingClock | None = None
) -> list[str]:
    """Sentences on tensors and files that differ from the manifest; `shares` readers divide them, this is `share`."""
    own_tensors = list(manifest.tensors.items())[share::shares]
    of_tensors = (_of_tensor(name, record, manifest) for name, record in own_tensors)
    problems = [f"{MANIFEST}: {problem}" for problem in of_tensors if problem]
    for index, file in list(enumerate(manifest.files))[share::shares]:
        problem = _of_file(file, folder / file.name, clock) or _of_pieces(index, manifest, folder)
        problems += [problem] * bool(problem)
    return problems


def lacking(
    manifest: Manifest, contents: Contents, substitutes: Mapping[str, str], padded: int | None
) -> Iterator[str]:
    """Sentences on tensors that this rank needs and the checkpoint lacks, or has in another shape.

    A tensor may have grown or shrunk along its first dim since it was saved, beyond `padded` rows: a vocabulary that is
    padded for other tensor ranks.
    """
    for name, entry in contents.items():
        saved = manifest.tensors.get(name) or manifest.tensors.get(substitutes.get(name, name))
        if saved is None:
            yield f"{MANIFEST}: it has no `{name}`"
        elif saved.shape != entry.shape and not (
            padded is not None
            and saved.shape[1:] == entry.shape[1:]
            and len(saved.shape) == len(entry.shape)
            and min(saved.shape[0], entry.shape[0]) >= padded
        ):
            yield f"{MANIFEST}: its `{name}` is {saved.shape}; the model's is {entry.shape}"


def uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> Box | None:
    """The first box, in memory order, of a tensor of `shape` that none of `boxes` holds; None if they cover it.

    Cuts the tensor along its first dim wherever a box begins or ends, and looks at each slice with the boxes that reach
    it.
    """
    if not shape:
        return None if boxes else Box((), ())
    ends = {box.offsets[0] + box.sizes[0] for box in boxes}
    cuts = sorted({0, shape[0], *(box.offsets[0] for box in boxes), *ends})
    coming, reach = sorted(boxes, key=lambda box: box.offsets[0], reverse=True), list[Box]()
    for begin, end in pairwise(cuts):
        while coming and coming[-1].offsets[0] <= begin:
            reach.append(coming.pop())
        reach = [box for box in reach if box.offsets[0] + box.sizes[0] > begin]
        missing = uncovered(shape[1:], [Box(box.offsets[1:], box.sizes[1:]) for box in reach])
        if missing is not None:
            return Box((begin, *missing.offsets), (end - begin, *missing.sizes))
    return None


def _of_tensor(name: str, tensor: SavedTensor, manifest: Manifest) -> str:
    """Problem of a tensor's pieces: one lies beyond its shape or in no file, or they leave a gap; empty if none."""
    for piece in tensor.pieces:
        ends = [first + size for first, size in zip(piece.offsets, piece.sizes, strict=False)]
        fits = len(piece.offsets) == len(piece.sizes) == len(tensor.shape)
        if not fits or any(end > size for end, size in zip(ends, tensor.shape, strict=True)):
            return f"a piece of `{name}` lies outside it, at {_range(piece.offsets, piece.sizes)} of {tensor.shape}"
        if piece.file >= len(manifest.files):
            return f"a piece of `{name}` is in file {piece.file} of {len(manifest.files)}"
    missing = uncovered(tensor.shape, [Box(piece.offsets, piece.sizes) for piece in tensor.pieces])
    return "" if missing is None else f"no piece of `{name}` holds {_range(missing.offsets, missing.sizes)}"


def _of_file(file: SavedFile, path: Path, clock: ReadingClock | None) -> str:
    """Problem of a file whose size or digest differs from the manifest; empty if none."""
    try:
        size = path.stat().st_size
        if size != file.size_bytes:
            return f"{file.name}: it has {size} bytes, {file.size_bytes} were written"
        if digest_of(path, clock) != file.sha256:
            return f"{file.name}: its bytes are not what was written (its digest differs)"
    except OSError as error:
        return f"{file.name}: {(error.strerror or str(error)).lower()}"
    return ""


def _of_pieces(index: int, manifest: Manifest, folder: Path) -> str:
    """Problem of the first piece that an intact file lacks, or has in another size; empty if none."""
    from safetensors import SafetensorError, safe_open

    file = manifest.files[index].name
    expected_sizes = {
        key_of(name, piece.offsets): piece.sizes
        for name, tensor in manifest.tensors.items()
        for piece in tensor.pieces
        if piece.file == index
    }
    try:
        with safe_open(folder / file, framework="pt") as stream:
            stored_keys = set(stream.keys())
            for key, sizes in expected_sizes.items():
                if key not in stored_keys:
                    return f"{file}: it has no `{key}`"
                if (shape := tuple(stream.get_slice(key).get_shape())) != sizes:
                    return f"{file}: its `{key}` is {shape}, not {sizes}"
    except SafetensorError as error:
        return f"{file}: {error}"
    return ""


def _range(offsets: Iterable[int], sizes: Iterable[int]) -> str:
    """A box as text, such as `[128:256, 0:64]`."""
    parts = (f"{first}:{first + size}" for first, size in zip(offsets, sizes, strict=False))
    return f"[{', '.join(parts)}]"
